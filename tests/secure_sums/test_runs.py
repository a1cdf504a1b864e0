"""Secure sums in runs: refused where they cannot serve, told where they give none, resumed alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small_runs import SPEC, assert_same_end, digits, equal, go, rounds_of, saved

from kinfolk.algorithms import ALGORITHMS
from kinfolk.errors import BrokeDown, KinfolkError
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.ranks import table_of
from kinfolk.experiment.spec import override
from kinfolk.secure_sums.holding import LOG, trees

ON = "secure_sums.scheme=additive64"
SERVED = (
    {"fedavg", "fedavg_no_buffers", "fedavg_tuned", "fedprox", "feddist", "feddws", "feddane", "fedsgd"}
    | {"fedem", "ifca", "apfl", "ditto", "fedadagrad", "fedadam", "fedala", "fedavgm", "fedyogi", "knn_per"}
    | {"fedper", "fedrep", "fedbabu", "lg_fedavg", "fedbn"}
)  # fmt: skip


def audit(folder: Path):
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_only_methods_that_need_means_alone_are_served(name):
    spec = override(SPEC, [ON, f"algorithm.name={name}", "data.clients=8", "model.name=mlp"])
    rows = digits(spec.data, spec.run.seed)
    if name in SERVED:
        parts = build_parts(spec, rows)
        # Whatever a client of theirs is asked, it has no task that replies a model.
        assert not [task for task, entry in table_of(parts).items() if trees(entry)]
    else:
        with pytest.raises(KinfolkError, match=rf"^secure_sums.scheme = 'additive64': {name} looks at"):
            build_parts(spec, rows)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("algorithm.aggregate.name=median", "algorithm.aggregate.name = 'median': takes single models"),
        ("algorithm.aggregate.name=krum", "algorithm.aggregate."),
        ("secure_sums.min_members=5", "secure_sums.min_members = 5: a round has 4 clients"),
        ("secure_sums.min_members=1", "secure_sums.min_members = 1: give 2 or more"),
        ("secure_sums.scheme=plain", "secure_sums.scheme = 'plain': give one of off, additive64, shamir61"),
        ("secure_sums.bits=48", "secure_sums.bits = 48: 4 clients with numbers up to 16384 overflow"),
        ("secure_sums.bits=49", "secure_sums.bits = 49: give 8 to 48"),
        ("privacy.mode=local", "privacy.mode = 'local': clips and counts single updates"),
        ("secure_sums.limit=-1", "secure_sums.limit = -1.0: give 0 or more"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, change, line):
    with pytest.raises(KinfolkError) as told:
        go(tmp_path / "run", ON, change)
    assert str(told.value).startswith(line)
    assert not (tmp_path / "run" / "audit.jsonl").exists()


def test_a_run_that_is_resumed_ends_as_one_that_was_not(tmp_path):
    for name in ("whole", "cut"):
        go(tmp_path / name, ON)
    # The last round is played again, after its sums were answered and noted.
    last = max((tmp_path / "cut" / "checkpoints").iterdir())
    for path in (tmp_path / "cut" / "checkpoints").glob(f"{last.stem}*"):
        path.unlink() if path.is_file() else [*map(Path.unlink, path.iterdir()), path.rmdir()]
    before = (tmp_path / "cut" / "answered.jsonl").read_bytes()
    go(tmp_path / "cut", ON, resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "cut")
    assert (tmp_path / "cut" / "answered.jsonl").read_bytes() == before
    assert {json.loads(line)["entry"] for line in before.splitlines()} == {LOG}
    assert len(before.splitlines()) == 3 * 4


def test_models_end_bit_equal_whatever_the_masks(tmp_path):
    ends = [saved(go(tmp_path / f"{i}", ON, *more).folder)[1]["state"] for i, more in enumerate(
        [(), (), ("engine.name=wire",)]
    )]  # fmt: skip
    assert equal(ends[0], ends[1])
    assert equal(ends[0], ends[2])
    assert not equal(ends[0], saved(go(tmp_path / "plain").folder)[1]["state"])


@pytest.mark.parametrize("way", ["absent", "participation", "attack", "tuned"])
def test_it_goes_with_what_else_a_run_may_be(tmp_path, way):
    changes = {
        "absent": ("run.absent=0.3",),
        "participation": ("run.participation=0.5", "engine.name=batched"),
        "attack": ("run.attack=scaled", "run.attackers=0.2", "run.on_divergence=exclude"),
        "tuned": ("algorithm.name=fedavg_tuned", "run.pictures=models"),
    }[way]
    found = go(tmp_path / "run", ON, "data.clients=8", *changes)
    assert found.rounds == 3
    moved = found.state.model["head.weight"] - torch.zeros(())
    assert bool(moved.any())
    assert not [line for line in audit(tmp_path / "run") if line["event"] in ("no_sum", "left_out")]


def test_who_is_in_no_sum_has_not_taken_part(tmp_path):
    # Weights so small a range holds no model: nobody shares, and nothing of a model is told.
    with pytest.raises(BrokeDown, match="3 rounds in a row brought 0 usable replies of 4"):
        go(tmp_path / "run", ON, "secure_sums.limit=0.001")
    lines = audit(tmp_path / "run")
    assert {line["reason"] for line in lines if line["event"] == "left_out"} == {
        "its model is not finite or out of range, and is not shared"
    }
    assert [line["event"] for line in lines].count("void") == 3
    facts = rounds_of(tmp_path / "run")[1]
    assert (facts["answered"], facts["void"]) == (0, True)


def test_bytes_are_counted_where_they_go(tmp_path):
    go(tmp_path / "plain", "run.rounds=1")
    go(tmp_path / "secure", ON, "run.rounds=1")
    plain, secure = (rounds_of(tmp_path / name)[1]["bytes"] for name in ("plain", "secure"))
    model = plain["update"]["up"] // 4
    assert secure["update"] == {"down": plain["update"]["down"], "up": 4 * 8}  # whether it is in range
    # Each answer: a word of 8 bytes for each float32, the hash of its exchange, of all, and of each sender's.
    assert secure["sums.answer.update"]["up"] == 4 * (2 * model + 32 + 32 + 4 * 32)
    # Each share: exchange, salt and seed, and four commitments.
    assert secure["sums.share"] == {"across": 4 * 3 * (3 * 32 + 4 * 32)}
