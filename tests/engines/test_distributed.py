"""Ranks of a process group: the loop's numbers whatever their count, and one line when one of them dies."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from ranks import SPEC, go
from shortened import SHORT
from toys import context, federation, learner

import kinfolk
from kinfolk.algorithms import ALGORITHMS
from kinfolk.codec import decode, encode
from kinfolk.engines import rpc
from kinfolk.engines.cohort import Limits
from kinfolk.engines.coordinator import Coordinator, fold_part
from kinfolk.engines.distributed import shares
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.errors import KinfolkError
from kinfolk.experiment.checkpoint import load_latest
from kinfolk.experiment.picture_files import read_sketches
from kinfolk.experiment.record import read_audit, read_rounds, read_scores
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import parse
from kinfolk.fold import Mean
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Task
from kinfolk.types import Message, leaves

HELPERS = Path(__file__).parents[1] / "helpers"
RANKS = HELPERS / "ranks.py"
PATHS = [str(Path(kinfolk.__file__).parents[1]), str(HELPERS)]
no_gloo = not dist.is_available() or not dist.is_gloo_available()
pytestmark = pytest.mark.skipif(no_gloo, reason="this PyTorch has no gloo")

MORTAL = ["model.name=ranks:Mortal", "algorithm.name=local", "run.rounds=6"]
# What is run by two ranks, and by the loop to compare with.
JOBS: dict[str, list[str]] = {
    **{
        name: [f"algorithm.name={name}", "run.participation=0.7", *SHORT.get(name, [])] for name in ALGORITHMS
    },
    # A body besides the head; a round of fedrep is worth two.
    **{
        name: [f"algorithm.name={name}", "run.participation=0.7", "model.name=mlp"]
        for name in ("fedper", "fedbabu", "lg_fedavg")
    },
    "fedrep": ["algorithm.name=fedrep", "run.participation=0.7", "model.name=mlp", "run.rounds=6"],
    "bare gossip": ["algorithm.name=gossip:Gossip"],
    "nearest": ["algorithm.name=nearest:Nearest", "run.absent=0.2"],
    "void": ["algorithm.name=local", "run.absent=0.35", "run.quorum=0.6", "run.rounds=5"],
    "spoilt": ["data.name=own", "algorithm.name=fedavg"],
    "batched": ["algorithm.name=fedavg", "engine.inner=batched", "engine.chunk=2", 'model.name="mlp"'],
    "adapters": ["model.name=mlp", "model.lora.rank=2", "model.train=head.*", "algorithm.name=ifca"],
    "moody": ["model.name=ranks:Moody", "algorithm.name=fedavg", "engine.inner=batched", "engine.chunk=2"],
    "longer": ["algorithm.name=local", "run.participation=0.7", "run.rounds=4"],
    # Sums of two and more, some of whose rounds are void.
    "answers": [
        *("algorithm.name=slfed", "algorithm.images.kind=noise", "algorithm.images.count=20"),
        *("algorithm.shares.min_members=1", "algorithm.shares.max_share=1.0"),
        *("run.absent=0.3", "run.quorum=0.6", "run.rounds=5"),
    ],
}
LOOP = ["engine.name=loop"]
# One of each kind: summed, kept by clients, sent between them, void, refused, gone on with. The rest is slow.
FEW = (
    "fedavg",
    "fedsgd",
    "local",
    "fesem",
    "bare gossip",
    "nearest",
    "void",
    "spoilt",
    "batched",
    "adapters",
    "longer",
    "answers",
)


def free_port() -> str:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return str(held.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**clean, "PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1", **more}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three ranks, of which rank 1 is killed; how each ended and what it said."""
    room = tmp_path_factory.mktemp("killed")
    (room / "spec.toml").write_text(SPEC)
    words = [word for change in MORTAL for word in ("--set", change)]
    done = subprocess.run(
        [
            sys.executable,
            RANKS,
            "fork",
            "3",
            "run",
            "spec.toml",
            "--out",
            "run",
            "--json",
            *words,
        ],
        cwd=room,
        env=environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), DIES="1"),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    said = [((room / f"out.{r}").read_text(), (room / f"err.{r}").read_text()) for r in range(3)]
    reached = load_latest(room / "run" / "checkpoints", (room / "run" / "spec.toml").read_text())[0]
    return {"ends": json.loads(done.stdout), "said": said, "folder": room / "run", "at": reached}


