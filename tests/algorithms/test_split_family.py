"""The split family against plain PyTorch, leaf by leaf: what travels, what is trained when, what is kept."""

import copy
from dataclasses import replace

import pytest
import torch
from frozen import part_frozen
from torch import nn

from kinfolk.algorithms import ALGORITHMS, with_options
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference, tensor_difference
from kinfolk.errors import KinfolkError
from kinfolk.streams import Seed
from kinfolk.types import Stack, nbytes

METHODS = ("fedper", "fedrep", "fedbabu", "lg_fedavg", "fedbn")
COHORTS = (("ada", "ben", "cleo"), ("ben", "cleo"), ("ada", "cleo"))
ROWS = (5, 17, 9)


def is_own(method, name):
    """Whether a leaf stays with its client, read off its name."""
    if method == "fedbn":
        return name.startswith("norm")
    return name.startswith("head.") != (method == "lg_fedavg")


def phases(method, names):
    """(leaves that are trained, epochs) in their order, as the papers have them."""
    head, body = ([n for n in names if n.startswith("head.") == here] for here in (True, False))
    if method == "fedrep":
        return [(head, 3), (body, 2)]
    return [(body if method == "fedbabu" else names, 2)]


def by_hand(method, learner, federation, weights):
    """(common leaves, own leaves of each client) after all rounds, by PyTorch's own optimiser."""
    first = copy.deepcopy(learner.module.state_dict())
    common = {n: t for n, t in first.items() if not is_own(method, n)}
    own = {c: {n: t for n, t in first.items() if is_own(method, n)} for c in federation.clients}
    for number, cohort in enumerate(COHORTS):
        sent = {}
        for c in cohort:
            network = copy.deepcopy(learner.module).train()
            network.load_state_dict({**common, **own[c]})
            mine = federation.splits["train"].rows(federation.clients.index(c))
            for phase, (names, epochs) in enumerate(phases(method, list(learner.names))):
                params = [p for n, p in network.named_parameters() if n in names]
                steps = torch.optim.SGD(params, lr=learner.lr, momentum=0.9, weight_decay=1e-3)
                draw = Seed(0).numpy("batch", number, c, phase)
                for _ in range(epochs):
                    for rows in torch.from_numpy(draw.permutation(len(mine))).split(8):
                        if len(rows) == 1:
                            continue
                        network.zero_grad()
                        x, y = federation.x[mine[rows]], federation.y[mine[rows]]
                        nn.functional.cross_entropy(network(x), y).backward()
                        steps.step()
            after = copy.deepcopy(network.state_dict())
            sent[c] = after, len(mine)
            own[c] = {n: t for n, t in after.items() if is_own(method, n)}
        total = sum(rows if weights == "size" else 1 for _, rows in sent.values())
        for name, old in common.items():
            leaves = [(model[name], rows if weights == "size" else 1) for model, rows in sent.values()]
            if old.is_floating_point():
                common[name] = sum(t.double() * w / total for t, w in leaves).to(old.dtype)
            else:
                common[name] = torch.stack([t for t, _ in leaves]).amax(0)
    return common, own


@torch.no_grad()
def loss_of(network, federation, rows):
    return float(nn.functional.cross_entropy(network(federation.x[rows]), federation.y[rows]))


def method_of(name, learner, **options):
    more = {"head_epochs": 3} if name == "fedrep" else {}
    return with_options(ALGORITHMS[name], learner, {**more, **options})


def played(method, federation, engine="loop", **options):
    return toy.play_rounds(
        method, federation, engine, len(COHORTS), cohort=lambda number: COHORTS[number], **options
    )


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("name", METHODS)
def test_every_leaf_is_that_of_plain_pytorch(name, weights, engine):
    federation = toy.grouped(ROWS, side=8, noise=1.0)
    learner = toy.learner("tiny_cnn", federation, epochs=2)
    got = played(method_of(name, learner, weights=weights), federation, engine, score=False)
    common, own = by_hand(name, learner, federation, weights)
    assert set(got.state.model) == set(common)
    for leaf, wanted in common.items():
        assert tensor_difference(got.state.model[leaf], wanted, 1e-4) == "", leaf
        assert not torch.equal(wanted, learner.first[leaf]), leaf
    for who, kept in own.items():
        held = got.memories[who]["own"]
        assert set(held) == set(kept)
        for leaf, wanted in kept.items():
            assert tensor_difference(held[leaf], wanted, 1e-4) == "", (who, leaf)
            assert torch.equal(wanted, learner.first[leaf]) == (name == "fedbabu"), (who, leaf)


@pytest.mark.parametrize("name", METHODS)
def test_the_bytes_on_record_are_those_of_what_travels(name):
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    ledger = toy.play_rounds(method_of(name, learner), federation, rounds=1, score=False).ledger
    travels = nbytes({"model": {n: t for n, t in learner.first.items() if not is_own(name, n)}})
    whole = nbytes({"model": learner.first})
    assert ledger == {"update": {"down": 8 * travels, "up": 8 * travels}}
    assert travels < whole


