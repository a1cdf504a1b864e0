"""Breaks the code on purpose, one place at a time, and sees that a test fails: `make mutants [ONLY=word]`.

`mutants.toml` beside this file lists the breaks: a file under src/kinfolk, a text that stands in it once,
what is put in its place, and the tests that must then fail. A break that no test notices, or whose text is
not there any more, ends the command with exit code 1. Not part of CI: it takes minutes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

# What tests import that is not ours, loaded once: every break is tried in a process forked from this one.
import matplotlib  # noqa: F401
import pandas  # noqa: F401
import pytest
import sklearn.cluster  # noqa: F401
import torch

ROOT = Path(__file__).parents[1]
# Longer than any of the named tests takes; a break that makes one hang has been noticed too.
LIMIT = 600


class Notes:
    """Which test failed first."""

    failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def tried(mutant: dict[str, Any]) -> tuple[str, bool]:
    """(what became of a mutant, whether it was caught); in a process of its own."""
    path, old, new = (str(mutant[key]) for key in ("file", "old", "new"))
    place = ROOT / "src/kinfolk" / path
    text = place.read_text() if place.exists() else ""
    if text.count(old) != 1:
        return f"stands {text.count(old)} times in {path}, expected once", False
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        (Path(folder) / "src/kinfolk" / path).write_text(text.replace(old, new))
        os.environ["PYTHONPATH"] = f"{folder}/src"  # for processes that tests start
        sys.path.insert(0, f"{folder}/src")
        os.chdir(ROOT)
        notes = Notes()
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(LIMIT)
        try:
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                end = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *mutant["tests"]], [notes])
        except TimeoutError:
            return "caught: the tests hang", True
        finally:
            signal.alarm(0)
    if end == pytest.ExitCode.TESTS_FAILED and notes.failed:
        return f"caught by {notes.failed}", True
    return ("SURVIVED" if end == pytest.ExitCode.OK else f"pytest ended with {end}"), False


def apart(mutant: dict[str, Any]) -> tuple[str, bool]:
    """`tried` in a process forked from this one, which may start processes itself, as tests do."""
    fork = get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=lambda: theirs.send(tried(mutant)))
    child.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return "the process ended unexpectedly", False
    finally:
        child.join()


def _too_long(*_: object) -> None:
    raise TimeoutError


def main() -> int:
    """Try all mutants whose name has the given word in it, as many at a time as there are cores."""
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    torch.set_num_threads(1)
    listed = tomllib.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]
    chosen = [mutant for mutant in listed if only in mutant["name"]]
    caught = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, (fate, good) in zip(chosen, pool.map(apart, chosen), strict=True):
            caught += good
            print(f"{mutant['name']}: {fate}", flush=True)
    print(f"{caught} of {len(chosen)} caught")
    return int(caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