def launched(room: Path, jobs: dict[str, list[str]], *more: list[Any]) -> Path:
    """These jobs by two ranks in one launch of torchrun, and by the loop in this process."""
    for name, changes in jobs.items():
        go(str(room / f"{name}-loop"), [*changes, *LOOP])
    listed = [[str(room / name), changes, name == "longer"] for name, changes in jobs.items()]
    options = ["--nproc-per-node", "2", "--master-port", free_port()]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *options,
            str(RANKS),
            json.dumps([*listed, *more]),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    (room / "said.jsonl").write_text(done.stdout)
    return room


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is tried in every run of the tests."""
    room = tmp_path_factory.mktemp("ranks")
    go(str(room / "longer"), [*JOBS["longer"], *LOOP, "run.rounds=2"])
    return launched(room, {name: JOBS[name] for name in FEW})


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory, killed: dict[str, Any]) -> Path:
    """All other algorithms, and what is left of the killed run taken to its end."""
    room = tmp_path_factory.mktemp("others")
    go(str(room / "mortal-loop"), [*MORTAL, *LOOP])
    rest = {name: changes for name, changes in JOBS.items() if name not in FEW}
    return launched(room, rest, [str(killed["folder"]), MORTAL, True])


def saved(folder: Path) -> tuple[int, dict[str, Message], dict[str, Any]]:
    found, complaints = load_latest(folder / "checkpoints", (folder / "spec.toml").read_text())
    assert found is not None
    assert complaints == []
    return found.number, found.tensors, found.facts


def largest_difference(a: Path, b: Path) -> float:
    """Between two runs' states and memories; all that is no float must be equal."""
    (na, ta, fa), (nb, tb, fb) = saved(a), saved(b)
    assert (na, fa["voids"], fa["state"]) == (nb, fb["voids"], fb["state"])
    assert list(ta) == list(tb)
    worst = 0.0
    for entry in ta:
        mine, theirs = ({(k, n): t for k, n, t in leaves(m)} for m in (ta[entry], tb[entry]))
        assert list(mine) == list(theirs)
        for key, tensor in mine.items():
            assert (tensor.dtype, tensor.shape) == (theirs[key].dtype, theirs[key].shape)
            assert torch.isfinite(tensor).all()
            apart = (tensor.double() - theirs[key].double()).abs()
            worst = max(worst, float(apart.max()) if apart.numel() else 0.0)
    return worst


def told(folder: Path) -> list[Any]:
    """What the records say of each round, besides scores and seconds."""
    return [
        {k: v for k, v in fact.items() if k not in ("seconds", "summary", "info")}
        for fact in read_rounds(folder)
    ]


@pytest.mark.parametrize("name", FEW)
def test_two_ranks_agree_with_the_loop(room, name):
    agrees_with_the_loop(room, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in JOBS if name not in FEW])
def test_two_ranks_agree_with_the_loop_on_every_other_algorithm(others, name):
    agrees_with_the_loop(others, name)


def agrees_with_the_loop(room: Path, name: str) -> None:
    alone = room / f"{name}-loop"
    difference = largest_difference(room / name, alone)
    folds = name not in ("local", "void", "bare gossip", "gossip", "pens", "nearest", "longer")
    # Sums of sums are rounded once, at the end; whatever is not summed is the same to the bit.
    assert difference <= (1e-5 if folds else 0), difference
    assert told(room / name) == told(alone)
    pd.testing.assert_frame_equal(read_scores(room / name), read_scores(alone), rtol=0, atol=1e-5)
    seen, known = (read_sketches(folder) for folder in (room / name, alone))
    assert seen[["round", "client", "kind"]].equals(known[["round", "client", "kind"]])
    assert all(np.allclose(*pair, atol=1e-3) for pair in zip(seen["sketch"], known["sketch"], strict=True))


