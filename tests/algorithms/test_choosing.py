"""IFCA and HypCluster: who chooses which model, against losses and steps computed with plain PyTorch."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import vmap

from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.hypcluster import HypCluster
from kinfolk.algorithms.ifca import IFCA
from kinfolk.clustering.agreement import agreement
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.contract.spoil import Passing
from kinfolk.errors import KinfolkError
from kinfolk.script import Ask, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import ClientInfo
from kinfolk.types import Client, Stack, nbytes

CLIENTS = toy.ragged().clients
TURN = RoundContext(Seed(0), 0, CLIENTS)


def of(centres, j):
    return {name: t[j] for name, t in centres.items()}


def loaded(learner, model):
    network = copy.deepcopy(learner.module)
    network.load_state_dict(model)
    return network


def training_rows(federation, who):
    mine = federation.splits["train"].rows(federation.place(who))
    return federation.x[mine], federation.y[mine]


def loss_by_hand(learner, model, federation, who):
    x, y = training_rows(federation, who)
    with torch.no_grad():
        return nn.functional.cross_entropy(loaded(learner, model).eval()(x), y).item()


def trained_by_hand(learner, model, federation, who):
    """One step over all rows; where BatchNorm meets a single row there is none."""
    network = loaded(learner, model).train()
    x, y = training_rows(federation, who)
    if len(x) > 1:
        steps = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
        nn.functional.cross_entropy(network(x), y).backward()
        steps.step()
    return network.state_dict()


def perform(algorithm, federation, task, shared, engine="loop"):
    with toy.coordinated(algorithm, federation, engine) as coordinator:
        return coordinator.perform(Ask(task, federation.clients, shared), TURN)


def uneven_models(learner, k=3):
    """K models with BatchNorm statistics of their own, each good for some client."""
    centres = IFCA(learner, k).init(learner.first, CLIENTS, Seed(3)).centres
    for name, leaf in centres.items():
        if name.endswith("running_var"):
            leaf *= torch.tensor([1.0, 0.3, 2.5]).reshape(-1, *[1] * (leaf.dim() - 1))
    return centres


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_one_model_to_choose_from_is_fedavg(weights, engine):
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation, batch=64)  # whole batches: shuffles do not matter
    plain = toy.play_rounds(
        FedAvg(learner, weights), federation, engine, participation=0.8, score=False
    ).state.model
    methods = [IFCA(learner, 1, Aggregator(weights=weights))] + (
        [HypCluster(learner, 1)] if weights == "size" else []
    )
    for method in methods:
        got = toy.play_rounds(method, federation, engine, participation=0.8, score=False).state.centres
        assert message_difference(of(got, 0), plain, 1e-5) == ""


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_each_client_trains_the_model_of_lowest_training_loss(engine):
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation, batch=64)
    centres = uneven_models(learner)
    got = perform(IFCA(learner, 3), federation, "update", {"models": centres}, engine)
    assert got.clients == CLIENTS
    wanted = [
        int(np.argmin([loss_by_hand(learner, of(centres, j), federation, who) for j in range(3)]))
        for who in CLIENTS
    ]
    assert got.tensor("choice").tolist() == wanted
    assert len(set(wanted)) > 1
    for who, j in zip(CLIENTS, wanted, strict=True):
        model = trained_by_hand(learner, of(centres, j), federation, who)
        assert message_difference(got.row(who)["model"], model, 1e-5) == "", who


def test_what_a_pass_changes_is_each_clients_own_from_the_start():
    # A recorded pass keeps one tensor for what is the same for all: this must not be.
    learner = toy.learner("tiny_cnn", toy.ragged())
    method = HypCluster(learner, 3)
    models = method.init(learner.first, CLIENTS, Seed(0)).centres
    tasks, rows = method.tasks(), torch.tensor([3, 4])

    def start(task, message):
        return vmap(lambda n: tasks[task].start(message, {}, ClientInfo(n, n, 0)))(rows)

    carry = start("update", {"models": models})
    changed = [carry["losses"], carry["choice"], *carry["model"].values()]
    changed.append(start("loss", {"model": learner.first})["loss"])
    assert all(t.stride(0) > 0 for t in changed)
    assert carry["models"]["norm1.weight"].stride(0) == 0


def test_a_model_without_a_loss_is_never_chosen():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    centres = IFCA(learner, 2).init(learner.first, CLIENTS, Seed(0)).centres
    broken = {name: torch.stack([t[0] * float("inf"), t[1]]) for name, t in centres.items()}
    got = perform(IFCA(learner, 2), federation, "update", {"models": broken})
    assert got.tensor("choice").tolist() == [1] * len(CLIENTS)
    # Where every loss is asked for by itself it counts as the worst, and the reply is not refused.
    ones = {name: t[0] for name, t in broken.items()}
    asked = perform(HypCluster(learner, 2), federation, "loss", {"model": ones})
    assert asked.clients == CLIENTS
    assert (asked.tensor("loss") > 1e16).all()


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_ifca_takes_the_mean_of_those_who_chose_alike(engine):
    federation = toy.ragged()
    learner = toy.learner("mlp", federation, batch=64)
    method = IFCA(learner, 3, Aggregator(weights="size"))
    before = method.init(learner.first, CLIENTS, Seed(0)).centres
    got = perform(method, federation, "update", {"models": before})
    choice, rows = got.tensor("choice").numpy(), got.size.numpy()
    after = toy.play_rounds(method, federation, engine, rounds=1, seed=0)
    assert after.groups == tuple(choice)
    for name, leaf in got.tree("model").items():
        for j in range(3):
            mine = choice == j
            mean = before[name][j].numpy()
            if mine.any():
                mean = np.average(leaf.numpy()[mine].astype(np.float64), axis=0, weights=rows[mine])
            np.testing.assert_allclose(after.state.centres[name][j], mean, rtol=1e-4, atol=1e-6)


def test_starts_differ_in_weights_and_agree_in_the_rest():
    learner = toy.learner("lenet", toy.images28())
    centres = IFCA(learner, 3).init(learner.first, CLIENTS, Seed(0)).centres
    other = IFCA(learner, 3).init(learner.first, CLIENTS, Seed(1)).centres
    for name, first in learner.first.items():
        assert torch.equal(centres[name][0], first)
        if first.dim() < 2:
            assert torch.equal(centres[name][1], first)
            continue
        assert len({tuple(t.flatten().tolist()) for t in (*centres[name], *other[name][1:])}) == 5
        for drawn in centres[name][1:]:
            error = first.std() / first.numel() ** 0.5
            assert abs(drawn.mean() - first.mean()) < 5 * error
            assert abs(drawn.std() - first.std()) < 5 * error


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_k_models_go_down_and_one_with_a_number_comes_up(engine):
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    spent = toy.play_rounds(IFCA(learner, 3), federation, engine, rounds=1, score=False).ledger
    size = nbytes(learner.first)
    assert spent == {"update": {"down": 8 * 3 * size, "up": 8 * (size + 8)}}


def groups_of_two():
    """Ten clients; labels are turned by one for every other of them."""
    turned = [0, 1] * 5
    names = tuple(f"c{i}" for i in (7, 2, 9, 4, 0, 5, 1, 8, 3, 6))
    federation = toy.grouped((24,) * 10, side=8, noise=0.3, names=names, turned=turned)
    truth = dict(zip(names, turned, strict=True))
    return federation, [truth[c] for c in federation.clients]


def test_the_spread_start_finds_the_groups():
    federation, truth = groups_of_two()
    method = HypCluster(toy.learner("mlp", federation, epochs=5), 2)
    outcome = toy.play_rounds(method, federation, "batched", rounds=3)
    assert agreement(list(outcome.groups), torch.tensor(truth))["ari"] == 1.0


def test_the_start_takes_whoever_is_served_worst():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation, epochs=2)
    method = HypCluster(learner, 4)
    models = perform(FedAvg(learner), federation, "update", {"model": learner.first})
    loss = {
        (a, b): loss_by_hand(learner, models.row(a)["model"], federation, b) for a in CLIENTS for b in CLIENTS
    }
    chosen = [CLIENTS[int(Seed(0).numpy("hypcluster", 0).integers(8))]]
    while len(chosen) < 4:
        best = {b: min(loss[a, b] for a in chosen) for b in CLIENTS if b not in chosen}
        chosen.append(max(best, key=best.get))
    with toy.coordinated(method, federation) as coordinator:
        script = method.round(method.init(learner.first, CLIENTS, Seed(0)), CLIENTS, TURN)
        request = next(script)
        asked = []
        while request.task != "update":
            asked.append(request.task)
            request = script.send(coordinator.perform(request, TURN))
    assert asked == ["train", "loss", "loss", "loss"]
    for j, who in enumerate(chosen):
        assert message_difference(of(request.shared["models"], j), models.row(who)["model"], 0) == ""


def test_too_few_replies_leave_the_start_for_later():
    federation = toy.ragged()
    method = HypCluster(toy.learner("mlp", federation), 3)
    few = toy.play_rounds(method, federation, rounds=1, cohort=lambda number: CLIENTS[:2]).state
    assert not few.spread
    both = toy.play_rounds(method, federation, cohort=lambda number: CLIENTS[: 2 + number]).state
    assert both.spread


def test_the_server_goes_part_of_the_way():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation, batch=64)
    there = toy.play_rounds(HypCluster(learner, 1), federation, rounds=1).state.centres
    half = toy.play_rounds(HypCluster(learner, 1, server_lr=0.5), federation, rounds=1).state.centres
    for name, first in learner.first.items():
        middle = (first.double().numpy() + there[name][0].double().numpy()) / 2
        np.testing.assert_allclose(half[name][0].numpy(), middle, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", [IFCA, HypCluster])
def test_options_out_of_range_are_refused(kind):
    learner = toy.learner("mlp", toy.ragged())
    with pytest.raises(KinfolkError, match=r"algorithm.k = 0: give 1 or more"):
        kind(learner, k=0)
    with pytest.raises(KinfolkError, match=r"algorithm.k = 9: give at most 8"):
        kind(learner, k=9).init(learner.first, CLIENTS, Seed(0))
    with pytest.raises(KinfolkError, match=r"algorithm.server_lr = -1"):
        HypCluster(learner, server_lr=-1)


def test_of_several_starts_the_one_of_lowest_training_loss_is_kept():
    federation = toy.alike()
    learner = toy.learner("mlp", federation, batch=64)  # whole batches: shuffles do not matter
    method = IFCA(learner, k=2, restarts=3, restart_rounds=2)
    clients, seed = federation.clients, Seed(5)
    context = RoundContext(seed, 0, clients)
    with toy.coordinated(method, federation) as coordinator:
        state = method.init(learner.first, clients, seed)
        assert not state.begun
        script = method.best_start(state, clients, context)
        found, info = play(script, lambda request: coordinator.perform(request, context))
        trained = coordinator.ledger.take_trained()
    losses, ends = [], []
    for number in range(3):
        centres = [
            learner.first if j == 0 else method.another(learner.first, seed, j)
            for j in range(2 * number, 2 * number + 2)
        ]
        for _ in range(2):
            by = {c: [loss_by_hand(learner, m, federation, c) for m in centres] for c in clients}
            chosen = {c: int(np.argmin(by[c])) for c in clients}
            replies = {c: trained_by_hand(learner, centres[chosen[c]], federation, c) for c in clients}
            for j in range(2):
                mine = [replies[c] for c in clients if chosen[c] == j]
                if mine:
                    centres[j] = {n: torch.stack([m[n] for m in mine]).mean(0) for n in mine[0]}
        rows = {c: len(training_rows(federation, c)[1]) for c in clients}
        lowest = {c: min(loss_by_hand(learner, m, federation, c) for m in centres) for c in clients}
        losses.append(sum(rows[c] * lowest[c] for c in clients) / sum(rows.values()))
        ends.append(centres)
    assert info["start_losses"] == pytest.approx(losses, rel=1e-4)
    best = int(np.argmin(losses))
    assert info["start"] == best
    assert best > 0, "or the first start would do as well"
    for j in range(2):
        assert message_difference(of(found.centres, j), ends[best][j], 1e-4) == ""
    assert found.begun
    assert trained == {"try": 3 * 2 * 96}, "six rounds of everybody: the run's budget pays for them"
    assert IFCA(learner, k=2).init(learner.first, clients, seed).begun, "one start is no choice"
    one, other = (m.init(learner.first, clients, seed).centres for m in (IFCA(learner, k=2), method))
    assert message_difference(one, other, 0) == ""


@pytest.mark.parametrize("lie", range(3))
def test_a_lie_about_the_choice_moves_one_model_by_the_liars_share_and_no_other(lie):
    """Fault 29: who enters a group by a lie counts there as one member counts; the record names the group."""
    federation = toy.ragged()
    method = IFCA(toy.learner("mlp", federation), 3)
    liar = Client("gus")

    def lying(request, reply):
        if reply.clients[0] != liar or "choice" not in reply.body:
            return reply
        return Stack(reply.clients, reply.size, {**reply.body, "choice": torch.tensor([lie])})

    before = method.init(method.learner.first, CLIENTS, Seed(0)).centres
    replies = perform(method, federation, "update", {"models": before})
    honest = toy.play_rounds(method, federation, rounds=1, seed=0)
    lied = toy.play_rounds(method, federation, rounds=1, seed=0, wrap=lambda e: Passing(e, lying))
    at = CLIENTS.index(liar)
    truth = honest.groups[at]
    assert lied.groups == (*honest.groups[:at], lie, *honest.groups[at + 1 :])
    mine = replies.row(liar)["model"]
    joined = sum(g == lie for g in lied.groups)
    for name, leaf in lied.state.centres.items():
        for j in {0, 1, 2} - {lie, truth}:
            assert torch.equal(leaf[j], honest.state.centres[name][j])
        if lie != truth:  # uniform weights: (m - 1) / m of the model without the liar, 1 / m of the liar's
            others = honest.state.centres[name][lie] if joined > 1 else mine[name]
            np.testing.assert_allclose(
                leaf[lie], others + (mine[name] - others) / joined, rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize("told", [-1e30, -1.0, 1e16])
def test_a_lie_about_a_loss_moves_a_start_by_the_liars_share_of_ten_medians(told):
    """Fault 29: without a bound one liar of four decides which start is taken."""
    federation = toy.alike()
    method = IFCA(toy.learner("mlp", federation), 2, restarts=3, restart_rounds=1)

    def lying(request, reply):
        if request.task != "fit" or reply.clients[0] != federation.clients[0]:
            return reply
        return Stack(reply.clients, reply.size, {"loss": torch.tensor([told])})

    def losses(wrap):
        context = RoundContext(Seed(5), 0, federation.clients)
        with toy.coordinated(method, federation, wrap=wrap) as coordinator:
            state = method.init(method.learner.first, federation.clients, Seed(5))
            script = method.best_start(state, federation.clients, context)
            return play(script, lambda request: coordinator.perform(request, context))[1]["start_losses"]

    honest = np.array(losses(lambda engine: engine))
    moved = np.abs(np.array(losses(lambda engine: Passing(engine, lying))) - honest)
    # It has a quarter of the rows; what it hides is about one median more.
    assert (moved > 0).all()
    assert (moved < 0.25 * 12 * honest).all()
