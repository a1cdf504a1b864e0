"""How a federation and its runs stand, seen from elsewhere: through a person's kit, or by a URL."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from rich.console import Group, RenderableType
from rich.table import Table

from kinfolk.deploy.control import TOPIC
from kinfolk.deploy.submit import connected, session
from kinfolk.errors import KinfolkError

# Seconds that a page of the server may take.
PATIENCE = 10.0
_UNITS = ("B", "kB", "MB", "GB", "TB")


def of_server(url: str) -> dict[str, Any]:
    """How the run stands whose status a server shows at an address.

    >>> of_server("ftp://nowhere")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: --server = 'ftp://nowhere': give its address as http://host:port
    """
    if not url.startswith(("http://", "https://")):
        raise KinfolkError("--server", url, "give its address as http://host:port")
    try:
        with urlopen(f"{url.rstrip('/')}/status", timeout=PATIENCE) as answer:  # nosec B310
            told = json.loads(answer.read())
    except (OSError, ValueError) as error:
        raise KinfolkError("--server", url, f"shows no run at the moment ({error})") from error
    return {"runs": [told]}


def of_kit(kit: Path, do: str = "status", run: str = "") -> dict[str, Any]:
    """Sites that are connected, jobs, and of each run that goes on what its lead says; `do` is asked of it.

    NVFlare takes a command of the application to a job's own process, for people whose kit may manage jobs.
    """
    with session(kit) as opened:
        now = time.time()
        heard = {str(who): max(now - last, 0.0) for who, last in connected(opened).items()}
        jobs = [dict(job) for job in opened.list_jobs()]
        runs = []
        for job in jobs:
            if str(job.get("status")) == "RUNNING":
                with suppress(Exception):  # it may end just now, or be a newcomer's, which says nothing
                    asked = do if run in ("", job.get("job_name", run)) else "status"
                    runs.append(opened.do_app_command(str(job["job_id"]), TOPIC, {"do": asked}))
    return {"sites": heard, "jobs": jobs, "runs": runs}


def shown(told: Mapping[str, Any]) -> RenderableType:
    """All of it in tables that fit 80 columns."""
    parts: list[RenderableType] = []
    if "sites" in told:
        ago = [(name, f"{seconds:.0f} s ago") for name, seconds in sorted(told["sites"].items())]
        parts.append(_table(("site", "heard of"), ago))
    if "jobs" in told:
        known = [
            (str(job["job_id"])[:8], str(job.get("job_name", "")), str(job["status"])) for job in told["jobs"]
        ]
        parts.append(_table(("job", "run", "status"), known))
    return Group(*parts, *(part for run in told["runs"] for part in _run(run)))


def _run(told: Mapping[str, Any]) -> Iterator[RenderableType]:
    """One run: where it is, its sites, what was sent and what took time."""
    draining = ", stops after this round" if told.get("draining") else ""
    yield (
        f"\nrun {told['run']}: {told['state']}{draining}, round {told['round']} of {told['rounds']}, "
        f"{told['answered']} of {told['cohort']} answered, heard of {told['heard_of']:.0f} s ago"
    )
    late = told.get("late", {})
    yield _table(
        ("site", "is", "deadlines missed"),
        [(who, at, str(late.get(who, 0))) for who, at in told["sites"].items()],
    )
    sent: dict[str, dict[str, int]] = {}
    for key, count in told["bytes"].items():
        kind, _, way = key.rpartition(".")
        sent.setdefault(kind, {})[way] = count
    phases = list(dict.fromkeys([*told["seconds"], *sent]))
    ways = ("down", "up", "across")
    yield _table(
        ("phase", "seconds", *ways),
        [
            (
                phase,
                f"{told['seconds'].get(phase, 0):.1f}",
                *(_size(sent.get(phase, {}).get(way)) for way in ways),
            )
            for phase in phases
        ],
    )


def _size(count: int | None) -> str:
    """Bytes in three digits.

    >>> _size(2_500_000), _size(None)
    ('2.5 MB', '')
    """
    if count is None:
        return ""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*head, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table
