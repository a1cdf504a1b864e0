"""Ctrl-C and SIGTERM: a run goes back to its last finished round, saves it, and can be resumed.

Waiting for the round in progress could take minutes, so its work is given up: played again, it comes to the
same bits. Between two rounds, while files are written, a signal is noted and acted on at once afterwards.
"""

from __future__ import annotations

import copy
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from kinfolk.by_path import one_line
from kinfolk.errors import KinfolkError

if TYPE_CHECKING:
    from kinfolk.experiment.run import Running

P = ParamSpec("P")
R = TypeVar("R")


class Stopped(KeyboardInterrupt):
    """A run was told to stop; all it has finished is saved, and it can be resumed.

    >>> str(Stopped(132, run="fedavg seed 1"))
    'fedavg seed 1: stopped at round 132; continue with resume=True'
    """

    def __init__(self, round: int, signal: int = signal.SIGINT, run: str = "") -> None:
        super().__init__(f"{run}: " * bool(run) + f"stopped at round {round}; continue with resume=True")
        self.round, self.signal = round, signal


class Stop:
    """Hears SIGINT and SIGTERM for one run: the first asks it to stop, the second ends it at once.

    `patient`: the round in progress is finished first.
    """

    def __init__(self, patient: bool = False) -> None:
        self.patient = patient
        self.heard = 0
        self.now = False  # whether the run may be interrupted just here

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear signals, unless the program has made something else of them or this is not its main thread."""
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
            before = {one: now for one, now in usual.items() if signal.getsignal(one) is now}
        for number in before:
            signal.signal(number, self._hear)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: Any) -> None:
        again, self.heard = bool(self.heard), number
        if again or self.now:
            raise KeyboardInterrupt

    def ask(self) -> None:
        """Stop at the next chance, as after a signal: between two rounds, that is when files are written."""
        self.heard = signal.SIGTERM

    def check(self) -> None:
        """Stop here if a signal has asked for it."""
        if self.heard:
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A stretch of work that a signal may interrupt."""
        before = self.now
        self.now = not self.patient
        if self.now:
            self.check()
        try:
            yield
        finally:
            self.now = before


def at_once(method: Callable[Concatenate[Running, P], R]) -> Callable[Concatenate[Running, P], R]:
    """A method of a run that a signal may interrupt."""

    @functools.wraps(method)
    def interruptible(run: Running, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with run.stop.at_once():
            return method(run, *args, **kwargs)

    return interruptible


@contextmanager
def undone_if_stopped(run: Running) -> Iterator[None]:
    """A round that a signal interrupts has not been: the run stands where it stood before."""
    names = ("state", "done", "voids", "summary", "served", "served_at", "best", "valid")
    before = {name: getattr(run, name) for name in names}
    unheard, extra, held = set(run.unheard), run.budget.extra, dict(run.memories)
    health = copy.deepcopy(run.health, {id(run.health.start): run.health.start})  # the start never changes
    try:
        yield
    except KeyboardInterrupt:
        if not run.stop.patient:
            for name, value in before.items():
                setattr(run, name, value)
            run.unheard, run.budget.extra, run.health = unheard, extra, health
            run.memories.restore(held)
            run.coordinator.forget()
            run.records.rewind(run.done)
        raise
    run.stop.check()


@contextmanager
def left_resumable(run: Running) -> Iterator[None]:
    """However a run ends, `run.json` says so; one that was told to stop saves its last finished round."""
    try:
        with run.stop.listening():
            try:
                yield
            except KeyboardInterrupt:
                if run.status == "running":
                    if run.saved != run.done:
                        run.save()
                    _describe(run, f"told to stop at round {run.done}")
                raise Stopped(run.done, run.stop.heard or signal.SIGINT) from None
    except Exception as error:
        if run.status == "running":
            _describe(run, one_line(error))
        raise


def _describe(run: Running, why: str) -> None:
    with suppress(KinfolkError):  # the disk is full, and that is being said already
        run.describe("stopped", why)
        run.records.audit("stopped", round=run.done, why=why)
