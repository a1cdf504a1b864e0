"""Where a run stands, written as a checkpoint, and what is on the disk of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfolk.engines.fast import KERNELS
from kinfolk.errors import KinfolkError
from kinfolk.experiment.best import cost, judged, kept_rounds
from kinfolk.experiment.checkpoint import Damaged, Loaded, save, saved_bytes, saved_rounds
from kinfolk.experiment.client_memory import check_journal
from kinfolk.experiment.outline import check_frozen
from kinfolk.experiment.segments import WriteFile
from kinfolk.experiment.spec import dump
from kinfolk.experiment.state import changes, memories_from_message, to_message

if TYPE_CHECKING:
    from kinfolk.experiment.run import Running

# The types of what stands in a checkpoint besides the state, where nothing else looks at it.
_KINDS = {"voids": int, "summary": dict, "extra": int, "best": dict, "health": dict, "kernels": dict}


def write_checkpoint(run: Running, state: Any, summary: dict[str, Any]) -> Path:
    """Write the checkpoint from which a run goes on; beside it the state that clients were scored by."""
    tensors, plain = to_message(state)
    held = run.memories.everyones()
    facts = {
        "state": plain,
        "voids": run.voids,
        "extra": run.budget.extra,
        "privacy": run.spending.saved(),
        "unheard": [i for i, c in enumerate(run.clients) if c in run.unheard],
        "summary": summary,
        "health": run.health.saved(),
        "usual": run.coordinator.usual.lately,  # by which the next replies are judged
        "federation": run.parts.federation.fingerprint(),
        "kernels": KERNELS.chosen,  # by timing, so that a resumed run might choose otherwise
    }
    entries = {"state": tensors}
    if run.served_at == run.done:  # by choices made for it, or finalized
        entries["served"], facts["served"] = changes(state, run.served)
    if judged(run.spec.run):
        facts["best"] = asdict(run.best)
    newest, also = kept_rounds(run.spec.run, run.best)
    facts["held"] = len(held)

    def more(folder: Path, final: Path, write: WriteFile) -> dict[str, Any]:
        return run.segments.write(folder, final, held, run.clients, write)

    return save(run.folder / "checkpoints", run.done, entries, facts, dump(run.spec), newest, also, more)


def stand(run: Running, loaded: Loaded) -> bool:
    """Put a run where a checkpoint stands; one that says what no run has written is Damaged.

    Of other rows, another frozen part or a journal that lacks something no older checkpoint knows better:
    these are errors.
    """
    facts, tensors = loaded.facts, loaded.tensors
    try:
        if facts["federation"] != run.parts.federation.fingerprint():
            raise KinfolkError("checkpoint", str(run.folder), "the data are not those the run began with")
        check_frozen(run.folder, run.parts.learner)
        held = memories_from_message(tensors["memory"], run.clients)
        check_journal(run.folder, held, run.memories.lasting)
        wrong = [name for name, kind in _KINDS.items() if not isinstance(facts.get(name, kind()), kind)]
        if facts.get("held", len(held)) != len(held):
            raise ValueError(f"memories of {len(held)} clients, {facts['held']} were written")
        if wrong:
            raise TypeError(f"{wrong[0]} is of another type")
        run.take(loaded)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise Damaged(f"what it says is not where a run can stand ({reason[:120]})") from error
    return True


def told(run: Running) -> dict[str, Any]:
    """What keeping models will take; once there is a checkpoint, what is kept and what it takes."""
    where, plan = run.folder / "checkpoints", cost(run.parts, run.state)
    rounds = saved_rounds(where)
    best = {"best": asdict(run.best)} if judged(run.spec.run) else {}
    here = {"checkpoints": len(rounds), "rounds": rounds, "bytes": saved_bytes(where), **best}
    return {**plan, **here} if rounds else plan
