"""Breaks the code on purpose, one place at a time, and sees that a test fails: `make mutants [ONLY=word]`.

`mutants.toml` beside this file lists the breaks: a file under src/kinfolk, a text that stands in it once,
what is put in its place, and the tests that must then fail. A break that no test notices, or whose text is
not there any more, ends the command with exit code 1. Not part of CI: it takes minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Longer than any of the named tests takes; a break that makes one hang has been noticed too.
LIMIT = 600


def tried(mutant: dict[str, str | list[str]]) -> tuple[str, bool]:
    """(what became of a mutant, whether it was caught)."""
    path, old, new = (str(mutant[key]) for key in ("file", "old", "new"))
    text = (ROOT / "src/kinfolk" / path).read_text()
    if text.count(old) != 1:
        return f"stands {text.count(old)} times in {path}, expected once", False
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        (Path(folder) / "src/kinfolk" / path).write_text(text.replace(old, new))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant["tests"]]
        env = {**os.environ, "PYTHONPATH": f"{folder}/src", "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return "caught: the tests hang", True
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode == 1 and lines:
        return f"caught by {lines[0].split(' - ')[0].removeprefix('FAILED ')}", True
    return ("SURVIVED" if done.returncode == 0 else f"pytest ended with {done.returncode}"), False


def main() -> int:
    """Try all mutants whose name has the given word in it, two at a time."""
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    listed = tomllib.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]
    chosen = [mutant for mutant in listed if only in mutant["name"]]
    caught = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for mutant, (fate, good) in zip(chosen, pool.map(tried, chosen), strict=True):
            caught += good
            print(f"{mutant['name']}: {fate}", flush=True)
    print(f"{caught} of {len(chosen)} caught")
    return int(caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
