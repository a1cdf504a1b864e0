"""In what runs differ besides their algorithm and seed: settings, and the clients and rows themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kinfolk.report.read import Run

# What may differ between runs that are compared.
_FREE = ("algorithm.", "engine.", "run.seed", "run.checkpoint_every")


@dataclass(frozen=True)
class Unlike:
    """What runs do not have in common."""

    own: tuple[str, ...] = ()  # settings that methods have for themselves, by intention
    settings: tuple[str, ...] = ()  # all other settings that differ
    torn: tuple[int, ...] = ()  # seeds in which not everyone has the same clients and rows

    def notes(self) -> list[str]:
        """The same as lines for below a table.

        >>> Unlike(settings=("local.lr",), torn=(0, 2)).notes()
        ['the runs also differ in local.lr', 'not the same clients and rows for everyone: seed 0, 2']
        """
        notes = []
        if self.own:
            notes.append(f"by intention, methods have settings of their own: {', '.join(self.own)}")
        if self.settings:
            notes.append(f"the runs also differ in {', '.join(self.settings)}")
        if self.torn:
            notes.append(f"not the same clients and rows for everyone: seed {', '.join(map(str, self.torn))}")
        return notes


def unlike(runs: Sequence[Run]) -> Unlike:
    """Settings and data in which the runs differ, besides algorithm and seed.

    >>> facts = [{"title": name, "seed": 0, "federation": {"fingerprint": name}} for name in ("a", "b")]
    >>> unlike([Run.of(one, {"value": []}) for one in facts]).torn
    (0,)
    """
    settings: dict[str, set[str]] = {}
    prints: dict[int, set[str]] = {}
    for run in runs:
        mine = run.facts.get("own") or {}
        for section, table in run.spec.items():
            for key, value in table.items() if isinstance(table, dict) else ():
                if f"{section}.{key}" not in mine:
                    settings.setdefault(f"{section}.{key}", set()).add(repr(value))
        prints.setdefault(run.seed, set()).add(str((run.facts.get("federation") or {}).get("fingerprint")))
    return Unlike(
        tuple(sorted({name for run in runs for name in run.facts.get("own") or {}})),
        tuple(sorted(k for k, found in settings.items() if len(found) > 1 and not k.startswith(_FREE))),
        tuple(sorted(seed for seed, found in prints.items() if len(found) > 1)),
    )
