"""What a run that goes on can be asked: how it stands, and to end after its round, to be resumed (drain)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kinfolk.deploy.observe import Observed
from kinfolk.experiment.record import write_text

# Under this topic the person's kit reaches the lead through NVFlare; a file of this name in the run's folder
# asks it to drain, for whoever is on the server's machine.
TOPIC, FILE = "kinfolk", "drain"


class Control:
    """Answers for one run, and watches it.

    >>> control = Control(Observed("first", []), Path("nowhere"))
    >>> control.watch("round", {"round": 1})
    >>> control.answer({"do": "drain"})["draining"], control.watch("round", {"round": 2})
    (True, 'pause')
    """

    def __init__(self, seen: Observed, folder: Path) -> None:
        self.seen, self.folder, self.draining = seen, folder, False
        (folder / FILE).unlink(missing_ok=True)  # it was about an earlier attempt

    def answer(self, asked: Any) -> dict[str, Any]:
        """How the run stands, once what was asked is done; what is nothing of ours changes nothing."""
        self.draining |= isinstance(asked, dict) and asked.get("do") == "drain"
        return {**self.seen.status(), "draining": self._draining()}

    def watch(self, event: str, facts: dict[str, Any]) -> Any:
        """Take an event of the run in; after a round it may be told to pause."""
        answer = self.seen.watch(event, facts)
        return "pause" if event == "round" and self._draining() else answer

    def _draining(self) -> bool:
        return self.draining or (self.folder / FILE).exists()


def drain(folder: Path) -> None:
    """Ask the run in a folder to end after its round, from the server's own machine."""
    write_text(folder / FILE, "")
