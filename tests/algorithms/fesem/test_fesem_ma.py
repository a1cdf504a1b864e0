"""FeSEM-MA: shuffled copies are recovered, aligned clients give FeSEM, widths stay, retraining, classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from turned import turned
from whole_matching import restore_width

from kinfolk.algorithms import with_options
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.start import Start
from kinfolk.algorithms.fesem.chain import chain_of
from kinfolk.algorithms.fesem.fesem import FeSEM
from kinfolk.algorithms.fesem.fesem_ma import FeSEMMA, Matching
from kinfolk.algorithms.fesem.matched import units_of
from kinfolk.algorithms.fesem.matching import match_layer
from kinfolk.contract import toy
from kinfolk.contract.checks import CHECKS
from kinfolk.contract.compare import message_difference
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import MLP, CelebaCNN, FemnistCNN, LeNet, ResNet18
from kinfolk.script import Ask, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Stack

NETWORKS = {
    "mlp": (lambda: MLP(6, (8, 5), 3), (6,)),
    "lenet": (lambda: LeNet(1, 10, 28), (1, 28, 28)),
    "femnist": (lambda: FemnistCNN(12, 5, 1, 8), (1, 8, 8)),
    "celeba": (lambda: CelebaCNN(12), (3, 12, 12)),
}
NAMES = tuple(map(Client, "abcde"))


def _learner(name):
    build, shape = NETWORKS[name]
    with Seed(1).borrowed("network"):
        network = build()
    draw = Seed(2).torch("values")
    for value in network.state_dict().values():
        if value.dim() == 1 and value.is_floating_point():  # norms start alike in every unit
            value.copy_(torch.rand(value.shape, generator=draw) + 0.5)
    learner = Learner(network, find_loss("cross_entropy"), network.head.out_features)
    return learner, torch.randn(5, *shape, generator=draw)


def _shuffled(tree, chain, number):
    """The same function with the hidden units in another order."""
    orders = [
        torch.randperm(len(tree[layer.weight]), generator=Seed(number).torch("order", layer.weight))
        for layer in chain.layers[:-1]
    ]
    return restore_width(tree, chain, orders)


def _answering(models, counts=None, log=None):
    """What performs requests: clients who send these models, whatever they were sent."""

    def perform(request):
        if log is not None:
            log.append(request)
        place = [NAMES.index(c) for c in request.to]
        if request.task == "count":
            labels = (
                torch.ones(len(NAMES), 10)[:, : len(models[0]["head.bias"])] if counts is None else counts
            )
            return Stack(request.to, labels[place].sum(1).clamp(4, 9).long(), {"labels": labels[place]})
        tree = {n: torch.stack([models[i][n] for i in place]) for n in models[0]}
        return Stack(request.to, torch.full((len(place),), 4), {"model": tree})

    return perform


def _m_step(method, models, counts=None, cohort=NAMES):
    """(centre, info) after a round in which clients send these models."""
    state = method.init(method.learner.first, NAMES, Seed(0))
    script = method.round(state, cohort, RoundContext(Seed(0), 0, NAMES))
    new, info = play(script, _answering(models, counts))
    return {n: t[0] for n, t in new.centres.items()}, info


@pytest.mark.parametrize("growth", [1.0, 1.5])
@pytest.mark.parametrize("name", NETWORKS)
def test_shuffled_copies_give_back_the_network_and_equal_ones_stay_in_place(name, growth):
    learner, x = _learner(name)
    method = FeSEMMA(learner, k=1, start=Start("random_partition"), matching=Matching(growth=growth))
    tree = learner.first
    models = [tree, *(_shuffled(tree, method.chain, n) for n in range(4))]
    centre, info = _m_step(method, models)
    assert info["reordered"] > 0.3
    assert message_difference(centre, tree, 1e-5) == ""
    centre, _ = _m_step(method, models[::-1])  # in the order of another client: the function is the same
    assert message_difference(centre, tree, 1e-2) != ""
    assert torch.allclose(learner.apply(centre, x), learner.apply(tree, x), atol=1e-5)
    centre, info = _m_step(method, [tree] * 5)
    assert info["reordered"] == 0
    assert message_difference(centre, tree, 1e-7) == ""


@pytest.mark.parametrize("name", ["mlp", "lenet", "celeba"])
def test_one_attacker_moves_no_middle_of_units_that_were_put_together(name):
    """A common shift leaves every unit where it is, so the middles of the shifts are those of the units."""
    learner, _ = _learner(name)
    shifts, tree = [0.0, 0.01, 0.05, 0.06, 5.0], learner.first
    wanted = {"median": np.median(shifts), "trimmed": np.mean(sorted(shifts)[1:4]), "mean": np.mean(shifts)}
    for mean, shift in wanted.items():
        method = FeSEMMA(learner, k=1, start=Start("random_partition"), aggregate=RobustMean(mean, trim=0.2))
        apart = [{n: t + by if t.is_floating_point() else t for n, t in tree.items()} for by in shifts]
        models = [apart[0], *(_shuffled(one, method.chain, n) for n, one in enumerate(apart[1:]))]
        centre, info = _m_step(method, models)
        assert info["reordered"] > 0.3
        assert all(torch.allclose(centre[n], tree[n] + float(shift), atol=2e-6) for n in learner.names)


@pytest.mark.parametrize("check", ["bad_replies", "renamed_clients", "learns_something"])
def test_the_contract_holds_with_medians(check):
    CHECKS[check](lambda learner: FeSEMMA(learner, aggregate=RobustMean("median")))


def _even():
    """Eight clients in two groups, all with as many rows of each class."""
    prototypes = toy.DATA.numpy("even").normal(size=(4, 1, 8, 8))
    held = {}
    for i in range(8):
        draw, y = toy.DATA.numpy("even", i), np.arange(24) % 4
        x = prototypes[y] + 0.3 * draw.normal(size=(24, 1, 8, 8))
        held[f"c{i}"] = x, (y + i % 2) % 4
    return from_arrays(held, test=held, classes=4)


@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
def test_clients_from_one_start_give_the_centres_of_fesem(network):
    federation = _even()
    learner = toy.learner(network, federation)
    options = {"k": 2, "start": Start(warm_epochs=2)}
    plain = toy.play_rounds(FeSEM(learner, **options), federation, rounds=2, score=network == "mlp")
    matched = toy.play_rounds(FeSEMMA(learner, **options), federation, rounds=2, score=network == "mlp")
    assert len(set(plain.groups)) == 2
    assert matched.groups == plain.groups
    assert message_difference(matched.state.centres, plain.state.centres, 1e-5) == ""
    assert matched.ledger["update"] == plain.ledger["update"]
    for kind, scores in plain.scores.items():
        for who, (_, loss) in scores.items():
            assert matched.scores[kind][who][1] == pytest.approx(loss, abs=1e-4)


def test_nobody_tells_of_more_labels_than_it_has_rows():
    learner, _ = _learner("mlp")
    method = FeSEMMA(learner, k=1, start=Start("random_partition"))
    models = [{n: t + (i if n.startswith("head") else 0) for n, t in learner.first.items()} for i in range(5)]
    told = [[9.0, 0, 0], [9, 0, 0], [9, 0, 0], [9, 0, 0]]
    honest, _ = _m_step(method, models, torch.tensor([*told, [9.0, 0, 0]]))
    liar, _ = _m_step(method, models, torch.tensor([*told, [9e9, 0, 0]]))
    assert message_difference(liar, honest, 1e-6) == ""


def test_each_class_counts_by_who_has_it():
    learner, _ = _learner("mlp")
    method = FeSEMMA(learner, k=1, start=Start("random_partition"))
    models = [{n: t + (i if n.startswith("head") else 0) for n, t in learner.first.items()} for i in range(5)]
    counts = torch.tensor([[3.0, 0, 0], [1, 5, 0], [0, 0, 0], [0, 5, 0], [0, 0, 0]])
    centre, _ = _m_step(method, models, counts)
    wanted = np.array([0 * 0.75 + 1 * 0.25, 1 * 0.5 + 3 * 0.5, 2.0])  # nobody has the last: the plain mean
    for leaf in ("head.weight", "head.bias"):
        added = (centre[leaf] - learner.first[leaf]).reshape(3, -1).double().numpy()
        np.testing.assert_allclose(added, np.broadcast_to(wanted[:, None], added.shape), atol=1e-5)


def test_label_counts_are_those_of_the_rows_and_are_sent_once():
    federation, _ = turned(3)
    learner = toy.learner("mlp", federation)
    method = FeSEMMA(learner, k=2, start=Start("random_partition"))
    found, away = {}, federation.clients[2]
    for engine in ("loop", "batched"):
        outcome = toy.play_rounds(
            *(method, federation, engine),
            absent=lambda context, who: context.round == 0 and who == away,
            score=False,
        )
        found[engine] = outcome.state.labels
        # Everyone once; who was away at first is asked when it is there.
        assert outcome.ledger["count"] == {"down": 0, "up": 12 * 4 * 4}
    split = federation.splits["train"]
    for i, client in enumerate(federation.clients):
        mine = federation.y[split.rows(federation.place(client))].numpy()
        assert found["loop"][i].tolist() == np.bincount(mine, minlength=4).tolist()
    assert torch.equal(found["loop"], found["batched"])


def test_a_centre_keeps_the_widths_of_the_network():
    learner, _ = _learner("mlp")
    method = FeSEMMA(learner, k=1, start=Start("random_partition"), matching=Matching(growth=1.5, gamma=50.0))
    draw = Seed(7).torch("far")
    models = [
        {n: 9 * torch.randn(t.shape, generator=draw) for n, t in learner.first.items()} for _ in range(5)
    ]
    centre, _ = _m_step(method, models)
    assert all(centre[n].shape == t.shape for n, t in learner.first.items())
    # By hand, the first layer: it grows to the cap and goes back to the units that most clients have.
    stack = {n: torch.stack([m[n] for m in models]) for n in models[0]}
    seed = Seed(Seed(Seed(0).number("matching", 0, 0)).number("layer", 0))
    vectors = units_of(stack, chain_of(learner.module).layers[0])
    place = match_layer(vectors, seed, method.matching).flatten()
    counts = place.bincount()
    assert len(counts) == 12
    kept = np.sort(np.argsort(-counts.numpy(), kind="stable")[:8])
    weight = stack["body.0.weight"]
    mean = torch.zeros(12, weight.shape[2]).index_add(0, place, weight.flatten(0, 1)) / counts[:, None]
    assert torch.allclose(centre["body.0.weight"], mean[kept], atol=1e-4)


def test_retraining_asks_for_the_layers_above_once_per_layer_in_every_engine():
    federation = toy.images28()
    learner = toy.learner("lenet", federation)
    method = FeSEMMA(learner, k=2, start=Start("random_partition"), matching=Matching(retrain_epochs=1))
    loop, batched = (
        toy.play_rounds(method, federation, engine, rounds=1, score=False) for engine in ("loop", "batched")
    )
    size = {n: 4 * t.numel() for n, t in learner.first.items()}
    assert [t for t in loop.ledger if t.startswith("retrain")] == [f"retrain.{layer}" for layer in range(4)]
    for layer in range(4):
        above = sum(size[n] for n in method.chain.after(layer))
        assert loop.ledger[f"retrain.{layer}"] == {"down": 5 * sum(size.values()), "up": 5 * above}
    assert batched.ledger == loop.ledger
    assert message_difference(batched.state.centres, loop.state.centres, 1e-4) == ""


def test_only_layers_above_are_trained_and_who_is_silent_goes_on_as_it_was():
    federation, _ = turned(3)
    learner = toy.learner("mlp", federation)
    method = FeSEMMA(
        learner, k=1, lam=0.0, start=Start("random_partition"), matching=Matching(retrain_epochs=2)
    )
    state = method.init(learner.first, federation.clients, Seed(0))
    context, silent = RoundContext(Seed(0), 0, federation.clients), federation.clients[4]
    heard = {}

    def perform(request: Ask):
        answer = coordinator.perform(request, context)
        if request.task == "retrain.0":
            heard["sent"] = request.each
            answer = answer.at([c for c in answer.clients if c != silent])
        heard[request.task] = answer
        return answer

    with toy.coordinated(method, federation) as coordinator:
        new, _ = play(method.round(state, federation.clients, context), perform)
    sent, answer = heard["sent"].tree("model"), heard["retrain.0"].tree("model")
    assert set(answer) == {"head.weight", "head.bias"}
    assert torch.equal(new.centres["body.0.weight"][0], sent["body.0.weight"][0])
    place = federation.clients.index(silent)
    last = answer["head.bias"].double().numpy()
    assert not np.allclose(last, np.delete(sent["head.bias"].numpy(), place, 0), atol=1e-4)
    rows = np.insert(last, place, sent["head.bias"][place].numpy(), 0)
    counts = new.labels.numpy()
    wanted = (counts * rows).sum(0) / counts.sum(0)
    np.testing.assert_allclose(new.centres["head.bias"][0].numpy(), wanted, atol=1e-6)


def _centre_loss(method, federation):
    scores = toy.play_rounds(method, federation, rounds=2).scores["centre"]
    return float(np.mean([loss for _, loss in scores.values()]))


def test_retraining_lowers_the_loss_of_centres_on_a_toy():
    federation = _even()
    learner = toy.learner("mlp", federation)
    method = FeSEMMA(learner, k=2, start=Start(warm_epochs=2))
    without, after = (
        _centre_loss(replace(method, matching=Matching(retrain_epochs=e)), federation) for e in (0, 2)
    )
    assert after < without


@pytest.mark.parametrize(
    ("check", "growth"),
    # Where layers may grow, the order in which members are matched decides: a new name is a new draw.
    [("bad_replies", 1.5), ("renamed_clients", 1.0), ("learns_something", 1.5)],
)
def test_the_contract_holds_with_retraining_and_growth(check, growth):
    CHECKS[check](
        lambda learner: FeSEMMA(learner, matching=Matching(retrain_epochs=1, growth=growth, gamma=5.0))
    )


def test_regression_averages_the_output_layer_plainly():
    learner, _ = _learner("mlp")
    method = FeSEMMA(replace(learner, loss=find_loss("mse")), k=1, start=Start("random_partition"))
    models = [{n: t + i for n, t in learner.first.items()} for i in range(5)]
    counts = torch.tensor([[9.0, 0, 0]] * 5)  # told, but of no meaning here
    centre, _ = _m_step(method, models, counts)
    assert torch.allclose(centre["head.bias"], learner.first["head.bias"] + 2, atol=1e-5)
    assert method.tasks()["count"].reply == {}


def test_nobody_or_one_group_only_leaves_the_other_centres():
    learner, _ = _learner("mlp")
    method = FeSEMMA(learner, k=2, start=Start("random_partition"))
    state = method.init(learner.first, NAMES, Seed(0))
    moved = [{n: t + 1 for n, t in learner.first.items()}] * 5
    one = [c for c in NAMES if int(state.of([c])) == 1]
    new, _ = play(method.round(state, tuple(one), RoundContext(Seed(0), 0, NAMES)), _answering(moved))
    assert torch.equal(new.member, state.member), "one model still: the drawn groups stand"
    assert torch.equal(new.centres["head.bias"][0], learner.first["head.bias"])
    assert torch.allclose(new.centres["head.bias"][1], learner.first["head.bias"] + 1)
    unlike = (
        replace(method, start=Start("distinct_models"))
        .init(learner.first, NAMES, Seed(0))
        .centres["head.weight"]
    )
    assert not torch.equal(unlike[0], unlike[1])
    near = [{n: t.clone() for n, t in learner.first.items()}] * 5
    script = replace(method, start=Start("distinct_models")).round(
        replace(state, centres={**state.centres, "head.weight": unlike}),
        NAMES,
        RoundContext(Seed(0), 0, NAMES),
    )
    assert play(script, _answering(near))[0].member.tolist() == [0] * 5, "everyone is nearest to the first"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"k": 0}, "algorithm.k = 0"),
        ({"matching.sweeps": -1}, "algorithm.matching.sweeps"),
        ({"matching.retrain_epochs": -1}, "algorithm.matching.retrain_epochs"),
        ({"matching.sigma0": 0.0}, r"algorithm.matching.sigma0 = 0\.0: give a number above 0"),
        ({"matching.growth": 2.0}, r"algorithm.matching.growth = 2\.0: give 1 to 1\.5"),
        ({"aggregate.trim": 0.5}, r"algorithm.aggregate.trim = 0\.5"),
        (
            {"aggregate.name": "median", "matching.growth": 1.2},
            r"aggregate.name = 'median': .* use matching.growth",
        ),
    ],
)
def test_senseless_options_are_refused(options, line):
    with pytest.raises(KinfolkError, match=line):
        with_options(FeSEMMA, _learner("mlp")[0], options)


def test_a_network_that_can_not_be_matched_is_refused_by_name_at_once():
    with pytest.raises(KinfolkError, match=r"'blocks\.0 \(_Residual\)'.*one chain"):
        FeSEMMA(Learner(ResNet18(width=4), find_loss("cross_entropy"), 10))
    with pytest.raises(KinfolkError, match="one unit for each of 2 outputs"):
        FeSEMMA(Learner(nn.Linear(2, 3), find_loss("cross_entropy"), 2))
    with pytest.raises(KinfolkError, match="give at most 5"):
        FeSEMMA(_learner("mlp")[0], k=9).init({}, NAMES, Seed(0))
