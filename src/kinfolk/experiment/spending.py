"""What each client has spent of its privacy: counted before it is released, and never taken back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kinfolk.engines.coordinator import Coordinator
from kinfolk.errors import KinfolkError
from kinfolk.experiment.budget import Spent
from kinfolk.experiment.record import write_json
from kinfolk.privacy.local import trees
from kinfolk.privacy.mechanism import Mechanism
from kinfolk.script import Ask, Request
from kinfolk.streams import RoundContext
from kinfolk.task import Table, Task
from kinfolk.types import Client

# What was spent, written before every release: of what was released after the last checkpoint it alone knows.
FILE = "privacy.json"
# Noise that was found for an epsilon meets it but for rounding.
ROUNDING = 1e-6


class Spending:
    """The account of every client: what it has spent so far, kept through every way that a run may end.

    >>> Spending(None, {}, Path("nowhere")).facts()
    {}
    """

    def __init__(self, privacy: Mechanism | None, table: Table, folder: Path) -> None:
        self.privacy, self.path = privacy, folder / FILE
        # A task that replies no model releases none.
        self.releases = {name for name, task in table.items() if isinstance(task, Task) and trees(task)}
        self.accounts: dict[Client, float] = {}

    def before(self, request: Request) -> None:
        """Count what a request is about to release, on the disk first; `Spent` if that would be too much."""
        if self.privacy is None or not isinstance(request, Ask) or request.task not in self.releases:
            return
        now = {c: self.accounts.get(c, 0.0) + self.privacy.cost for c in request.to}
        limit, after = self.privacy.spec.epsilon, self.privacy.epsilon(max(now.values(), default=0.0))
        if limit and after > limit * (1 + ROUNDING):
            raise Spent(f"budget spent: epsilon would be {after:.4g}, over privacy.epsilon = {limit:g}")
        self.accounts |= now
        write_json(self.path, self.saved())

    def performing(self, by: Coordinator, context: RoundContext) -> Callable[[Request], Any]:
        """What performs requests once they are counted."""

        def perform(request: Request) -> Any:
            self.before(request)
            return by.perform(request, context)

        return perform

    @property
    def epsilon(self) -> float:
        """The most that any client has spent."""
        return self.privacy.epsilon(max(self.accounts.values(), default=0.0)) if self.privacy else 0.0

    def facts(self) -> dict[str, Any]:
        """What the records of a round tell; nothing without noise."""
        return {"privacy": {"epsilon": self.epsilon}} if self.privacy else {}

    def described(self) -> dict[str, Any]:
        """What is told of a run: the promise, in numbers; nothing without noise."""
        if self.privacy is None:
            return {}
        spec = self.privacy.spec
        noise = {"mode": spec.mode, "clip": spec.clip, "noise": self.privacy.multiplier}
        return {"privacy": {"epsilon": self.epsilon, "delta": spec.delta, "budget": spec.epsilon, **noise}}

    def saved(self) -> dict[str, float]:
        """The accounts, as they are written down."""
        return {str(c): account for c, account in sorted(self.accounts.items())}

    def take(self, held: Mapping[str, float]) -> None:
        """Go on with what a checkpoint holds, or the file, which may know of releases after it."""
        if self.privacy is None:
            return
        try:
            told = json.loads(self.path.read_text()) if held or self.path.exists() else {}
            both = {c: max(float(told.get(c, 0.0)), held.get(c, 0.0)) for c in {*told, *held}}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            remedy = (
                f"cannot be read ({error}), so what was spent is not known; restore it, or begin a new run"
            )
            raise KinfolkError("privacy", str(self.path), remedy) from error
        self.accounts = {Client(c): account for c, account in both.items()}
