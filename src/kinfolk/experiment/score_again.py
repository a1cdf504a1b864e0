"""A finished run's models scored on other test rows or fine-tuned otherwise, without training again."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.engines.choose import arithmetic
from kinfolk.engines.link import Link
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import Network, Parts, build_parts
from kinfolk.experiment.checkpoint import Loaded, load_latest
from kinfolk.experiment.choice import chosen, kept
from kinfolk.experiment.finalize import play_final
from kinfolk.experiment.fit_rows import fit_rows
from kinfolk.experiment.left_out import left_out
from kinfolk.experiment.outline import check_frozen
from kinfolk.experiment.record import read_rounds, readable, readable_json
from kinfolk.experiment.run import Result, Running, Watch, together
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import differences, dump, load
from kinfolk.federation.federation import Federation
from kinfolk.federation.scaling import standardized
from kinfolk.federation.sources import build
from kinfolk.lock import writing
from kinfolk.streams import Seed
from kinfolk.types import Client, row_leaves

# What may differ from the run whose models are scored.
_FREE = re.compile(r"(data\.test(_rows|_fraction)?|run\.(split|models)|local\.tune_(lr|epochs)|engine\.\w+):")


def score_again(
    source: Path,
    spec: Experiment,
    folder: Path,
    *,
    federation: Federation | None = None,
    trained: Federation | None = None,
    network: Network | None = None,
    watch: Watch = lambda event, facts: None,
) -> Result:
    """Score the last models of the run in `source` on the test rows of `spec`, into a run folder of its own.

    `federation` holds these test rows, `trained` the rows of the run; left out, they are built from the two
    specs. What an earlier scoring has left in `folder` is replaced; a run is not.

    >>> score_again(Path("nowhere"), Experiment(), Path("runs/again"))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'nowhere': is no run folder; name one that `kinfolk run` has written
    """
    source, folder = Path(source), Path(folder)

    def lead(link: Link | None) -> Result:
        before = spec_of(source)
        only_tests_differ(before, spec)
        loaded = _last(source, before)
        if (folder / "run.json").exists() and "again" not in read_run(folder):
            raise KinfolkError("run folder", str(folder), "a run is there already; choose another folder")
        parts = build_parts(spec, federation, network)
        _check_rows(source, before, loaded, parts, trained)
        check_frozen(source, parts.learner)
        choice = chosen(parts, link)
        if spec.engine == before.engine:  # a run tries chunks out, and others have other bits
            choice = kept(choice, spec.engine, source)
        with (
            writing(folder),
            arithmetic(choice.device, spec.engine.precision),
            closing(Running(parts, folder, choice, watch, link)) as running,
        ):
            return _scored(running, loaded, source)

    return together(spec, folder, federation, network, lead)


def _scored(running: Running, loaded: Loaded, source: Path) -> Result:
    """The one evaluation, and its records."""
    name = source.resolve().name
    running.announce()
    running.open_folder(again=name)
    running.records.audit("again", source=str(source), round=loaded.number)
    running.take(loaded)
    play_final(running)
    running.coordinator.ledger.take()  # its cost is in the records of the run itself
    # Who is in which group was settled in training.
    groups = [fact["groups"] for fact in read_rounds(source) if fact.get("groups")]
    running.record({"groups": groups[-1]} if groups else {}, evaluate=True)
    reason = f"models of {name}, scored again"
    running.describe("finished", reason, again=name)
    running.watch("end", {"reason": reason, "folder": running.folder})
    held, title = running.memories.everyones(), running.parts.title
    return Result(running.folder, title, running.done, reason, running.summary, running.state, held)


def read_run(folder: Path) -> dict[str, Any]:
    """What the run in a folder says of itself.

    >>> read_run(Path("nowhere"))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'nowhere': is no run folder; name one that `kinfolk run` has written
    """
    try:
        facts = readable_json((Path(folder) / "run.json").read_text(encoding="utf-8"))
        told = {"status": str(facts["status"]), "rounds": int(facts["rounds"]), **facts}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        remedy = "is no run folder; name one that `kinfolk run` has written"
        raise KinfolkError("run", str(folder), remedy) from error
    readable(folder, told)
    return told


def spec_of(source: Path) -> Experiment:
    """The spec of a run that has finished and has its models; any other is refused."""
    facts = read_run(source)
    if facts["status"] == "diverged":
        raise KinfolkError("run", str(source), "has diverged; run it again with a smaller local.lr")
    if facts["status"] != "finished":
        remedy = f"is {facts['status']}, not finished; go on with `kinfolk run --resume` first"
        raise KinfolkError("run", str(source), remedy)
    if "again" in facts:
        raise KinfolkError("run", str(source), f"has scores alone; name the run itself, {facts['again']}")
    return load(Path(source) / "spec.toml")


def only_tests_differ(before: Experiment, spec: Experiment) -> None:
    """Refuse a spec under which other models would have been trained.

    >>> from kinfolk.experiment.spec import override
    >>> only_tests_differ(Experiment(), override(Experiment(), ["data.test=global", "engine.name=loop"]))
    >>> only_tests_differ(Experiment(), override(Experiment(), ["run.rounds=9"]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run.rounds: 20 there, 9 here; only data.test, data.test_rows, ...
    """
    wrong = [line for line in differences(before, spec) if not _FREE.match(line)]
    if wrong:
        name, _, told = wrong[0].partition(": ")
        may = "data.test, data.test_rows, data.test_fraction, local.tune_lr, local.tune_epochs, run.split, "
        may += "run.models and engine.* may change"
        raise KinfolkError(name, None, f"{told}; only {may} when models are scored again")


def _last(source: Path, before: Experiment) -> Loaded:
    """The checkpoint of the last round; models of an earlier one are not those of the finished run."""
    loaded, complaints = load_latest(source / "checkpoints", dump(before))
    if loaded is None:
        raise KinfolkError("run", str(source), "has no checkpoint, so no models to score; run it again")
    if loaded.number != read_run(source)["rounds"]:
        told = complaints[0] if complaints else f"round {loaded.number} is the last that was saved"
        remedy = f"lacks the models of its end ({told}); go on with `kinfolk run --resume` first"
        raise KinfolkError("run", str(source), remedy)
    return loaded


def _check_rows(
    source: Path, before: Experiment, loaded: Loaded, parts: Parts, trained: Federation | None
) -> None:
    """Refuse a federation whose clients train on other rows than those of the run."""
    spec, rows = parts.spec, parts.federation
    if rows.fingerprint() == loaded.facts["federation"]:
        return
    trained = trained or build(before.data, Seed(before.run.seed))
    trained = standardized(trained, before.data.standardize, before.data.standardize_target)
    trained = left_out(trained, before.local.loss_options)[0]
    trained = fit_rows(parts.learner.plain_network(), trained, before.model.output)[0]
    if trained.fingerprint() != loaded.facts["federation"]:
        remedy = "its data are not those it was trained on; put them back, or give them as `trained`"
        raise KinfolkError("run", str(source), remedy)
    if not same_training(trained, rows):
        changed = [line.split(":")[0] for line in differences(before, spec) if line.startswith("data.")]
        remedy = "changes the rows that clients train on, not their test rows alone; leave it as it was"
        raise KinfolkError(", ".join(changed) or "federation", None, remedy)


def same_training(a: Federation, b: Federation) -> bool:
    """Whether two federations have the same clients with the same rows to train and to validate on.

    >>> from kinfolk.federation.spec import DataSpec
    >>> a, b, c = (build(DataSpec(clients=4, rows=9, test=t), Seed(s)) for t, s in
    ...     (("local", 0), ("global", 0), ("local", 1)))
    >>> same_training(a, b), same_training(a, c)
    (True, False)
    """
    if (a.clients, a.classes, a.row_text) != (b.clients, b.classes, b.row_text):
        return False
    return all(
        torch.equal(mine, other)
        for who in a.clients
        for mine, other in zip(_rows(a, who), _rows(b, who), strict=True)
    )


def _rows(federation: Federation, who: Client) -> list[Tensor]:
    held = federation.among([who])
    parts = [held.take(held.splits[split].rows(held.place(who))) for split in ("train", "valid")]
    return [tensor.cpu() for pair in parts for rows in pair for tensor in row_leaves(rows)]
