"""Score replies tell no more than the method's privacy promises: looked for in what leaves a site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from deployed import all_equal, federated, sites_of, spec_of
from typer.testing import CliRunner

from kinfolk.cli.commands import app
from kinfolk.codec import decode
from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.lead import lead
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.record import read_rounds
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import dump, override
from kinfolk.experiment.state import to_message
from kinfolk.learning.metrics import BY_CLASS
from kinfolk.types import Client, leaves


class Listening:
    """A carrier that keeps what sites answer, with what they were asked."""

    def __init__(self, inner: Threads) -> None:
        self.inner, self.answers = inner, list[tuple[Client, str, bytes]]()

    def ask(self, requests: Mapping[Client, bytes], seconds: float) -> Iterator[tuple[Client, Any]]:
        """As `Carrier.ask`."""
        asked = {c: decode(data)[1] for c, data in requests.items()}
        for who, answer in self.inner.ask(requests, seconds):
            if isinstance(answer, bytes):
                self.answers.append((who, asked[who].get("task", asked[who]["do"]), answer))
            yield who, answer


def played(spec: Any, folder: Path) -> tuple[Any, Listening]:
    rows = federated(spec)
    carrier = Listening(Threads({c: s.answer for c, s in sites_of(rows).items()}))
    return lead(spec, folder, carrier, list(rows.clients), seconds=60), carrier


def counts_in(carrier: Listening, spec: Any) -> dict[str, int]:
    """By task, how many leaves are counts of the site's own labels, in any split or sum of splits."""
    rows, found = federated(spec), dict[str, int]()
    own: dict[Client, list[torch.Tensor]] = {}
    for i, who in enumerate(rows.clients):
        by_split = [torch.bincount(rows.y[split.rows(i)], minlength=10) for split in rows.splits.values()]
        own[who] = [n for n in (*by_split, sum(by_split)) if int(torch.as_tensor(n).sum())]  # type: ignore[misc]
    for who, task, answer in carrier.answers:
        for _, _, leaf in leaves(decode(answer)[0]):
            values = leaf.double().flatten()
            if len(values) == 10 and any(
                torch.equal(values, n.double()) or torch.allclose(values, n.double() / n.sum())
                for n in own[who]
            ):
                found[task] = found.get(task, 0) + 1
    return found


HIDING = {
    "mdicfl,k=2,privacy='strong'": [],
    "slfed": [],
    "fedavg": ["secure_sums.scheme=additive64"],
    "fesem,k=2": ["run.reveal=sums"],
    "ifca,k=2": ["run.reveal=sums"],
}


@pytest.mark.parametrize("method", HIDING)
def test_no_label_count_leaves_a_site_where_labels_are_to_stay(method: str, tmp_path: Path):
    spec = override(spec_of(method, rounds=8 if "k=2" in method else 2), HIDING[method])
    result, carrier = played(spec, tmp_path / "run")
    scored = [decode(answer)[0] for _, task, answer in carrier.answers if task.startswith("score.")]
    assert scored
    assert result.summary
    assert not [reply for reply in scored if set(reply) & set(BY_CLASS)]
    assert counts_in(carrier, spec) == {}


@pytest.mark.parametrize("method", ["fedavg", "mdicfl,k=2"])
def test_the_search_finds_label_counts_where_they_are_told(method: str, tmp_path: Path):
    spec = spec_of(method, rounds=8 if "k=2" in method else 2)
    _, carrier = played(spec, tmp_path / "run")
    assert any(task.startswith("score.") for task in counts_in(carrier, spec))


@pytest.mark.parametrize("reveal", ["sums", "none"])
def test_what_is_told_of_scores_changes_no_model_and_no_score(reveal: str, tmp_path: Path):
    spec = spec_of("fedavg", rounds=3)
    usual = run(spec, tmp_path / "usual")
    ours, carrier = played(override(spec, [f"run.reveal={reveal}"]), tmp_path / "run")
    assert all_equal(to_message(ours.state)[0], to_message(usual.state)[0])
    told = [task for _, task, _ in carrier.answers if task.startswith("score.")]
    if reveal == "none":
        assert (told, ours.summary) == ([], {})
        assert read_rounds(ours.folder)[-1]["summary"] == {}
        return
    for kind, scores in usual.summary.items():
        for score, values in scores.items():
            kept = {key: value for key, value in values.items() if key != "pooled"}
            assert {key: ours.summary[kind][score][key] for key in kept} == pytest.approx(kept, rel=1e-12)


@pytest.mark.parametrize("wants", ["run.target=0.5", "run.patience=2", "run.keep=best"])
def test_what_goes_by_scores_is_refused_where_nobody_tells_any(wants: str):
    with pytest.raises(KinfolkError, match=r"run\.reveal = 'none': run\."):
        build_parts(override(spec_of("fedavg"), ["run.reveal=none", wants]))


def test_a_run_without_scores_is_shown_as_what_it_is(tmp_path: Path):
    (tmp_path / "spec.toml").write_text(dump(override(spec_of("fedavg", rounds=2), ["run.reveal=none"])))
    done = CliRunner().invoke(app, ["run", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0
    assert "2 rounds; clients" in done.output
