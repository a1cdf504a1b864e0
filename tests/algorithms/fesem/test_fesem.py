"""FeSEM against its paper: what it reduces to, that no step raises its objective, its starts, its edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from turned import turned

from kinfolk.algorithms import with_options
from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.blocks.near_centre import squared_distances
from kinfolk.algorithms.blocks.start import Start
from kinfolk.algorithms.blocks.warm_start import sketch_for, warm_kmeans
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fesem.fesem import EM, FeSEM
from kinfolk.algorithms.local import Local
from kinfolk.clustering.agreement import agreement
from kinfolk.clustering.sketch import Sketch
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.contract.spoil import Passing
from kinfolk.errors import KinfolkError
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.script import Ask, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import ClientInfo
from kinfolk.types import Client, Stack


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
def test_one_centre_without_a_penalty_is_uniform_fedavg_exactly(network, engine):
    federation = toy.ragged()
    learner = toy.learner(network, federation)
    plain = toy.play_rounds(FedAvg(learner, "uniform"), federation, engine, score=False).state.model
    method = FeSEM(learner, k=1, lam=0.0, start=Start("random_partition"))
    got = toy.play_rounds(method, federation, engine, score=False).state.centres
    assert message_difference({n: t[0] for n, t in got.items()}, plain, 0) == ""
    held = toy.play_rounds(replace(method, lam=1.0), federation, engine, score=False).state.centres
    assert message_difference({n: t[0] for n, t in held.items()}, plain, 1e-4) != ""


def test_a_centre_for_every_client_is_local_training():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    method = FeSEM(
        learner, k=len(federation.clients), lam=0.0, start=Start("random_partition"), reseed_after=0
    )
    ours = toy.play_rounds(method, federation, "loop", rounds=2, participation=1.0, score=False).state
    alone = toy.play_rounds(Local(learner), federation, "loop", rounds=2, participation=1.0, score=False)
    assert sorted(ours.member.tolist()) == list(range(len(federation.clients)))
    for client, group in zip(federation.clients, ours.member.tolist(), strict=True):
        mine = {n: t[group] for n, t in ours.centres.items()}
        assert message_difference(mine, alone.memories[client]["model"], 0) == ""


def test_distances_are_those_of_numpy():
    draw = np.random.default_rng(0)
    w, c = ({"a": draw.normal(size=(n, 3, 2)), "b": draw.normal(size=(n, 4))} for n in (5, 2))
    flat_w, flat_c = (np.concatenate([t["a"].reshape(len(t["a"]), -1), t["b"]], 1) for t in (w, c))
    w, c = ({n: torch.from_numpy(t) for n, t in tree.items()} for tree in (w, c))
    wanted = ((flat_w[:, None] - flat_c[None]) ** 2).sum(2)
    np.testing.assert_allclose(squared_distances(w, c, ["a", "b"]).numpy(), wanted, rtol=1e-12)
    last = ((w["b"][:, None] - c["b"][None]) ** 2).sum(2)
    np.testing.assert_allclose(squared_distances(w, c, ["b"]).numpy(), last, rtol=1e-12)


@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_neither_e_nor_m_raises_the_objective(chunks):
    draw = torch.Generator().manual_seed(1)
    models = {"w": torch.randn(10, 3, 4, generator=draw), "b": torch.randn(10, 2, generator=draw)}
    centres = {"w": torch.randn(3, 3, 4, generator=draw), "b": torch.randn(3, 2, generator=draw)}
    names, who = ["w", "b"], [Client(f"c{i}") for i in range(10)]
    before = torch.randint(3, (10,), generator=draw)

    def spread(member: torch.Tensor, at: dict[str, torch.Tensor]) -> float:
        return float(squared_distances(models, at, names)[torch.arange(10), member].sum())

    for _ in range(4):
        em = EM(centres, names, Aggregator(), track=True)
        total = em.begin()
        for part in torch.arange(10).tensor_split(chunks):
            body, size = (
                {"model": {n: t[part] for n, t in models.items()}},
                torch.ones(len(part), dtype=torch.int64),
            )
            total = em.add(total, Stack(tuple(who[i] for i in part), size, body))
        found = em.end(total)
        member = torch.tensor([found.member[c] for c in who])
        old, after_e = spread(before, centres), spread(member, centres)
        after_m = spread(member, found.centres)
        assert after_e <= old + 1e-9
        assert after_m <= after_e + 1e-5
        assert found.spread == pytest.approx(after_e / 10)
        for k in range(3):  # the mean of the members, by hand
            mine = [i for i in range(10) if member[i] == k]
            wanted = models["w"][mine].double().mean(0) if mine else centres["w"][k].double()
            assert torch.allclose(found.centres["w"][k].double(), wanted, atol=1e-6)
        for k, (distance, model) in found.farthest.items():
            mine = [i for i in range(10) if member[i] == k]
            worst = max(mine, key=lambda i: float(squared_distances(models, centres, names)[i, k]))
            assert torch.equal(model["b"], models["b"][worst])
            assert distance == pytest.approx(float(squared_distances(models, centres, names)[worst, k]))
        centres, before = found.centres, member


@pytest.mark.parametrize("engine", ["loop", "batched", "workers"])
def test_the_warm_start_finds_the_groups_and_different_networks_lock_in(engine):
    federation, truth = turned(3)
    learner = toy.learner("mlp", federation)
    warm = toy.play_rounds(FeSEM(learner, k=3), federation, engine, rounds=2)
    assert agreement(list(warm.groups), truth)["ari"] == 1.0
    method = FeSEM(learner, k=3, start=Start("distinct_models"), reseed_after=0)
    first, last = (toy.play_rounds(method, federation, engine, rounds=r).groups for r in (1, 4))
    assert first == last, "nobody ever moves"
    assert agreement(list(last), truth)["ari"] < 0.5


def test_sketches_find_the_same_groups(monkeypatch):
    federation, truth = turned(3)
    monkeypatch.setattr("kinfolk.algorithms.blocks.warm_start.EXACT", 0)
    method = FeSEM(toy.learner("mlp", federation), k=3)
    found = toy.play_rounds(method, federation, "batched", rounds=1).groups
    assert agreement(list(found), truth)["ari"] == 1.0
    assert isinstance(sketch_for(method.learner.first, method.names, 12, Seed(0)), Sketch)


def test_sketched_models_that_fit_are_trained_once_and_start_the_same_groups(monkeypatch):
    """As on a GPU, where many more fit than are compared exactly."""
    federation, _ = turned(3)
    method = FeSEM(toy.learner("mlp", federation), k=3)
    monkeypatch.setattr("kinfolk.algorithms.blocks.warm_start.EXACT", 0)
    twice = toy.play_rounds(method, federation, "loop", rounds=1)
    monkeypatch.setattr("kinfolk.algorithms.blocks.warm_start._fit", lambda *given: True)
    once = toy.play_rounds(method, federation, "loop", rounds=1)
    assert message_difference(once.state.centres, twice.state.centres, 1e-5) == ""
    assert once.groups == twice.groups
    assert 2 * once.ledger["warm"]["down"] == twice.ledger["warm"]["down"]


def test_the_penalty_is_the_papers_divided_by_the_share_of_rows():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    method = FeSEM(learner, k=1, lam=0.3)
    rows = federation.splits["train"].counts().double()
    facts = ClientInfo(torch.tensor(int(rows[0])), torch.tensor(1), 0)
    message = {"model": learner.first, "pull": torch.tensor(method.lam * float(rows.mean()))}
    a_i = float(rows[0] / rows.sum())
    assert float(method.begin(message, {}, facts)["pull"]) == pytest.approx(0.3 / (len(rows) * a_i))
    plain = replace(method, prox_scaling="plain")
    assert float(plain.begin({**message, "pull": torch.tensor(0.3)}, {}, facts)["pull"]) == pytest.approx(0.3)


def test_an_empty_centre_is_kept_and_then_put_where_the_fit_is_worst():
    federation, _ = turned(3)
    learner = toy.learner("mlp", federation)
    method = FeSEM(learner, k=2, start=Start("distinct_models"), reseed_after=2, patience=0)
    state = method.init(learner.first, federation.clients, Seed(0))
    far = {
        n: torch.stack([t[0], t[0] + 100]) if t.is_floating_point() else t for n, t in state.centres.items()
    }
    # Nobody begins at the second centre, and nobody is near it.
    state = replace(state, centres=far, member=torch.zeros(12, dtype=torch.int64))
    seen = []
    with toy.coordinated(method, federation) as coordinator:
        for number in range(3):
            context = RoundContext(Seed(0), number, federation.clients)
            state, info = play(
                method.round(state, federation.clients, context),
                lambda request, context=context: coordinator.perform(request, context),
            )
            seen.append(
                (state.idle.tolist(), info["reseeded"], bool(state.centres["head.bias"][1].max() > 50))
            )
    assert seen[0] == ([0, 1], 0, True)
    assert seen[1] == ([0, 0], 1, False), "moved after two rounds"
    assert set(state.member.tolist()) == {0, 1}


def test_a_centre_whose_members_are_not_asked_is_not_empty():
    federation, _ = turned(3)
    learner = toy.learner("mlp", federation)
    method = FeSEM(learner, k=2, start=Start("distinct_models"), reseed_after=2, patience=0)
    state = method.init(learner.first, federation.clients, Seed(0))
    state = replace(state, member=torch.tensor([0] * 9 + [1] * 3))
    kept = {n: t[1].clone() for n, t in state.centres.items()}
    with toy.coordinated(method, federation) as coordinator:
        for number in range(4):
            context = RoundContext(Seed(0), number, federation.clients)
            state, info = play(
                method.round(state, federation.clients[:9], context),
                lambda request, context=context: coordinator.perform(request, context),
            )
            assert (state.idle.tolist(), info["reseeded"]) == ([0, 0], 0)
    assert message_difference({n: t[1] for n, t in state.centres.items()}, kept, 0) == ""
    assert state.member.tolist() == [0] * 9 + [1] * 3


def test_a_run_may_stop_when_nothing_changes():
    federation, _ = turned(3)
    state = toy.play_rounds(FeSEM(toy.learner("mlp", federation), k=3), federation, "loop", rounds=1).state
    method = FeSEM(toy.learner("mlp", federation), k=3)
    assert method.finished(state) == ""
    assert "did not change for 5 rounds" in method.finished(replace(state, stable_rounds=5))
    assert replace(method, patience=0).finished(replace(state, stable_rounds=50)) == ""


def test_only_the_model_of_ones_own_group_travels():
    federation, _ = turned(3)
    learner = toy.learner("mlp", federation)
    ledger = toy.play_rounds(
        FeSEM(learner, k=3, start=Start("random_partition")), federation, "loop", rounds=1
    ).ledger
    model = sum(t.numel() * t.element_size() for t in learner.first.values())
    assert ledger["update"] == {"down": 12 * (model + 4), "up": 12 * model}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"k": 0}, "algorithm.k"),
        ({"lam": -1.0}, "algorithm.lam"),
        ({"start.warm_epochs": 0}, "algorithm.start.warm_epochs"),
        ({"start.shared_rounds": 0}, "algorithm.start.shared_rounds"),
        ({"start.set_aside": -1.0}, "algorithm.start.set_aside"),
        ({"start.set_aside": 0.5}, "give more than 1"),
        ({"start.set_aside": 2.0, "start.name": "random_partition"}, "needs start"),
    ],
)
def test_senseless_options_are_refused(options, line):
    with pytest.raises(KinfolkError, match=line):
        with_options(FeSEM, toy.learner("mlp", toy.ragged()), options)


def test_more_groups_than_clients_and_a_network_without_a_head_are_refused():
    federation = toy.ragged()
    with pytest.raises(KinfolkError, match="give at most 8, the number of clients"):
        FeSEM(toy.learner("mlp", federation), k=99).init({}, federation.clients, Seed(0))
    nameless = Learner(nn.Linear(2, 2), find_loss("cross_entropy"), 2)
    with pytest.raises(KinfolkError, match="no layer called 'head'"):
        FeSEM(nameless, cluster_on="last_layer")
    last = FeSEM(toy.learner("mlp", federation), cluster_on="last_layer")
    assert last.names == ("head.weight", "head.bias")


def test_a_reply_that_is_not_a_number_is_left_out_and_the_round_goes_on():
    federation, _ = turned(3)
    learner = toy.learner("mlp", federation)
    method = FeSEM(learner, k=2, start=Start("random_partition"))
    state = method.init(learner.first, federation.clients, Seed(0))
    context = RoundContext(Seed(0), 0, federation.clients)
    bad = federation.clients[3]
    with toy.coordinated(method, federation) as coordinator:
        inner = coordinator.engine.replies

        def spoiled(request: Ask, context: RoundContext):
            for chunk in inner(request, context):
                if bad in chunk.clients and "model" in chunk.body:
                    chunk.tree("model")["head.bias"][list(chunk.clients).index(bad)] = float("nan")
                yield chunk

        coordinator.engine.replies = spoiled
        new, _ = play(
            method.round(state, federation.clients, context), lambda r: coordinator.perform(r, context)
        )
    place = federation.clients.index(bad)
    assert new.member[place] == state.member[place]
    assert all(t.isfinite().all() for t in new.centres.values())


def test_the_personal_model_is_what_the_next_round_sends():
    federation, _ = turned(3)
    learner = toy.learner("mlp", federation)
    method = FeSEM(learner, k=2, lam=0.5)
    state = toy.play_rounds(method, federation, "loop", rounds=1, score=False).state
    context = RoundContext(Seed(0), 1, federation.clients)
    shared, each = method.eval_inputs(state, federation.clients)
    with toy.coordinated(method, federation) as coordinator:
        sent = coordinator.perform(Ask("update", federation.clients, shared, each), context)
        mine = coordinator.perform(Ask("score.personal", federation.clients, shared, each), context)
        alike = Ask("score.centre", federation.clients, {}, replace(sent, body={"model": sent.tree("model")}))
        again = coordinator.perform(alike, context)
        centre = coordinator.perform(Ask("score.centre", federation.clients, shared, each), context)
    assert message_difference(mine.body, again.body, 0) == ""
    assert message_difference(mine.body, centre.body, 1e-3) != ""


def test_shared_rounds_are_one_centre_and_then_the_clients_part():
    federation, truth = turned(3)
    learner = toy.learner("mlp", federation)
    method = FeSEM(learner, k=3, start=Start("shared_kmeans", shared_rounds=2, plateau=0))
    shared = toy.play_rounds(method, federation, "loop", rounds=2).state
    alone = replace(method, k=1, start=Start("random_partition"))
    one = toy.play_rounds(alone, federation, "loop", rounds=2).state
    for k in range(3):
        mine = {n: t[k] for n, t in shared.centres.items()}
        assert message_difference(mine, {n: t[0] for n, t in one.centres.items()}, 0) == ""
    assert not shared.split
    assert set(shared.member.tolist()) == {0}
    after = toy.play_rounds(method, federation, "loop", rounds=3)
    assert after.state.split
    assert agreement(list(after.groups), truth)["ari"] == 1.0


def test_of_many_clients_a_sample_finds_the_centres_and_the_others_join(monkeypatch):
    federation, truth = turned(3)
    monkeypatch.setattr("kinfolk.algorithms.blocks.warm_start.MOST", 8)
    found = toy.play_rounds(FeSEM(toy.learner("mlp", federation), k=3), federation, "batched", rounds=1)
    assert agreement(list(found.groups), truth)["ari"] == 1.0


def test_attackers_far_away_get_no_centre_of_their_own_where_they_are_set_aside():
    federation, truth = turned(3)
    bad = [Client("c02"), Client("c07")]
    method = FeSEM(toy.learner("mlp", federation), k=3, reseed_after=0, aggregate=Aggregator("median"))

    def far(request, reply):
        if reply.clients[0] not in bad or "model" not in reply.body:
            return reply
        by = 5.0 + bad.index(reply.clients[0])
        model = {n: t + by for n, t in reply.tree("model").items()}
        return Stack(reply.clients, reply.size, {**reply.body, "model": model})

    honest = [i for i, c in enumerate(federation.clients) if c not in bad]
    found = []
    for aside in (0.0, 2.0):
        one = replace(method, start=Start(set_aside=aside))
        groups = toy.play_rounds(
            one, federation, rounds=2, wrap=lambda e: Passing(e, far), score=False
        ).groups
        found.append(agreement([groups[i] for i in honest], truth[honest])["ari"])
    assert found[0] < 0.5
    assert found[1] == 1.0


def test_where_nobody_answers_the_warm_start_all_share_for_one_more_round():
    federation, _ = turned(3)
    method = FeSEM(toy.learner("mlp", federation), k=3)
    state = method.init(method.learner.first, federation.clients, Seed(0))

    def silent(request):
        if request.task == "count":
            return Stack(federation.clients, torch.full((12,), 24), {})
        nobody = Stack((), torch.zeros(0, dtype=torch.int64), {})
        return nobody if request.fold is None else request.fold.end(request.fold.begin())

    after, _ = play(
        method.round(state, federation.clients, RoundContext(Seed(0), 0, federation.clients)), silent
    )
    assert not after.split
    assert all(
        torch.equal(after.centres[n][k], method.learner.first[n]) for n in after.centres for k in range(3)
    )


def test_of_many_clients_those_far_away_have_no_part_in_the_start(monkeypatch):
    """A sample seeks the centres; attackers among the others must not move them either."""
    monkeypatch.setattr("kinfolk.algorithms.blocks.warm_start.MOST", 5)
    names = [Client(c) for c in "abcdefg"]
    where = dict(zip(names, (0.0, 0.1, 0.2, 10.0, 10.1, 10.2, 1000.0), strict=True))

    def warm(request):
        rows = {c: (1, {"model": {"w": torch.tensor([where[c]])}}) for c in request.to}
        stack = Stack.of(rows)
        return (
            stack if request.fold is None else request.fold.end(request.fold.add(request.fold.begin(), stack))
        )

    for seed in range(4):
        context = RoundContext(Seed(seed), 0, tuple(names))
        start = warm_kmeans({"w": torch.zeros(1)}, ["w"], 2, 5, context, Aggregator(), aside=3.0)
        centres, labels = play(start, warm)
        assert centres["w"].max() < 11
        assert Client("g") not in labels