def test_what_a_turn_says_of_its_cohort_reaches_every_rank():
    rows = federation()
    here = RoundContext(Seed(5), 7, rows.clients, 0.3)
    told = rpc.unpack_context(rpc.pack_context(here), rows.clients)
    assert told == here
    assert told.cohort == here.cohort != here.clients


def test_the_jobs_are_not_trivial(room):
    assert any(fact["void"] for fact in told(room / "void-loop")[1:])
    assert not all(fact["void"] for fact in told(room / "void-loop")[1:])
    assert len(saved(room / "local")[1]["memory"]) >= 5
    assert "on each batched" in json.loads((room / "batched" / "run.json").read_text())["engine"]
    assert any(fact["bytes"]["gossip"]["across"] > 0 for fact in told(room / "bare gossip")[1:])


def test_what_clients_of_any_rank_have_answered_is_on_the_disk_of_rank_0(room):
    """Each line is there before the answer leaves, and stays when the round is void."""
    alone, ranks = ((room / name / "answered.jsonl").read_text() for name in ("answers-loop", "answers"))
    assert sorted(ranks.splitlines()) == sorted(alone.splitlines())
    assert len({json.loads(line)["client"] for line in ranks.splitlines()}) >= 4
    assert any(fact["void"] for fact in told(room / "answers")[1:])


def test_what_a_rank_refuses_is_in_the_log_of_rank_0(room):
    def refused(folder: Path) -> list[Any]:
        lines = [line for line in read_audit(folder) if line["event"] == "rejected"]
        return [(line["round"], line["client"], line["task"], line["reason"]) for line in lines]

    found = refused(room / "spoilt")
    assert found == refused(room / "spoilt-loop")
    assert {client for _, client, task, _ in found if task == "update"} == {"c3"}
    assert all(fact["answered"] == 4 for fact in told(room / "spoilt")[1:])


@pytest.mark.slow
def test_what_a_rank_falls_back_to_is_in_the_log_of_rank_0(others):
    warned = [line["text"] for line in read_audit(others / "moody") if line["event"] == "warning"]
    (text,) = [text for text in warned if "not today" in text]
    assert "'update' cannot be done for many clients in one call (layer Moody: not today)" in text


def test_a_folded_round_moves_one_total_a_rank_and_not_a_model_a_client(room):
    lines = [json.loads(line) for line in (room / "said.jsonl").read_text().splitlines()]
    sizes = {Path(line["folder"]).name: line["lengths"] for line in lines}
    model = 650 * 4
    assert sum(size > model for size in sizes["fedsgd"]) == 2, "one a round from the only other rank"
    assert sum(size > model for size in sizes["nearest"]) > 4, "a script that wants every reply gets them"


@pytest.mark.slow
def test_a_rank_that_dies_is_named_in_one_line(killed):
    assert killed["ends"][0] == 2
    assert killed["ends"][1] == -9
    assert killed["ends"][2] in (0, 2), "the others leave too"
    (out, errors), *rest = killed["said"]
    assert out == ""
    lines = errors.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: rank 1")
    assert "has ended; look at what it printed and add --resume to go on" in lines[0]
    assert rest == [("", "")] * 2, "only rank 0 speaks"


