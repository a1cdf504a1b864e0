"""What one message phase costs over Flower, and where it goes: loopback, certificates, real processes.

    build/deploy-flower/bin/python benchmarks/deploy_flower.py --sites 4 8
    build/deploy-flower/bin/python benchmarks/deploy_flower.py --sites 4 --stock

Every site answers with what it was sent, at once, so that all the time is that of carrying. With `--stock`
Flower's own SuperExec starts an app for every message, as it would without Kinfolk's worker.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from kinfolk.deploy import flower_start
from kinfolk.deploy.agent import VARIABLE as SITE
from kinfolk.deploy.agent import Agent
from kinfolk.deploy.flower_kits import Card
from kinfolk.deploy.kits import Project, provision
from kinfolk.deploy.local import ADMIN, free_port
from kinfolk.deploy.submit import session
from kinfolk.deploy.supervise import end
from kinfolk.errors import KinfolkError
from kinfolk.experiment.spec import parse

ASKED = "KINFOLK_BENCHMARK"  # {"phases", "bytes", "out"} for the process that plays the run


def app(grid, context):
    """In place of the lead: so many phases, and when each message was given away and answered."""
    from kinfolk.deploy.flower_lead import Calls

    told = json.loads(os.environ[ASKED])
    calls = Calls(grid, Card.read(Path(os.environ[flower_start.KIT])))
    while len(calls.nodes()) < len(calls.sites):
        time.sleep(0.5)
    with open(told["out"], "w") as out:
        for phase in range(told["phases"] + 1):
            data = phase.to_bytes(4, "big") + os.urandom(told["bytes"])
            began = time.monotonic()
            for who, answer in calls.ask(dict.fromkeys(calls.sites.values(), data), 120.0):
                assert answer == data, answer
                print(json.dumps([phase, who, began, time.monotonic()]), file=out, flush=True)


def measured(folder: Path, count: int, phases: int, size: int, stock: bool) -> None:
    """One federation, one line of the table."""
    names = [f"site-{number}" for number in range(count)]
    project = Project("bench", "localhost", free_port(), tuple(names), (ADMIN,), engine="flower")
    kits, out, arrived = provision(project, folder / "kits"), folder / "out", dict[tuple[int, str], float]()
    with ExitStack() as stack:
        asked = {ASKED: json.dumps({"phases": phases, "bytes": size, "out": str(out)})}
        card = Card.read(kits["localhost"])
        started(stack, flower_start.commands(card, card.port)["superlink"], kits["localhost"])
        path = f"import sys; sys.path.append({str(Path(__file__).parent)!r})"
        code = f"{path}; from kinfolk.deploy.flower_worker import main; main('deploy_flower')"
        words = [sys.executable, "-c", code, str(os.getpid())]
        started(stack, words, kits["localhost"], {**asked, flower_start.RUNTIME: str(card.port)})
        for name in names:
            door = folder / name / "site.sock"
            stack.enter_context(Agent(answering(name, arrived), door))
            start_site(stack, kits[name], {SITE: str(door)}, stock)
        opened = connected(stack, kits[ADMIN])
        job = opened.start(parse('[data]\nname = "digits"'), "bench", names, False, 120.0)
        while not opened.get_job_meta(job)["status"].startswith("FINISHED"):
            time.sleep(1)
        assert opened.get_job_meta(job)["status"] == "FINISHED:COMPLETED", opened.get_job_meta(job)
    show(out, arrived, count, size, stock)


def answering(name, arrived):
    """A site that notes when a message is there, and answers it."""

    def answer(data: bytes) -> bytes:
        arrived[int.from_bytes(data[:4], "big"), name] = time.monotonic()
        return data

    return answer


def start_site(stack: ExitStack, kit: Path, more: dict[str, str], stock: bool) -> None:
    """A node and its worker; with `stock` a node and Flower's SuperExec."""
    if not stock:
        started(stack, ["bash", str(kit / "startup" / "sub_start.sh")], kit, more)
        return
    card, port = Card.read(kit), free_port()
    started(
        stack,
        ["bash", "-c", 'sleep 8; exec "$@"', "bash", *flower_start.commands(card, port)["supernode"]],
        kit,
    )
    superexec = [str(Path(sys.executable).parent / "flower-superexec"), "--insecure"]
    superexec += ["--runtime-api-address", f"127.0.0.1:{port}"]
    superexec += ["--superexec-auth-secret-file", str(card.file("superexec.secret"))]
    started(stack, superexec, kit, more)


def started(stack: ExitStack, command: list[str], kit: Path, more: dict[str, str] | None = None) -> None:
    """A process that ends with this one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "FLWR_HOME": str(kit / "flwr"), flower_start.KIT: str(kit), **flower_start.QUIET}
    with open(kit / "engine.log", "ab") as log:
        environment = {**os.environ, **own, **(more or {})}
        running = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    stack.callback(end, running)


def connected(stack: ExitStack, kit: Path):
    """A session, as soon as the server is there."""
    for _ in range(60):
        try:
            return stack.enter_context(session(kit))
        except KinfolkError:
            time.sleep(1)
    raise SystemExit("the server has not come")


def show(out: Path, arrived: dict[tuple[int, str], float], count: int, size: int, stock: bool) -> None:
    """Medians over phases; the first is left out, as its nodes fetch the run's app."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    there = [arrived[phase, who] - began for phase, who, began, seen in lines if phase]
    back = [seen - arrived[phase, who] for phase, who, began, seen in lines if phase]
    whole = [
        max(seen - began for phase, _, began, seen in lines if phase == number)
        for number in sorted({phase for phase, *_ in lines} - {0})
    ]
    told = (
        statistics.median(whole),
        min(whole),
        max(whole),
        statistics.median(there),
        statistics.median(back),
    )
    kind = "SuperExec" if stock else "worker"
    print(
        f"| {kind} | {count} | {size} | {len(whole)} | " + " | ".join(f"{one:.2f}" for one in told) + " |",
        flush=True,
    )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--sites", type=int, nargs="+", default=[4, 8])
    asked.add_argument("--bytes", type=int, nargs="+", default=[250_000])
    asked.add_argument("--phases", type=int, default=10)
    asked.add_argument("--stock", action="store_true")
    given = asked.parse_args()
    flower_start.needed()
    print("| apps run by | sites | bytes | phases | phase, s | least | most | to the site | back |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for count in given.sites:
        for size in given.bytes:
            with tempfile.TemporaryDirectory() as folder:
                measured(Path(folder), count, given.phases, size, given.stock)


if __name__ == "__main__":
    main()
