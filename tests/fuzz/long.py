"""Fuzzes every place for so many seconds, and prints what that found: `make fuzz [SECONDS=60] [ONLY=word]`.

With Atheris inputs are led to code that none has reached (`pip install kinfolk[fuzz]`, Linux); without it
they are changed at random. What was found lies in build/fuzz, a file for each input; with anything found it
exits with 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

try:
    import atheris
except ImportError:
    atheris = None

with atheris.instrument_imports(include=["kinfolk"]) if atheris else nullcontext():
    from mutate import mutated
    from targets import Finding, Target, targets, tried

FOUND = Path("build/fuzz")
# Longer than any input takes on a busy machine, in seconds; and more than all that libraries hold, in MiB.
HANGS, ROOM = 60, 4000
MEMORY = Path("/dev/shm")  # a disk would be slower than what is fuzzed


def main() -> int:
    """Fuzz each place in a process of its own, and print the table."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("seconds", type=int)
    ask.add_argument("only", nargs="?", default="")
    given = ask.parse_args()
    how = "by Atheris" if atheris else "by changes at random"
    print(
        f"{how}\n\n| place | seconds | inputs | taken | findings |\n| --- | --- | --- | --- | --- |",
        flush=True,
    )
    fork = get_context("fork")  # imported, and made to be watched, once
    many = 0
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as room:
        listing = fork.Process(target=_names, args=(Path(room),))
        listing.start()
        listing.join()
        for name in json.loads((Path(room) / "names").read_text()):
            if given.only in name:
                own = Path(room) / "places" / name
                child = fork.Process(target=_fuzz, args=(name, given.seconds, own))
                child.start()
                child.join()
                many += _line(name, own / "told.json", child.exitcode or 0)
    return int(many > 0)


def _names(room: Path) -> None:
    (room / "names").write_text(json.dumps([*targets(room / "sound")]))


def _line(name: str, counts: Path, ended: int) -> int:
    """Print what became of one place, and give how much was found."""
    told = json.loads(counts.read_text())
    for text, file in told["findings"].items():
        print(f"{name}: {text} ({file})", file=sys.stderr)
    if ended:
        print(f"{name}: ended with {ended}, see above", file=sys.stderr)
    many = len(told["findings"]) + bool(ended)
    print(f"| {name} | {told['seconds']:.0f} | {told['inputs']:,} | {told['taken']:,} | {many} |", flush=True)
    return many


class Fuzzing:
    """One place, and what its inputs have come to."""

    def __init__(self, name: str, target: Target, room: Path) -> None:
        self.name, self.target, self.room = name, target, room
        self.began = time.monotonic()
        self.told: dict[str, Any] = {"seconds": 0.0, "inputs": 0, "taken": 0, "findings": {}}
        self.tell()

    def take(self, data: bytes) -> None:
        """Try an input, and keep it if it is a finding of a kind that was not seen yet."""
        self.told["inputs"] += 1
        try:
            self.told["taken"] += tried(self.target, data, self.room / "in")
        except Finding as found:
            if (kind := _kind(found)) not in self.told["findings"]:
                file = FOUND / f"{self.name}-{hashlib.sha256(data).hexdigest()[:12]}"
                file.write_bytes(data)
                self.told["findings"][kind] = str(file)
        if time.monotonic() - self.began > self.told["seconds"] + 0.5:
            self.tell()

    def tell(self) -> None:
        """Write down where it stands: Atheris ends the process without a word."""
        self.told["seconds"] = time.monotonic() - self.began
        text = json.dumps(self.told)
        (self.room / "told").write_text(text)
        os.replace(self.room / "told", self.room / "told.json")

    def changed(self, data: bytes, most: int, seed: int) -> bytes:
        """Another input: every second time by what is known of the format."""
        if seed % 2:
            return mutated((data, *self.target.seeds), Random(seed))[:most]
        return atheris.Mutate(data, most)  # type: ignore[no-any-return]


def _fuzz(name: str, seconds: int, room: Path) -> None:
    """Fuzz one place in this process."""
    FOUND.mkdir(parents=True, exist_ok=True)
    target = targets(room / "sound")[name]
    fuzzing = Fuzzing(name, target, room)
    if atheris:
        _guided(fuzzing.take, fuzzing.changed, target.seeds, seconds, room)
        return
    chance = Random(int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]))
    while time.monotonic() < fuzzing.began + seconds:
        fuzzing.take(mutated(target.seeds, chance))
    fuzzing.tell()


def _kind(found: Exception) -> str:
    """What was found, by the place in the code where it came up."""
    frames = traceback.extract_tb(found.__cause__.__traceback__) if found.__cause__ else []
    ours = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if "kinfolk" in frame.filename]
    return f"{type(found.__cause__).__name__} at {ours[-1] if ours else '?'}"


def _guided(
    take: Callable[[bytes], None],
    changed: Callable[[bytes, int, int], bytes],
    seeds: tuple[bytes, ...],
    seconds: int,
    room: Path,
) -> None:
    """Atheris, which ends the process; what it prints is no part of the table."""
    corpus = room / "corpus"
    corpus.mkdir()
    for number, data in enumerate(seeds):
        (corpus / str(number)).write_bytes(data)
    options = [f"-max_total_time={seconds}", f"-timeout={HANGS}", f"-rss_limit_mb={ROOM}", "-max_len=100000"]
    atheris.Setup(
        [
            sys.argv[0],
            *options,
            "-close_fd_mask=1",
            "-verbosity=0",
            f"-artifact_prefix={FOUND}/",
            str(corpus),
        ],
        take,
        custom_mutator=changed,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
