"""Kills deployed runs at random over NVFlare, and sees that each ends as if left alone: `make chaos-deploy`.

(CHAOS="--runs 2 --parallel 1 --seed 5 --rounds 100 --out FOLDER" for some of it.) A run is a federation of
its own: a server and eight sites with certificates, in processes of their own, a hundred rounds of FedAvg or
FeSEM on digits. Every few seconds something is killed, by turns in random order: a site's job process, its
client process, its own process, all of a site, the server's job process, NVFlare's server, all of the server;
or a site's line is cut, or a site frozen, for some seconds. One in five comes before the run has moved again.
At the end nothing may be lost: state, every score of every round, every client's part in every round and what
sites remember are those of the engine `loop`, bit for bit. Runs without kills come first, one a method.

What came of each run is a line of JSON in results.jsonl as soon as it has ended. Exit code 1 if any differs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

from deployed import federated, memory_file, spec_of
from small_runs import equal, saved
from world import APART, CLIENT, SERVER, SERVER_JOB, SERVES, SITE_JOB, World, apart

from kinfolk.deploy.keep import Keeper
from kinfolk.experiment.record import read_rounds, read_scores
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import dump

# What is done, by name; the last two for so many seconds.
KINDS = (
    "site job",
    "site client",
    "site process",
    "whole site",
    "server job",
    "server engine",
    "whole server",
    "line cut",
    "site frozen",
)
AWAY = (3.0, 15.0)
# Seconds between what is done and the next, once the run moves again; how many come without waiting for that.
BETWEEN, EAGER = (1.0, 5.0), 0.2
# Seconds that a run may take, and that it may stand still after a fault before the next one comes anyhow.
LONGEST, STILL = 1500.0, 120.0
# Of a record of a round, what must be the same.
SAME = ("round", "summary", "cohort", "answered", "void", "trained")


@dataclass
class Came:
    """What came of one run."""

    run: int
    method: str
    rounds: int
    lines: bool
    kills: dict[str, int] = field(default_factory=dict)
    jobs: int = 0
    seconds: float = 0.0
    worst: float = 0.0  # longest time without a new round
    differs: str = "did not end"


@dataclass
class Doom:
    """Kills by a seed until it is told to stop."""

    world: World
    folder: Path  # of the run
    draw: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    worst: float = 0.0
    over: Event = field(default_factory=Event)

    def go(self) -> None:
        """In a thread of its own."""
        deck: list[str] = []
        while self._moves() and not self.over.wait(self.draw.uniform(*BETWEEN)):
            if not deck:
                deck = [kind for kind in KINDS if kind != "line cut" or self.world.lines]
                self.draw.shuffle(deck)
            kind, site = deck.pop(), self.draw.choice(list(self.world.sites))
            said = f"{time.strftime('%H:%M:%S')} round {done(self.folder)}: {kind} of {site}"
            print(said, flush=True)
            if self.strike(kind, site):
                self.kills[kind] += 1

    def strike(self, kind: str, site: str) -> bool:
        """Do one of KINDS; whether there was anything to do it to."""
        world, modules = self.world, {"site job": SITE_JOB, "site client": CLIENT}
        if kind in modules:
            return world.kill(site, modules[kind])
        if kind in ("server job", "server engine"):
            return world.kill(SERVER, SERVER_JOB if kind == "server job" else SERVES)
        if kind in ("line cut", "site frozen"):
            (world.cut if kind == "line cut" else world.freeze)(site, self.draw.uniform(*AWAY))
            return True
        name = SERVER if kind == "whole server" else site
        if kind == "site process":
            world.orphan(name)
        else:
            world.kill(name)
        world.restart(name, self.draw.uniform(0.2, 2.0))
        return True

    def _moves(self) -> bool:
        """Wait until a round was done since, unless impatient; whether to go on."""
        before, began = done(self.folder), time.monotonic()
        if self.kills and self.draw.random() < EAGER:
            return not self.over.is_set()
        while not self.over.is_set() and done(self.folder) <= before:
            if time.monotonic() - began > STILL:
                break
            self.over.wait(0.25)
        self.worst = max(self.worst, time.monotonic() - began)
        return not self.over.is_set()


def done(folder: Path) -> int:
    """The last round that a run's folder tells of; -1 for none."""
    try:
        return len((folder / "rounds.jsonl").read_bytes().splitlines()) - 1
    except OSError:
        return -1


def ended(folder: Path) -> bool:
    """Whether a run has come to its end."""
    try:
        return bool(json.loads((folder / "run.json").read_text())["status"] == "finished")
    except (OSError, ValueError, KeyError):
        return False


