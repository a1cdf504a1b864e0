"""Everything that watches runs which Python has started: progress, the user's functions, a logger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from kinfolk.engines.link import follows
from kinfolk.experiment.callbacks import Callback, Callbacks, all_of
from kinfolk.experiment.loggers import Log, logged
from kinfolk.experiment.run import Watch
from kinfolk.experiment.sections import Experiment
from kinfolk.progress import interactive, telling


@contextmanager
def watched(
    spec: Experiment,
    total: int,
    progress: bool | None,
    log: str | Log | None = None,
    on_round: Callback | None = None,
    on_evaluate: Callback | None = None,
    on_checkpoint: Callback | None = None,
    runs: Sequence[tuple[str, int]] = (),
) -> Iterator[Callable[[str, int], Watch]]:
    """Makes a listener for each run, by its name and its own rounds (0: as its spec says), of `total` in all.

    `progress`: None shows it where somebody is watching; True elsewhere too, as lines; False never.
    With `runs`, the title and seed of each, a terminal shows a table of them.
    """
    Callbacks(on_round, on_evaluate, on_checkpoint)  # checked before anything is shown
    shown = (interactive() if progress is None else progress) and not follows(spec.engine.name)
    with ExitStack() as held:
        logger = held.enter_context(logged(log))
        teller = held.enter_context(telling(total, runs=runs)) if shown else None

        def watch(name: str, rounds: int = 0) -> Watch:
            told = [teller.watch(name, rounds)] if teller else []
            return all_of(*told, Callbacks(on_round, on_evaluate, on_checkpoint), logger())

        yield watch
