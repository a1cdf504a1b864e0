"""The commands in the order of a user's day, and what Ctrl-C looks like."""

from __future__ import annotations

import signal
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from kinfolk.cli.words import in_flags, speaks

# A command that stands in no list comes last.
PANELS = {
    "From data to results": (
        "data",
        "advise",
        "run",
        "compare",
        "tune",
        "choose-k",
        "show",
        "report",
        "groups",
    ),
    "Use the models": ("predict", "export", "assign", "score"),
    "Between organisations": ("deploy", "site"),
    "Look up and check": ("list", "check", "attack", "infer"),
    "Papers": ("reproduce", "pseudo", "trust"),
}
ORDER = [name for names in PANELS.values() for name in names]


class InOrder(TyperGroup):
    """The commands of `kinfolk`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in order; each in its panel."""
        for panel, names in PANELS.items():
            for name in names:
                if name in self.commands:
                    self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]
        known = [name for name in ORDER if name in self.commands]
        return known + [name for name in super().list_commands(ctx) if name not in known]

    def invoke(self, ctx: Any) -> Any:
        """Perform a command; one that is told to stop says how to go on."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            # Typer would end without a word.
            number = getattr(stop, "signal", signal.SIGINT)
            if speaks():
                print(self._told(ctx, in_flags(str(stop))) or "stopped", file=sys.stderr)
            raise typer.Exit(128 + number) from stop

    def _told(self, ctx: Any, text: str) -> str:
        """What is said of a stop; a command that goes on by itself has no --resume."""
        command = self.commands.get(ctx.invoked_subcommand)
        known = [flag for one in (command.params if command else ()) for flag in one.opts]
        return (
            text
            if "--resume" in known
            else text.replace("continue with --resume", "the same command goes on")
        )
