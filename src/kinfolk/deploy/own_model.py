"""A site's own models of a run: kept on its disk, and written as `kinfolk export` writes them.

No model leaves the site for it. The lead sends what the site is scored by; of that, its memory and its rows
the site makes what it is served, by the same tasks and so with the same bits as a simulation.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfolk.codec import decode, encode
from kinfolk.engines import one
from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.card import Wanted
from kinfolk.experiment.export import check_formats, export
from kinfolk.experiment.kept_models import KeptModels
from kinfolk.experiment.outline import write_outline
from kinfolk.experiment.record import Records, write_bytes, write_json, write_text
from kinfolk.experiment.score_again import read_run
from kinfolk.learning.learner import ScoreTask
from kinfolk.private import private_folder
from kinfolk.streams import RoundContext
from kinfolk.types import Client, Message, Tree

if TYPE_CHECKING:
    from kinfolk.deploy.site import Begun

# What the lead tells of a run for the card of a model, and of what type each is.
TOLD = {"name": str, "title": str, "status": str, "rounds": int, "versions": dict, "federation": dict}
# Of each score of this client.
SCORE = ("model", "split", "score", "value", "rows")


def keep_own(
    begun: Begun, folder: Path, message: Message, facts: str, context: RoundContext, alone: bool = False
) -> None:
    """Make the models that this client is served, and keep them in its folder of the run.

    `alone`: those that need nothing but the message, as a newcomer has no memory of the run.
    """
    told = _read(facts)
    final = folder / f"own-{context.round:06d}"
    temporary = final.with_name(f".{final.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    private_folder(temporary)
    for kind, task in begun.parts.algorithm.eval_tasks().items():
        if isinstance(task, ScoreTask) and task.network and (task.common or not alone):
            given = task.giving(), message, begun.store.memory, begun.rows, begun.who, context
            write_bytes(temporary / f"{kind}.safetensors", encode(one.perform(*given)[0]), "site")
    # From here on the folder reads as that of a run that has this client's models alone.
    write_text(temporary / "spec.toml", begun.agreement.spec)
    write_outline(temporary, replace(begun.parts.federation, scaling=begun.rows.scaling), begun.parts.learner)
    scores = told.pop("scores")
    if scores:
        columns = {name: [line[i] for line in scores] for i, name in enumerate(SCORE)}
        Records(temporary).write_scores(context.round, {"client": [begun.who] * len(scores), **columns})
    write_json(temporary / "run.json", told)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(temporary, final)


def _read(facts: str) -> dict[str, Any]:
    """What the lead has told of the run, if it is that."""
    try:
        told: dict[str, Any] = json.loads(facts)
        wrong = [key for key, kind in TOLD.items() if not isinstance(told[key], kind)]
        scores = [
            [str(line[0]), str(line[1]), str(line[2]), float(line[3]), int(line[4])]
            for line in told["scores"]
        ]
    except (ValueError, TypeError, LookupError, RecursionError, AttributeError) as error:
        raise KinfolkError("message.facts", facts[:40], "does not say what the run is") from error
    if wrong:
        raise KinfolkError(f"message.facts.{wrong[0]}", told[wrong[0]], "is of another type")
    return {**{key: told[key] for key in TOLD}, "privacy": told.get("privacy"), "scores": scores}


class OwnModels(KeptModels):
    """The models that a site has kept of a run."""

    @property
    def rounds(self) -> tuple[int, ...]:
        """The one round that they are of."""
        return (int(self.folder.name.removeprefix("own-")),)

    def kind(self, name: str | None) -> str:
        """The kind of model that is meant, of those that are here."""
        here = [kind for kind in self.kinds() if (self.folder / f"{kind}.safetensors").exists()]
        if name is not None and name not in here:
            raise KinfolkError("kind", name, f"is not here; there are {', '.join(here)}")
        if not here:
            raise KinfolkError("site", str(self.folder), "has no model of this run; its method keeps none")
        return name or here[0]

    def trees(self, who: Sequence[Client], kind: str, round: int) -> dict[Client, Tree]:
        """The model of this site."""
        model: Tree = decode((self.folder / f"{kind}.safetensors").read_bytes())[0]["model"]
        return dict.fromkeys(who, model)


def kept_runs(memory: Path) -> Mapping[str, Path]:
    """Where a site has kept its models, by the names of their runs; of one name the newest.

    >>> kept_runs(Path("nowhere"))
    {}
    """
    folders = sorted(memory.glob("*/own-*"), key=lambda folder: (folder.stat().st_mtime_ns, folder.name))
    return {str(read_run(folder).get("name", "")): folder for folder in folders}


def export_own(
    memory: Path,
    who: Client,
    run: str | None,
    folder: Path,
    kind: str | None = None,
    formats: Sequence[str] = ("safetensors",),
    licence: str = "",
) -> list[Path]:
    """Write a model that a site has kept into a folder, with its card; the last run's if none is named.

    >>> export_own(Path("nowhere"), Client("ann"), "first", Path("out"))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'first': no model of it is here; it comes when the run has ended
    """
    check_formats(formats)
    runs = kept_runs(memory)
    if not runs or (run is not None and run not in runs):
        hint = f"; {near(run, list(runs))}" if run and runs else ""
        raise KinfolkError("run", run, f"no model of it is here; it comes when the run has ended{hint}")
    kept = OwnModels(runs[run] if run is not None else list(runs.values())[-1])
    which, round = kept.kind(kind), kept.rounds[0]
    network = kept.network(which, kept.trees([who], which, round)[who])
    return export(network, kept, Wanted(which, round, who, licence=licence), folder, formats)
