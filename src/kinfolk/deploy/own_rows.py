"""The rows of one site, out of its own files or, for trials, out of a federation that is simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.sections import Experiment
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.load import load_own
from kinfolk.federation.sources import build
from kinfolk.streams import Seed
from kinfolk.types import Client


def own_rows(path: Path, who: Client, **options: Any) -> Federation:
    """The rows of site `who` in a store or a folder with its file; `options` are those of `load_own`.

    A single client there is the site, whatever it is called; of several it is the one with the site's name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     text = "age,y\\n31,no\\n47,yes\\n28,no\\n50,yes\\n39,no\\n"
    ...     _ = (Path(folder) / "patients.csv").write_text(text)
    ...     own_rows(Path(folder), Client("north")).clients
    ('north',)
    """
    found, _ = load_own(path, **options)
    if len(found.clients) == 1:
        return replace(found.only(found.clients[0]), clients=(who,), **_words(found))
    if who not in found.clients:
        raise KinfolkError(
            "data",
            str(path),
            f"holds {len(found.clients)} clients and none is {who}; " + near(who, found.clients),
        )
    return replace(found.only(who), **_words(found))


def simulated_rows(spec: Experiment, who: Client) -> Federation:
    """The rows of one client of a federation that a spec describes, for trials on one machine."""
    whole = build(spec.data, Seed(spec.run.seed))
    return replace(whole.only(who), **_words(whole))


def _words(whole: Federation) -> dict[str, Any]:
    """What a federation of one does not carry by itself: names, and how raw columns become rows."""
    names = ("class_names", "feature_names", "scaling", "recipe")
    return {name: getattr(whole, name) for name in names}
