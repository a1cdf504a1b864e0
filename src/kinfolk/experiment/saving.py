"""Where a run stands, written as a checkpoint, and what is on the disk of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfolk.engines.fast import KERNELS
from kinfolk.experiment.best import cost, judged, kept_rounds
from kinfolk.experiment.checkpoint import save, saved_bytes, saved_rounds
from kinfolk.experiment.segments import WriteFile
from kinfolk.experiment.spec import dump
from kinfolk.experiment.state import changes, to_message

if TYPE_CHECKING:
    from kinfolk.experiment.run import Running


def write_checkpoint(run: Running, state: Any, summary: dict[str, Any]) -> Path:
    """Write the checkpoint from which a run goes on; beside it the state that clients were scored by."""
    tensors, plain = to_message(state)
    facts = {
        "state": plain,
        "voids": run.voids,
        "extra": run.budget.extra,
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
    held = run.memories.everyones()

    def more(folder: Path, final: Path, write: WriteFile) -> dict[str, Any]:
        return run.segments.write(folder, final, held, run.clients, write)

    return save(run.folder / "checkpoints", run.done, entries, facts, dump(run.spec), newest, also, more)


def told(run: Running) -> dict[str, Any]:
    """What keeping models will take; once there is a checkpoint, what is kept and what it takes."""
    where, plan = run.folder / "checkpoints", cost(run.parts, run.state)
    rounds = saved_rounds(where)
    best = {"best": asdict(run.best)} if judged(run.spec.run) else {}
    here = {"checkpoints": len(rounds), "rounds": rounds, "bytes": saved_bytes(where), **best}
    return {**plan, **here} if rounds else plan
