"""Known weaknesses, in our code and in what it needs: `make audit`.

Bandit reads what is released; a finding ends the command with exit code 1. pip-audit asks PyPI's advisories
about every pinned version. Where they cannot be reached it is skipped, and says so: pip-audit itself calls a
package that it was told nothing of "skipped", and the whole then "no known vulnerabilities".
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CODE = ("src", "examples")
# Seconds: for one answer, and for all of them.
ANSWER, ALL = 5, 120


def code_is_sound(*folders: str) -> bool:
    """Whether Bandit finds nothing; it prints what it finds."""
    words = [sys.executable, "-m", "bandit", "--quiet", "--recursive", "--configfile", "pyproject.toml"]
    words += folders
    return subprocess.run(words, cwd=ROOT).returncode == 0


def advisories(pinned: Path, *more: str) -> dict[str, Any] | str:
    """What pip-audit says of pinned versions, or why it said nothing."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "audit.json"
        words = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        words += [
            "--timeout",
            str(ANSWER),
            "--format",
            "json",
            "--output",
            str(out),
            "-r",
            str(pinned),
            *more,
        ]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=ALL)
        except subprocess.TimeoutExpired:
            return f"no answer within {ALL} s"
        if not out.exists() or not out.stat().st_size:
            return (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        said: dict[str, Any] = json.loads(out.read_text())
        return said


def verdict(said: dict[str, Any] | str) -> tuple[bool, str]:
    """(whether nothing bad is known, what to print).

    >>> verdict("no answer within 120 s")
    (True, 'pip-audit SKIPPED: no answer within 120 s')
    >>> verdict({"dependencies": [{"name": "a", "skip_reason": "not found on PyPI"}]})
    (True, 'pip-audit SKIPPED: nothing is known of any of 1 packages (not found on PyPI)')
    >>> bad = {"name": "b", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
    >>> verdict({"dependencies": [{"name": "a", "version": "1", "vulns": []}, bad]})
    (False, 'b 1: PYSEC-1, mended in 2')
    """
    if isinstance(said, str):
        return True, f"pip-audit SKIPPED: {said}"
    heard = [one for one in said["dependencies"] if "skip_reason" not in one]
    unheard = [one for one in said["dependencies"] if "skip_reason" in one]
    if not heard:
        why = unheard[0]["skip_reason"] if unheard else "none was named"
        return True, f"pip-audit SKIPPED: nothing is known of any of {len(unheard)} packages ({why})"
    found = [
        f"{one['name']} {one['version']}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'none'}"
        for one in heard
        for flaw in one["vulns"]
    ]
    lines = list(found) or [f"pip-audit: nothing known against {len(heard)} packages"]
    lines += [f"pip-audit: {one['name']} not audited: {one['skip_reason']}" for one in unheard]
    return not found, "\n".join(lines)


def main() -> int:
    """Audit the code and the lock."""
    sound = code_is_sound(*CODE)
    print("bandit: nothing found" if sound else "bandit: see above", flush=True)
    known, text = verdict(advisories(ROOT / "requirements.lock"))
    print(text)
    return 0 if sound and known else 1


if __name__ == "__main__":
    sys.exit(main())