@pytest.mark.parametrize("name", METHODS)
def test_what_is_a_clients_own_is_in_no_state_and_no_message(name):
    federation = toy.ragged()
    method = method_of(name, toy.learner("tiny_cnn", federation))
    update = method.tasks()["update"]
    state = toy.play_rounds(method, federation, rounds=1, score=False).state
    shared, each = method.eval_inputs(state, federation.clients)
    for tree in (update.reply["model"], update.sent["model"], state.model, shared["model"]):
        assert tree
        assert not [leaf for leaf in tree if is_own(name, leaf)]
    assert each is None


def test_clients_are_scored_by_the_common_part_with_their_own():
    federation = toy.grouped(ROWS, side=8, noise=1.0)
    learner = toy.learner("tiny_cnn", federation, epochs=2)
    got = played(method_of("fedper", learner), federation)
    network = copy.deepcopy(learner.module).eval()
    for i, who in enumerate(federation.clients):
        network.load_state_dict({**got.state.model, **got.memories[who]["own"]})
        loss = loss_of(network, federation, federation.splits["test"].rows(i))
        assert got.scores["personal"][who][1] == pytest.approx(loss, rel=1e-4)


def test_fedbabu_fine_tunes_body_and_head_and_keeps_neither():
    federation = toy.alike()
    learner = toy.learner("mlp", federation, batch=64, momentum=0.0, weight_decay=0.0)
    got = toy.play_rounds(method_of("fedbabu", learner, tune_epochs=2), federation, rounds=1)
    for i, who in enumerate(federation.clients):
        network = copy.deepcopy(learner.module)
        network.load_state_dict({**learner.first, **got.state.model})
        train, test = (federation.splits[s].rows(i) for s in ("train", "test"))
        steps = torch.optim.SGD(network.parameters(), learner.lr)
        before = loss_of(network, federation, test)
        assert got.scores["centre"][who][1] == pytest.approx(before, rel=1e-4)
        for _ in range(2):
            steps.zero_grad()
            nn.functional.cross_entropy(network(federation.x[train]), federation.y[train]).backward()
            steps.step()
        after = loss_of(network, federation, test)
        assert got.scores["fine-tuned"][who][1] == pytest.approx(after, rel=1e-4)
        assert abs(after - before) > 1e-3


def test_fedbn_without_batch_norm_is_fedavg():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    ends = [
        toy.play_rounds(method, federation, participation=0.8, score=False).state.model
        for method in (method_of("fedbn", learner, weights="size"), FedAvg(learner))
    ]
    assert message_difference(*ends, 0) == ""


def test_two_layers_may_be_the_head():
    federation = toy.images28()
    learner = toy.learner("lenet", federation)
    last = {n for n in learner.first if n.startswith(("fc2.", "head."))}
    assert len(last) == 4
    assert set(method_of("fedper", learner, head_layers=2).own) == last
    assert set(method_of("lg_fedavg", learner, head_layers=2).travels) == last


def test_bodies_are_averaged_as_the_aggregator_says():
    federation = toy.alike()
    learner = toy.learner("mlp", federation)
    for rule, far in (("mean", 25.0), ("median", 0.0)):  # one of four bodies is off by 100 everywhere
        method = method_of("fedper", learner, aggregate=RobustMean(rule))
        body = {n: torch.stack([t, t, t, t + 100]) for n, t in method.travels.items()}
        by = method.aggregate.tree_fold("model", method.travels, "uniform")
        chunk = Stack(federation.clients, torch.ones(4, dtype=torch.int64), {"model": body})
        for leaf, moved in by.end(by.add(by.begin(), chunk)).items():
            assert float((moved - learner.first[leaf]).mean()) == pytest.approx(far, abs=1e-3)


def test_what_is_frozen_is_in_neither_part():
    federation = toy.ragged()
    learner = part_frozen(toy.learner("tiny_cnn", federation))
    for name in METHODS:
        method = method_of(name, learner)
        assert set(method.own) | set(method.travels) == set(learner.first)
        assert not (set(method.own) | set(method.travels)) & set(learner.frozen)
        toy.play_rounds(method, federation, "batched", rounds=1)


def test_a_split_needs_two_parts():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    with pytest.raises(KinfolkError, match="the head is all that is trained"):
        method_of("fedper", learner, head_layers=2)
    with pytest.raises(KinfolkError, match=r"head_layers = 0"):
        method_of("fedrep", learner, head_layers=0)
    nameless = replace(learner, module=nn.Sequential(nn.Flatten(), nn.Linear(64, 4)))
    with pytest.raises(KinfolkError, match="no layer called 'head'"):
        method_of("lg_fedavg", nameless)
