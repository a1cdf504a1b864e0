"""How many groups: small federations with four groups and with none, and what the choice may look at."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from kinfolk.errors import KinfolkError
from kinfolk.experiment.budget import head_start
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.choose_k import (
    Trial,
    choose_k,
    common_rounds,
    or_fesem,
    sample_clients,
    short,
    validated,
)
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import override
from kinfolk.federation.federation import Split
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.sources import build
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed

SETS = ["data.clients=12", "model.name=logistic", "local.epochs=2", "local.batch=24", "engine.name=batched"]
SMALL = or_fesem(override(Experiment(), SETS))
FEW = Trial((2, 4, 5), rounds=1, seeds=2)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four")
    return folder, choose_k(SMALL, folder, FEW)


def test_four_rotations_are_four_groups(four):
    folder, facts = four
    assert facts["recommended"] == 4, facts["reason"]
    assert facts["confidence"] == "high", facts["reason"]
    assert facts["named"] == {"accuracy": 4, "gap statistic": 4, "silhouette": 4}
    assert facts["reason"].startswith("4 groups: +")
    assert facts["counted"] == [4, 4]
    assert json.loads((folder / "choose-k.json").read_text()) == facts
    rows = {row["k"]: row for row in facts["rows"]}
    assert list(rows) == [1, 2, 4, 5]  # one group is always tried
    assert rows[4]["stability"] == 1.0
    assert rows[4]["silhouette"]["mean"] > max(rows[2]["silhouette"]["mean"], 0.1)
    assert rows[4]["spread"]["mean"] < rows[1]["spread"]["mean"]
    truth = build(replace(SMALL.data, seed=0), Seed(0)).truth.tolist()
    found = list(facts["groups"]["4"][0].values())
    assert len(set(zip(found, truth, strict=True))) == 4
    assert "a fifth of the training rows is held out" in facts["notes"][0]


def test_without_groups_the_answer_is_one(tmp_path):
    facts = choose_k(override(SMALL, ["data.shift=none"]), tmp_path, Trial((2, 4), rounds=1, seeds=2))
    assert facts["recommended"] == 1, facts["reason"]
    assert facts["reason"].startswith("One group")
    assert facts["counted"] == [1, 1]


MDICFL = ["algorithm.name=mdicfl", "algorithm.pseudo.samples=3", "algorithm.search.iterations=20"]


@pytest.mark.parametrize(("shift", "wanted"), [("rotation", 4), ("none", 1)])
def test_mdicfl_gets_its_rounds_as_one_group_on_top(shift, wanted, tmp_path):
    spec = override(SMALL, [*MDICFL, f"data.shift={shift}"])
    facts = choose_k(spec, tmp_path, Trial((2, 4), rounds=2, seeds=2))
    assert facts["recommended"] == wanted, facts["reason"]
    assert facts["rounds"] == 5, "three of them as one group"
    assert facts["rows"][0]["spread"] is None
    assert (facts["rows"][-1]["stability"] == 1.0) == (wanted == 4)


@pytest.mark.parametrize(
    ("change", "extra"),
    [
        ("algorithm.start.shared_rounds=7", 7),
        ("algorithm.start.name=random_partition", 0),
        ("algorithm.name=ifca", 0),
    ],
)
def test_only_rounds_as_one_group_are_extra(change, extra):
    spec = override(Experiment(), ["algorithm.name=mdicfl", "local.epochs=2", change])
    assert common_rounds(spec) == extra
    assert short(spec, Trial(rounds=4), 2, 0).run.rounds == 4 + extra
    # All K have rounds for the five epochs that several groups are split by, two epochs a round.
    start = head_start(build_parts(spec))
    assert start == (3 if change == "algorithm.start.shared_rounds=7" else 0)
    assert {short(spec, Trial(rounds=4), k, 0, start).run.rounds for k in (1, 2)} == {4 + extra + start}
    shared = ["algorithm.start.name=shared_kmeans", "algorithm.start.shared_rounds=2"]
    assert common_rounds(override(SMALL, shared)) == 2, "FeSEM has such rounds too"
    assert common_rounds(SMALL) == 0


def test_test_rows_play_no_part(tmp_path):
    made, _, _ = validated(SMALL, None, Seed(0))
    test = torch.unique(made.splits["test"].row)
    y = made.y.clone()
    y[test] = (y[test] + 1) % 10
    other = replace(made, y=y)
    both = [
        choose_k(SMALL, tmp_path / str(i), Trial((4,), rounds=1, seeds=1), federation=one)
        for i, one in enumerate((made, other))
    ]
    assert both[0] == both[1]
    assert not torch.equal(made.y, other.y)


def test_a_choice_is_not_overwritten_and_can_go_on(four):
    folder, facts = four
    with pytest.raises(KinfolkError, match="choose another folder"):
        choose_k(SMALL, folder, FEW)
    assert choose_k(SMALL, folder, FEW, resume=True) == facts


@pytest.mark.parametrize(
    ("change", "trial", "line"),
    [
        ("algorithm.name=fedavg", FEW, "use one of fesem"),
        ("algorithm.name=clustered_fl", FEW, "no number of groups k"),
        ("data.clients=4", FEW, "ks = 5: give at most 4"),
        ("engine.name=distributed", FEW, "one process"),
        ("algorithm.name=ifca", Trial((2,), rounds=1, criterion="intra_distance"), "does not tell distances"),
    ],
)
def test_what_will_not_do_is_one_line(change, trial, line, tmp_path):
    with pytest.raises(KinfolkError, match=line):
        choose_k(override(SMALL, [change, "data.rows=20"]), tmp_path, trial)


@pytest.mark.parametrize(("name", "word"), [("clients", "sample"), ("rounds", "rounds"), ("seeds", "seeds")])
def test_numbers_below_one_are_refused(name, word):
    with pytest.raises(KinfolkError, match=f"{word} = 0"):
        Trial(**{name: 0})


def test_a_sample_holds_its_clients_own_rows():
    whole = build(DataSpec(clients=20, rows=10), Seed(3))
    some = sample_clients(whole, 7, Seed(3))
    assert len(some.clients) == 7
    assert list(some.clients) == sorted(set(some.clients) & set(whole.clients))
    for i, who in enumerate(some.clients):
        place = whole.place(who)
        assert torch.equal(some.splits["train"].rows(i), whole.splits["train"].rows(place))
        assert some.truth[i] == whole.truth[place]
    assert sample_clients(whole, 7, Seed(4)).clients != some.clients
    assert sample_clients(whole, 100, Seed(3)) is whole


def test_rows_that_are_made_when_asked_are_sampled_too():
    whole = build(DataSpec("gaussians", clients=9, rows=10, shift="source", test="local", valid=0.2), Seed(0))
    some = sample_clients(whole, 3, Seed(0))
    for who in some.clients:
        assert torch.equal(some.only(who).x, whole.only(who).x)


def test_own_rows_without_validation_rows_lend_some(tmp_path):
    rows = [(torch.arange(40.0)[:, None], torch.arange(40) % 2) for _ in range(3)]
    made = from_arrays(rows)
    own = replace(SMALL, data=DataSpec("own", test_fraction=0.2))
    held, _, notes = validated(own, made, Seed(0))
    assert notes
    assert held.splits["valid"].counts().tolist() == [6, 6, 6]
    assert torch.equal(held.splits["test"].row, made.splits["test"].row)
    for i in range(3):
        both = torch.cat([held.splits["train"].rows(i), held.splits["valid"].rows(i)])
        assert torch.equal(both.sort().values, made.splits["train"].rows(i).sort().values)
    given = from_arrays(rows, valid=0.5)
    assert validated(own, given, Seed(0))[0] is given
    made_up = build(DataSpec("gaussians", clients=4, rows=10, shift="source", test="local"), Seed(0))
    with pytest.raises(KinfolkError, match=r"set data\.valid above 0"):
        validated(own, made_up, Seed(0))


def test_regression_is_chosen_by_the_squared_error(tmp_path):
    sets = ["data.name=linear", "data.shift=source", "data.test=local", "data.groups=2", "data.features=4"]
    spec = override(SMALL, [*sets, "data.clients=8", "data.rows=40", "local.lr=0.05"])
    facts = choose_k(spec, tmp_path, Trial((2,), rounds=2, seeds=1))
    assert facts["score"] == "mse"
    assert facts["rows"][0]["score"]["mean"] < 0  # larger is better
    assert facts["recommended"] == 2, facts["reason"]
    assert "2 groups: -" in facts["reason"]
    assert " in mse " in facts["reason"]


@pytest.mark.parametrize(
    ("alpha", "per_group", "k"),
    [*((100, True, k) for k in range(1, 9)), *((a, False, k) for a in (100, 3) for k in (1, 2, 4))],
)
@pytest.mark.slow
def test_planted_groups_are_found_or_the_answer_is_not_sure(k, alpha, per_group, tmp_path):
    shift = "label_permutation" if k > 1 else "none"
    sets = [
        f"data.groups={k}",
        f"data.shift={shift}",
        f"data.alpha={alpha}",
        "data.clients=40",
        "data.valid=0.2",
    ]
    spec = or_fesem(override(Experiment(), [*sets, "data.seed=0", "engine.name=batched"]))
    made = build(spec.data, Seed(0))
    if per_group and k > 1:  # of the first group twice as many as of others
        kept = [i for i, group in enumerate(made.truth.tolist()) if group == 0 or i < 20]
        made = sub(made, kept)
    facts = choose_k(spec, tmp_path, Trial(tuple(range(1, k + 3)), seeds=2), federation=made)
    assert facts["recommended"] == k or facts["confidence"] != "high", facts["reason"]
    if alpha == 100 and k <= 5:
        assert facts["recommended"] == k, facts["reason"]


def sub(federation, kept):
    place = torch.tensor(kept)
    return replace(
        federation,
        clients=tuple(federation.clients[i] for i in kept),
        splits={name: Split(s.start, s.row, s.of[place]) for name, s in federation.splits.items()},
        truth=federation.truth[place],
    )


def test_rounds_on_a_plateau_are_told(tmp_path):
    # Nothing counts as having left the plateau: all rounds are common ones.
    sets = ["algorithm.name=fesem_shared", "algorithm.start.plateau=0.01", "data.clients=6", "data.rows=20"]
    facts = choose_k(override(SMALL, sets), tmp_path, Trial((2,), rounds=1, seeds=1))
    assert any("groups trained for 0 of 1 rounds; give --rounds" in note for note in facts["notes"])
    assert facts["confidence"] == "low", facts["reason"]