@pytest.mark.slow
def test_what_three_ranks_left_two_take_to_the_same_end(killed, others):
    assert 1 <= killed["at"].number < 6
    assert largest_difference(killed["folder"], others / "mortal-loop") == 0
    pd.testing.assert_frame_equal(
        read_scores(killed["folder"]), read_scores(others / "mortal-loop"), check_exact=True
    )


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch):
    """This process as the only rank."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", free_port())
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_one_rank_is_enough_and_goes_on_with_what_two_began(room, alone, tmp_path):
    go(str(tmp_path / "new"), JOBS["fedavg"])
    assert largest_difference(tmp_path / "new", room / "fedavg-loop") <= 1e-5
    go(str(room / "bare gossip"), [*JOBS["bare gossip"], "run.rounds=5"], resume=True)
    go(str(room / "local"), [*JOBS["local"], *LOOP, "run.rounds=5"], resume=True)
    for name in ("bare gossip", "local"):
        go(str(tmp_path / name), [*JOBS[name], *LOOP, "run.rounds=5"])
        assert largest_difference(room / name, tmp_path / name) == 0


def test_without_torchrun_the_error_says_how_to_start(monkeypatch, tmp_path):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(
        KinfolkError, match=r"engine.name = 'distributed': start it with torchrun .* -m kinfolk"
    ):
        run(parse(SPEC), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_ranks_that_do_not_come_are_an_error(alone, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(KinfolkError, match="the ranks did not find one another"):
        go(str(tmp_path / "run"), ["engine.timeout=1"])


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.integers(1, 5))
def test_shares_are_neighbours_and_hold_everyone_once(sizes, ranks):
    data = federation({f"c{i:02d}": n + 1 for i, n in enumerate(sizes)})
    held = shares(data, ranks)
    assert len(held) == ranks
    assert tuple(c for share in held for c in share) == data.clients
    rows = [sum(sizes[data.place(c)] + 1 for c in share) for share in held]
    assert max(rows) <= (sum(sizes) + len(sizes)) / ranks + max(sizes) + 1


class InParts:
    """Two loops, each with a share of the clients, as an engine of two ranks would have them."""

    name, note, device = "parts", "parts", torch.device("cpu")

    def __init__(self, loop: Loop) -> None:
        self.loop, self.table, self.memories = loop, loop.table, loop.memories

    def parts(self, request: Ask[Any], at: Any, limits: Limits) -> Any:
        for who in shares(self.loop.federation, 2):
            yield fold_part(self.loop, Ask(request.task, who, request.shared), request.fold, at, limits)


def test_a_fold_in_parts_counts_refuses_and_gives_what_a_whole_one_does():
    data, one = federation(), learner()
    train = one.train()

    def finish(carry: Message) -> Any:
        reply, memory = train.finish(carry)
        # Whoever has 7 rows replies with what is no number.
        spoilt = {
            n: t * torch.where(carry["rows"] == 7, float("nan"), 1.0) for n, t in reply["model"].items()
        }
        return {"model": spoilt}, memory

    def start(message: Message, memory: Message, facts: Any) -> Message:
        return {**train.start(message, memory, facts), "rows": facts.rows}

    table = {"t": Task(start, finish, train.passes, train.reply)}
    found = []
    for parted in (False, True):
        loop, log = Loop(data, table, Memories(lambda who: {})), []
        coordinator = Coordinator(
            InParts(loop) if parted else loop, lambda event, log=log, **facts: log.append(facts)
        )
        ask = Ask("t", data.clients, {"model": one.first}, fold=Mean("model", one.first))
        model = coordinator.perform(ask, context(data))
        found.append((model, coordinator.ledger.bytes, log, coordinator.answered, coordinator.failed))
    whole, parts = found
    assert whole[1:] == parts[1:]
    assert parts[3:] == ({"ann", "cat", "dan"}, {"bob"})
    assert [facts["client"] for facts in parts[2]] == ["bob"]
    assert all(torch.allclose(whole[0][n], parts[0][n], rtol=0, atol=1e-6) for n in whole[0])


def test_an_error_on_another_rank_is_one_here():
    with pytest.raises(KinfolkError, match=r"^rank 2: local.lr = -1: give more$"):
        rpc.opened(rpc.pack_error(KinfolkError("local.lr", -1, "give more"), {}), "rank 2")
    with pytest.raises(RuntimeError, match=r"^rank 1 failed at client cat: ZeroDivisionError: by nought\n"):
        rpc.opened(rpc.pack_error(ZeroDivisionError("by nought"), {"to": '["cat"]'}), "rank 1")


def test_messages_between_clients_keep_their_names_order_and_content():
    written = [(["b", "a"], {"m": {"w": torch.ones(2)}, "n": torch.tensor(3)}), (["b", "c"], {})]
    back = rpc.unpack_several(*decode(encode(*rpc.pack_several(written))))
    assert [label for label, _ in back] == [["b", "a"], ["b", "c"]]
    assert torch.equal(back[0][1]["m"]["w"], torch.ones(2))
    assert back[0][1]["n"] == 3
    assert back[1][1] == {}
