"""Algorithms with a network of which a part is frozen: all engines agree, and only the rest travels."""

import copy
from dataclasses import replace

import pytest
import torch
from frozen import part_frozen
from mdicfl_options import DISTINCT

from kinfolk.algorithms import ALGORITHMS, with_options
from kinfolk.contract import toy
from kinfolk.contract.checks import CHECKS
from kinfolk.contract.compare import outcome_difference
from kinfolk.errors import KinfolkError
from kinfolk.types import leaves

OPTIONS = {
    "fesem": {"start.on": "models"},  # by the direction of updates rounding decides who joins whom here
    "mdicfl": {**DISTINCT, "pseudo.samples": 4, "search.iterations": 5},
    "slfed": {"images.count": 8, "gan.epochs": 1, "gan.width": 0.0625},
}
METHODS = ["fedavg", "fedprox", "ifca", "fesem", "mdicfl", "slfed", "fedem", "clustered_fl", "local"]
METHODS += ["apfl", "ditto", "fedala", "fedyogi", "knn_per", "scaffold"]


def maker(method):
    def make(learner):
        return with_options(ALGORITHMS[method], part_frozen(learner), OPTIONS.get(method, {}))

    return make


def in_doubles(learner):
    """With few rows, rounding in float32 decides now and then which of two pixels is the larger."""
    network = copy.deepcopy(learner.module).double()
    network.register_forward_pre_hook(lambda _, given: (given[0].double(),))
    return replace(learner, module=network)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
def test_engines_agree_on_a_network_with_a_frozen_part(method, network):
    federation = toy.ragged()
    learner = part_frozen(toy.learner(network, federation))
    assert learner.frozen
    if method != "slfed":  # whose images are float32
        learner = in_doubles(learner)
    algorithm = with_options(ALGORITHMS[method], learner, OPTIONS.get(method, {}))
    loop, batched, wire = (
        toy.play_rounds(algorithm, federation, e, 2, 0, 0.8) for e in ("loop", "batched", "wire")
    )
    assert not outcome_difference(wire, loop, 0)
    assert not outcome_difference(batched, loop, 1e-5 if method == "slfed" else 1e-9)


@pytest.mark.parametrize("method", ["fedavg", "fesem", "local"])
@pytest.mark.parametrize(
    "check", ["replies_as_declared", "state_is_plain", "survives_drop_outs", "bad_replies"]
)
def test_contract_with_adapters(method, check):
    if (method, check) == ("local", "bad_replies"):
        return  # it replies with nothing
    CHECKS[check](maker(method))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_processes_agree_on_adapters(method):
    make = maker(method)
    CHECKS["processes_agree"](make if method == "slfed" else lambda learner: make(in_doubles(learner)))


@pytest.mark.parametrize("method", [name for name in METHODS if name != "slfed"])
@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
def test_what_is_frozen_is_in_no_message_state_or_memory(method, network):
    federation = toy.ragged()
    learner = part_frozen(toy.learner(network, federation))
    algorithm = with_options(ALGORITHMS[method], learner, OPTIONS.get(method, {}))
    done = toy.play_rounds(algorithm, federation, rounds=1, score=False)
    shapes = {tuple(t.shape) for t in learner.frozen.values() if t.dim() > 1}
    shapes -= {tuple(t.shape) for t in learner.first.values()}
    assert shapes
    held = [leaf for memory in done.memories.values() for _, _, leaf in leaves(memory)]
    held += [t for t in vars(done.state).values() if isinstance(t, torch.Tensor)]
    held += [t for tree in vars(done.state).values() if isinstance(tree, dict) for t in tree.values()]
    assert (
        not {tuple(t.shape[-len(s) :]) for t in held for s in shapes if isinstance(t, torch.Tensor)} & shapes
    )


def test_a_round_sends_the_trained_part_alone():
    federation = toy.ragged()
    learner = part_frozen(toy.learner("mlp", federation))
    size = sum(t.numel() * t.element_size() for t in learner.first.values())
    whole = size + sum(t.numel() * t.element_size() for t in learner.frozen.values())
    done = toy.play_rounds(with_options(ALGORITHMS["fedavg"], learner, {}), federation, rounds=1, score=False)
    spent = {
        way: count for ways in done.ledger.values() for way, count in ways.items() if way in ("up", "down")
    }
    for way in ("up", "down"):
        assert spent[way] == len(federation.clients) * size < len(federation.clients) * whole


def test_matched_averages_need_whole_layers():
    learner = part_frozen(toy.learner("mlp", toy.ragged()))
    with pytest.raises(KinfolkError, match="whole layers"):
        with_options(ALGORITHMS["fesem_ma"], learner, {})