def play(came: Came, seed: int, folder: Path, kills: bool) -> None:
    """One run in this process, and what came of it."""
    spec = spec_of(came.method, came.rounds, checkpoint_every=2)
    theirs = run(spec, folder / "loop")
    written = folder / "spec.toml"
    written.write_text(dump(spec))
    sites = list(federated(spec).clients)
    world = World(folder, sites, written, came.lines)
    began, deadline = time.monotonic(), time.monotonic() + LONGEST
    ours = folder / "runs" / "run"
    doom = Doom(world, ours, random.Random(f"{seed}-{came.run}"))
    killer = Thread(target=doom.go, daemon=True)

    def watch() -> bool:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not ended after {LONGEST:g} s, at round {done(ours)}")
        return ended(ours)

    keeper = Keeper(world.admin, spec, "run", sites, say=said, watch=watch)
    try:
        world.start()
        if kills:
            killer.start()
        keeper.keep()
        doom.over.set()
        if kills:
            killer.join()
        came.differs = differs(folder, theirs.memories)
    except Exception as error:
        came.differs = f"{type(error).__name__}: {error}"
    finally:
        doom.over.set()
        came.kills, came.jobs, came.worst = dict(doom.kills), len(keeper.jobs), round(doom.worst, 1)
        came.seconds = round(time.monotonic() - began, 1)
        world.close()


def said(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def differs(folder: Path, memories: Any) -> str:
    """What of a deployed run is not as `loop` has it; empty when all is."""
    loop, ours = folder / "loop", folder / "runs" / "run"
    if not equal(saved(loop)[1]["state"], saved(ours)[1]["state"]):
        return "state"
    if not read_scores(loop).equals(read_scores(ours)):
        return "scores"
    for one, other in zip(read_rounds(loop), read_rounds(ours), strict=True):
        if wrong := [key for key in SAME if one.get(key) != other.get(key)]:
            return f"round {one['round']}: {', '.join(wrong)}"
    for who, theirs in memories.items():
        own = next((folder / "kits" / who / "memory").glob("*/memory.safetensors"), None)
        if own is not None and not equal(memory_file(own), theirs):
            return f"memory of {who}"
    return ""


def folder_of(came: Came, out: Path) -> Path:
    """Of a run; those without kills have numbers below 0."""
    return out / (f"run{came.run}" if came.run >= 0 else f"calm{-came.run}")


def apart_or_here(came: Came, seed: int, out: Path) -> subprocess.Popen[bytes]:
    """One run in a process of its own, in namespaces where there are any."""
    folder = folder_of(came, out)
    folder.mkdir()
    (folder / "came.json").write_text(json.dumps(asdict(came)))
    words = [sys.executable, __file__, "--one", str(folder), "--seed", str(seed)]
    with open(folder / "log", "wb") as log:
        command = [*(APART if came.lines else ()), *words]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def several(plan: Sequence[Came], parallel: int, seed: int, out: Path) -> list[Came]:
    """Runs side by side; what came of each is written as soon as it has ended."""
    waiting, going, came = list(plan), list[tuple[Came, subprocess.Popen[bytes]]](), list[Came]()
    while waiting or going:
        while waiting and len(going) < parallel:
            one = waiting.pop(0)
            going.append((one, apart_or_here(one, seed, out)))
        time.sleep(0.5)
        for one, process in [pair for pair in going if pair[1].poll() is not None]:
            going.remove((one, process))
            one = Came(**json.loads((folder_of(one, out) / "came.json").read_text()))
            came.append(one)
            with open(out / "results.jsonl", "a") as file:
                file.write(json.dumps(asdict(one)) + "\n")
            print(row(one), flush=True)
    return came


def row(came: Came) -> str:
    """A line of the table."""
    kills = " ".join(f"{came.kills.get(kind, 0):>3}" for kind in KINDS)
    end = "equal" if not came.differs else f"DIFFERS: {came.differs}"
    costs = f"{came.jobs:>5} {came.seconds:>8.0f} {came.worst:>7.0f}"
    return f"{came.run:>3} {came.method:<10} {kills} {costs}  {end}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=20, help="runs with kills; methods by turns")
    parser.add_argument("--parallel", type=int, default=1, help="federations side by side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fesem,k=2"])
    parser.add_argument("--calm", type=int, default=1, help="runs without kills of each method, first")
    parser.add_argument(
        "--out", type=Path, help="where folders and results.jsonl go; else a temporary folder"
    )
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        came = Came(**json.loads((given.one / "came.json").read_text()))
        play(came, given.seed, given.one, kills=came.run >= 0)
        (given.one / "came.json").write_text(json.dumps(asdict(came)))
        return 0
    out = given.out or Path(tempfile.mkdtemp(prefix="chaos-deploy-"))
    out.mkdir(parents=True, exist_ok=True)
    lines = apart()
    methods = [given.methods[i % len(given.methods)] for i in range(given.runs)]
    calm = [Came(-1 - i, m, given.rounds, lines) for i, m in enumerate(given.methods * given.calm)]
    wild = [Came(i, m, given.rounds, lines) for i, m in enumerate(methods)]
    print("namespaces: lines are cut" if lines else "no namespaces here: no line is cut")
    for letter, kind in zip("abcdefghi", KINDS, strict=True):
        print(f"  {letter}: {kind}")
    heads = " ".join(f"{letter:>3}" for letter in "abcdefghi")
    print(f"run method     {heads}  jobs  seconds  still s  end")
    came = several([*calm, *wild], given.parallel, given.seed, out)
    total = Counter[str]()
    for one in came:
        total.update(one.kills)
    print(f"{len(came)} runs, {sum(total.values())} faults, {sum(one.jobs for one in came)} jobs:", end=" ")
    wrong = [one for one in came if one.differs]
    print("all as `loop` has it" if not wrong else f"{len(wrong)} differ; see {out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
