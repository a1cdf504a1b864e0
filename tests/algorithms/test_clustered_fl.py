"""Clustered FL: when groups are split, and that those who leave are who they are said to be."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from turned import turned

from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.blocks.many_models import copies
from kinfolk.algorithms.clustered_fl import ClusteredFL
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.clustering.agreement import agreement
from kinfolk.codec import decode, encode
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference, outcome_difference
from kinfolk.errors import KinfolkError
from kinfolk.streams import Seed
from kinfolk.types import Client

ALWAYS = {"eps1": 1e9, "eps2": 0.0, "split_after": 1}


@pytest.mark.parametrize(
    ("options", "weights"), [({"split_after": 99}, "uniform"), ({"eps1": 0.0, "split_after": 0}, "size")]
)
def test_without_a_split_it_is_fedavg(options, weights):
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    plain = toy.play_rounds(FedAvg(learner, weights), federation, "batched", score=False).state.model
    method = ClusteredFL(learner, aggregate=Aggregator(weights=weights), **options)
    got = toy.play_rounds(method, federation, "batched", score=False).state.centres
    assert message_difference({n: t[0] for n, t in got.items()}, plain, 1e-5) == ""


def test_successive_splits_end_with_the_true_groups():
    federation, truth = turned(4, seed=5)
    method = ClusteredFL(toy.learner("mlp", federation, epochs=2), **ALWAYS, min_size=3)
    found = {r: toy.play_rounds(method, federation, "batched", rounds=r) for r in (1, 2, 5)}
    assert [outcome.state.k for outcome in found.values()] == [1, 2, 4]
    assert agreement(list(found[5].groups), truth)["ari"] == 1.0
    loop = toy.play_rounds(method, federation, "loop", rounds=5)
    assert outcome_difference(found[5], loop, 1e-4) == ""


def by_hand(truth, **options):
    """A method, a state before any split, the clients and made-up updates of theirs."""
    method = ClusteredFL(toy.learner("mlp", toy.ragged()), **{**ALWAYS, "min_size": 1, **options})
    names = tuple(Client(c) for c in sorted(truth))
    state = method.init(method.learner.first, names, Seed(0))
    state = replace(state, lengths=torch.ones(2, dtype=torch.float64))
    return method, state, names, torch.tensor([truth[c] for c in names], dtype=torch.float64)


EAST, NORTH, WEST = [1.0, 0.1, 0.0], [0.9, -1.0, 0.2], [-1.0, 0.0, 0.1]


def test_positions_in_a_sub_group_are_mapped_back_to_clients():
    kind = dict(zip("higfbadce", [WEST, EAST, NORTH] * 3, strict=True))
    method, state, names, delta = by_hand(kind, min_size=3)
    found = []
    for _ in range(3):
        state = method.split(state, names, delta)
        found.append(dict(zip(names, state.member.tolist(), strict=True)))
    # The group of a, who comes first, keeps its number; so does that of the first in what is left.
    assert kind["a"] is NORTH
    assert kind["b"] is EAST
    assert found[0] == {c: int(v is WEST) for c, v in kind.items()}
    assert found[1] == {c: 1 if v is WEST else 2 if v is EAST else 0 for c, v in kind.items()}
    assert found[2] == found[1]
    for name, leaf in state.centres.items():
        assert len(leaf) == 3
        assert all(torch.equal(row, method.learner.first[name]) for row in leaf)


@pytest.mark.parametrize(
    ("options", "splits"),
    [
        ({}, True),
        ({"eps1": 0.2}, True),  # the mean of the updates is about 0.13 long
        ({"eps1": 0.05}, False),
        ({"eps2": 0.9}, True),  # the longest is about 1.01
        ({"eps2": 1.2}, False),
        ({"min_size": 3}, True),
        ({"min_size": 4}, False),
        ({"gamma_max": 0.9}, True),  # opposite directions: nearly 1
        ({"gamma_max": 1.0}, False),
    ],
)
def test_every_condition_counts(options, splits):
    truth = {"a": EAST, "b": WEST, "c": WEST, "d": EAST}
    method, state, names, delta = by_hand(truth, **options)
    mean = float(np.linalg.norm(delta.numpy().mean(0)))
    assert 0.05 < mean < 0.2
    after = method.split(state, names, delta)
    assert after.member.tolist() == ([0, 1, 1, 0] if splits else [0] * 4)


def test_a_group_with_a_missing_member_is_not_split():
    truth = {"a": EAST, "b": WEST, "c": WEST, "d": EAST}
    method, state, names, delta = by_hand(truth)
    assert method.split(state, names[:3], delta[:3]).k == 1


def test_updates_of_length_zero_are_split_from_nobody_in_particular():
    still = [0.0, 0.0, 0.0]
    truth = {"a": EAST, "b": WEST, "c": still, "d": EAST}
    method, state, names, delta = by_hand(truth)
    after = method.split(state, names, delta)
    assert after.member[0] == after.member[3] != after.member[1]


def test_the_first_round_gives_the_lengths():
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation, batch=64)
    models = []
    one = toy.play_rounds(ClusteredFL(learner), federation, rounds=1, score=False).state
    for who in federation.clients:
        alone = toy.play_rounds(
            FedAvg(learner), federation, rounds=1, cohort=lambda n, c=who: [c]
        ).state.model
        names = [name for name, _ in learner.module.named_parameters()]
        models.append(np.concatenate([(alone[n] - learner.first[n]).numpy().ravel() for n in names]))
    delta = np.array(models, dtype=np.float64)
    wanted = [np.linalg.norm(delta.mean(0)), np.linalg.norm(delta, axis=1).max()]
    np.testing.assert_allclose(one.lengths.numpy(), wanted, rtol=1e-4)
    two = toy.play_rounds(ClusteredFL(learner), federation, rounds=2, score=False).state
    assert torch.equal(two.lengths, one.lengths)


def test_a_part_of_the_clients_is_refused_when_groups_may_be_split():
    federation = toy.ragged()
    method = ClusteredFL(toy.learner("mlp", federation), split_after=1)
    toy.play_rounds(method, federation, rounds=1, participation=0.5)
    with pytest.raises(KinfolkError, match=r"run.participation = '4 of 8 clients'"):
        toy.play_rounds(method, federation, rounds=2, participation=0.5)


@pytest.mark.parametrize("name", ["eps1", "eps2", "split_after", "gamma_max", "min_size"])
def test_negative_options_are_refused(name):
    with pytest.raises(KinfolkError, match=rf"algorithm.{name} = -1"):
        ClusteredFL(toy.learner("mlp", toy.ragged()), **{name: -1})


def test_a_single_copy_of_a_counter_can_be_written():
    (only,) = copies({"n": torch.tensor(5)}, 1).values()
    assert only.stride() == (1,)
    assert decode(encode({"n": only}))[0]["n"].tolist() == [5]


def test_a_run_goes_on_with_the_groups_that_it_had(tmp_path):
    def make(learner):
        return ClusteredFL(learner, **ALWAYS)

    whole = toy.run_toy(make, tmp_path / "whole", {"rounds": 4}).state
    toy.run_toy(make, tmp_path / "halves", {"rounds": 2})
    halves = toy.run_toy(make, tmp_path / "halves", {"rounds": 4}, resume=True).state
    assert whole.k > 2
    assert torch.equal(halves.member, whole.member)
    assert message_difference(halves.centres, whole.centres, 0) == ""
