"""Sites whose data differ: in columns, in size by a hundred thousand times, without rows to test on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployed import all_equal

from kinfolk.deploy.agreement import Introduction, agree
from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.lead import lead
from kinfolk.deploy.site import Site
from kinfolk.errors import KinfolkError
from kinfolk.experiment.outline import read_outline
from kinfolk.experiment.record import read_scores
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import parse
from kinfolk.experiment.state import to_message
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.types import Client

SPEC = """
[data]
standardize = "{by}"
[model]
name = "logistic"
[local]
epochs = 0
steps = 5
[run]
rounds = 2
[engine]
name = "loop"
"""


class Weighed:
    """A carrier that knows how long the longest message was."""

    def __init__(self, sites: Mapping[Client, Site]) -> None:
        self.inner, self.longest = Threads({c: site.answer for c, site in sites.items()}), 0

    def ask(self, requests: Mapping[Client, bytes], seconds: float) -> Iterator[tuple[Client, Any]]:
        """As `Carrier.ask`."""
        for who, answer in self.inner.ask(requests, seconds):
            self.longest = max(
                self.longest, len(requests[who]), len(answer) if isinstance(answer, bytes) else 0
            )
            yield who, answer


def both(rows: Federation, by: str, folder: Path) -> tuple[Any, Any, Weighed]:
    """The run of a simulation, and that over sites."""
    spec = parse(SPEC.format(by=by))
    theirs = run(spec, folder / "loop", federation=rows)
    carrier = Weighed({c: Site(c, rows.only(c)) for c in rows.clients})
    return theirs, lead(spec, folder / "first", carrier, list(rows.clients), seconds=120), carrier


def drawn(count: int, seed: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    x = draw.normal(100.0 * seed, 1.0 + seed, size=(count, 2))
    return x, (x[:, 0] > 100.0 * seed).astype(np.int64)


def test_sites_of_ten_and_of_a_million_rows_train_together(tmp_path: Path):
    own = {"little": drawn(10, 1), "large": drawn(1_000_000, 2), "middle": drawn(1_000, 3)}
    rows = from_arrays(own, test={c: (x[:5], y[:5]) for c, (x, y) in own.items()})
    theirs, ours, carrier = both(rows, "global", tmp_path)
    assert all_equal(to_message(ours.state)[0], to_message(theirs.state)[0])
    assert ours.summary == theirs.summary
    x = np.concatenate([x for x, _ in own.values()]).astype(np.float32).astype(np.float64)
    scaling = rows_scaling(tmp_path)
    np.testing.assert_allclose(scaling.mean, x.mean(0), rtol=1e-9)
    np.testing.assert_allclose(scaling.std, x.std(0), rtol=1e-6)
    assert carrier.longest < 16_384  # whoever has more rows sends no more


def rows_scaling(folder: Path) -> Any:

    scaling = read_outline(folder / "first").scaling
    assert scaling is not None
    return scaling.rows[""]


def test_a_site_without_test_rows_trains_as_in_a_simulation_and_is_not_scored(tmp_path: Path):
    own = {who: drawn(50, i + 1) for i, who in enumerate(("ann", "bob", "cem"))}
    rows = from_arrays(own, test={who: own[who] for who in ("ann", "bob")})
    theirs, ours, _ = both(rows, "none", tmp_path)
    assert all_equal(to_message(ours.state)[0], to_message(theirs.state)[0])
    assert ours.summary == theirs.summary
    scores = read_scores(tmp_path / "first")
    assert set(scores["client"][scores["rows"] > 0]) == {"ann", "bob"}


NAMED = {
    "another name": (("age", "weight"), "its feature names"),
    "another order": (("height", "age"), "its feature names"),
    "one more": (("age", "height", "weight"), "its"),
}


@pytest.mark.parametrize("case", NAMED)
def test_columns_must_have_the_same_names_in_the_same_order(case: str):
    names, told = NAMED[case]
    x, y = drawn(20, 1)

    def introduced(who: str, columns: tuple[str, ...]) -> Introduction:
        wide = np.repeat(x[:, :1], len(columns), axis=1)
        rows = replace(from_arrays({who: (wide, y)}), feature_names=columns)
        return Introduction.of(Client(who), rows, "key")

    first = introduced("ann", ("age", "height"))
    assert agree([first, introduced("bob", ("age", "height"))], "", "r").outline.feature_names == (
        "age",
        "height",
    )
    with pytest.raises(KinfolkError, match=f"site = 'bob': {told}.*must be the same"):
        agree([first, introduced("bob", names)], "", "r")
