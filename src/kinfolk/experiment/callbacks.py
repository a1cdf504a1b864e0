"""Functions of the user's that a run calls: after each round, each evaluation and each checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kinfolk.errors import KinfolkError
from kinfolk.experiment.run import Watch

Facts = dict[str, Any]
Callback = Callable[[Facts], Any]

# What each callback is told, where a run has it; docs/your-network/python.md says what it means.
WHICH = ("title", "seed", "folder", "round", "rounds")
TOLD = {
    "on_round": ("cohort", "answered", "unheard", "void", "info", "groups", "bytes", "trained", "seconds"),
    "on_evaluate": ("summary", "groups"),
    "on_checkpoint": ("path",),
}


class Callbacks:
    """Calls the user's functions with what they are told of a run; one that returns "stop" ends it.

    >>> listen = Callbacks(on_checkpoint=lambda facts: print(facts["title"], facts["round"]))
    >>> listen("engine", {"title": "fedavg", "seed": 0, "folder": "runs/a", "rounds": 20})
    >>> listen("checkpoint", {"round": 3, "path": "runs/a/checkpoints/round-000003"})
    fedavg 3
    """

    def __init__(
        self,
        on_round: Callback | None = None,
        on_evaluate: Callback | None = None,
        on_checkpoint: Callback | None = None,
    ) -> None:
        self.given = {"on_round": on_round, "on_evaluate": on_evaluate, "on_checkpoint": on_checkpoint}
        for name, one in self.given.items():
            if one is not None and not callable(one):
                raise KinfolkError(name, one, "give a function of one argument, the facts")
        self.run: Facts = {}

    def __call__(self, event: str, facts: Facts) -> Any:
        """Hear an event; what the user's function for it returns."""
        if event == "engine":
            self.run = {name: facts[name] for name in WHICH if name in facts}
        name = f"on_{event}"
        function = self.given.get(name)
        # Before the first round nothing has been played; a start is evaluated and saved, though. And the line
        # of the last round that an algorithm finalizes is written twice.
        if function is None or (event == "round" and (not facts["round"] or "final" in facts)):
            return None
        told = {key: facts[key] for key in (*WHICH, *TOLD[name]) if key in facts}
        return function({**self.run, **told})


def all_of(*watches: Watch) -> Watch:
    """Tell several; if one of them answers "stop", that is the answer.

    >>> all_of(lambda event, facts: "stop", lambda event, facts: print(event))("round", {})
    round
    'stop'
    """

    def listen(event: str, facts: Facts) -> str | None:
        # A callback may return anything, an array too, which has no truth beside a text.
        answers = [watch(event, facts) for watch in watches]
        return "stop" if any(isinstance(one, str) and one == "stop" for one in answers) else None

    return listen
