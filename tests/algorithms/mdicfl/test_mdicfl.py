"""MD-ICFL: what it reduces to, who is told what, the groups it finds, and what a server can find out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from mdicfl_options import DISTINCT, DRAWN, FEW, WARM, changed, mdicfl
from torch import nn
from turned import turned

from kinfolk.algorithms import build_algorithm
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.ifca import IFCA
from kinfolk.algorithms.mdicfl.client_facts import row_shape
from kinfolk.algorithms.mdicfl.merging import merged
from kinfolk.clustering.agreement import agreement
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.contract.spoil import Passing
from kinfolk.errors import KinfolkError
from kinfolk.experiment.score import score_everyone
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.script import MADE, Ask, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Stack, leaves, nbytes


def one_round(method, state, federation, number=0, wrap=lambda engine: engine, engine="loop", cohort=None):
    """(state, info, bytes by task) of one round."""
    context = RoundContext(Seed(0), number, federation.clients)
    with toy.coordinated(method, federation, engine, wrap=wrap) as coordinator:
        script = method.round(state, tuple(cohort or federation.clients), context)
        new, info = play(script, lambda request: coordinator.perform(request, context))
        info.pop(MADE, None)  # what is only to be looked at
        return new, info, coordinator.ledger.take()[0]


def started(method, federation, seed=0):
    return method.init(method.learner.first, federation.clients, Seed(seed))


def altered(client, task, change):
    """A wrapper by which one client's replies to one task are changed."""

    def with_change(request, reply):
        if request.task != task or reply.clients[0] != client:
            return reply
        return replace(reply, body=change(reply.body))

    return lambda engine: Passing(engine, with_change)


@pytest.mark.parametrize("privacy", ["weak", "strong"])
@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_one_cluster_is_uniform_fedavg_exactly(engine, privacy):
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    plain = toy.play_rounds(FedAvg(learner, "uniform"), federation, engine, score=False)
    got = toy.play_rounds(mdicfl(learner, k=1, privacy=privacy), federation, engine, score=False)
    assert message_difference({n: t[0] for n, t in got.state.centres.items()}, plain.state.model, 0) == ""
    assert got.ledger == plain.ledger, "nobody is asked for more"


def test_both_protocols_find_the_planted_groups_by_the_same_way():
    federation, truth = turned(3)
    learner = toy.learner("mlp", federation, epochs=4)
    weak = mdicfl(learner, k=3, **DRAWN, **{"pseudo.samples": 8, "search.iterations": 30})
    strong = replace(weak, privacy="strong")
    one, other = started(weak, federation), started(strong, federation)
    for number in range(5):
        one, told, _ = one_round(weak, one, federation, number, engine="batched")
        other, chose, _ = one_round(strong, other, federation, number, engine="batched")
        assert one.member.tolist() == other.member.tolist()
        assert told.pop("bad_labels") == []
        assert told == chose
    assert agreement(one.member.tolist(), truth)["ari"] == 1.0
    assert told.pop("confidence") > 0.5
    assert told == {"clusters": 3, "effective": 3}
    assert not other.labels.any(), "the strong server was told no label distribution"


def test_wrong_labels_are_mended():
    federation, truth = turned(3)
    method = mdicfl(toy.learner("mlp", federation, epochs=4), k=3, **WARM, **FEW)
    state = toy.play_rounds(method, federation, "batched", rounds=1, score=False).state
    assert agreement(state.member.tolist(), truth)["ari"] == 1.0
    wrong = state.member.clone()
    wrong[:3] = (wrong[:3] + 1) % 3
    assert agreement(wrong.tolist(), truth)["ari"] < 0.5
    mended, _, _ = one_round(method, replace(state, member=wrong), federation, 1)
    assert torch.equal(mended.member, state.member)


def test_different_networks_lock_in():
    federation, truth = turned(3)
    method = mdicfl(toy.learner("mlp", federation), k=3, **DISTINCT, **FEW)
    first = started(method, federation).member.tolist()
    last = toy.play_rounds(method, federation, "batched", rounds=2, score=False).groups
    assert list(last) == first
    assert agreement(first, truth)["ari"] < 0.5


def test_the_generator_finds_groups_too():
    federation, truth = turned(2)
    method = mdicfl(
        toy.learner("mlp", federation, epochs=4),
        k=2,
        **{"pseudo.sampler": "generator", "pseudo.samples": 8, "generator.iterations": 60},
        **{"generator.batch": 20, "generator.hidden": 32, "generator.output": "none", "generator.warm": True},
    )
    found = toy.play_rounds(method, federation, "batched", rounds=5, score=False)
    assert agreement(list(found.groups), truth)["ari"] == 1.0
    assert found.state.kept["weight1"].shape == (2, 32, 16 + 4)


@pytest.mark.parametrize("privacy", ["weak", "strong"])
def test_clusters_and_means_are_those_of_a_loop_by_hand(privacy):
    federation, _ = turned(2)
    learner = toy.learner("mlp", federation)
    method = mdicfl(learner, k=2, **DISTINCT, privacy=privacy, **FEW)
    state, said, told = started(method, federation), {}, {}

    def watch(request, reply):
        said.setdefault(request.task, {})[reply.clients[0]] = reply.row(reply.clients[0])
        if request.task == "choose":
            told.update({c: request.each.row(c)["distances"] for c in reply.clients})
        return reply

    wrap = lambda engine: Passing(engine, watch)  # noqa: E731
    new, _, _ = one_round(method, state, federation, wrap=wrap)
    _, probe = method.probe(replace(state, shape=(1, 8, 8)), RoundContext(Seed(0), 0, federation.clients))
    network = method.learner.module.eval()
    for i, who in enumerate(federation.clients):
        mine = federation.y[federation.splits["train"].rows(i)].numpy()
        labels = np.bincount(mine, minlength=4) / len(mine)
        if privacy == "weak":
            np.testing.assert_allclose(said["labels"][who]["labels"].numpy(), labels, atol=1e-6)
        cost, by_class = [], []
        for k in range(2):
            apart = np.zeros(4)
            for c in range(4):
                rows = probe.x[k, 6 * c : 6 * (c + 1)]
                network.load_state_dict(said["update"][who]["model"])
                ours = network(rows).softmax(1).detach().double().numpy()
                network.load_state_dict({n: t[k] for n, t in state.centres.items()})
                theirs = network(rows).softmax(1).detach().double().numpy()
                apart[c] = np.abs(ours - theirs).sum(1).mean()
            cost.append(labels @ apart)
            by_class.append(apart)
        if privacy == "strong":
            np.testing.assert_allclose(told[who].numpy(), by_class, atol=1e-5)
        assert int(new.member[i]) == int(np.argmin(cost))
    for k in range(2):
        mine = [
            said["update"][c]["model"]["head.weight"].double() for c in federation.clients if new.of([c]) == k
        ]
        wanted = torch.stack(mine).mean(0)
        assert torch.allclose(new.centres["head.weight"][k].double(), wanted, atol=1e-6)


def test_downloads_are_a_kth_of_those_of_ifca():
    federation, _ = turned(3)
    learner = toy.learner("mlp", federation)
    ours = mdicfl(learner, k=3, **DISTINCT, **FEW)
    _, _, ifca = one_round(IFCA(learner, k=3), started(IFCA(learner, k=3), federation), federation)
    state, _, first = one_round(ours, started(ours, federation), federation)
    _, _, weak = one_round(ours, state, federation, 1)
    model, n = nbytes({"model": learner.first}), 12
    assert weak == {"update": {"down": n * model, "up": n * model}}
    assert ifca["update"]["down"] == 3 * weak["update"]["down"]
    assert first["labels"] == {"down": 0, "up": n * 4 * 4}, "C floats, once"
    strong = replace(ours, privacy="strong")
    _, _, spent = one_round(strong, replace(state, labels=state.labels * 0), federation, 1)
    assert spent["update"] == weak["update"]
    assert spent["choose"] == {"down": n * 3 * 4 * 4, "up": n * 8}, "K x C floats down, one whole number up"
    assert set(spent) == {"update", "choose"}


def transcript(method, federation, rounds=2):
    """(task, key, shape) of everything but models that clients send, scores included; and what is left."""
    seen, model = [], set(method.learner.first)

    def watch(request, reply):
        seen.extend(
            (request.task, key, tuple(t.shape[1:])) for key, n, t in leaves(reply.body) if n not in model
        )
        return reply

    outcome = toy.play_rounds(method, federation, rounds=rounds, wrap=lambda e: Passing(e, watch))
    return set(seen), outcome


@pytest.mark.parametrize("start", ["distinct_models", "shared_kmeans"])
def test_strong_privacy_never_sends_a_label_distribution(start):
    federation, _ = turned(3)
    few = {
        "start.name": start,
        "start.shared_rounds": 1,
        "start.plateau": 0.9,
        "start.confidence": 0.0,
        **FEW,
    }
    method = mdicfl(toy.learner("mlp", federation), k=3, privacy="strong", **few)
    assert "labels" not in method.tasks(), "a client cannot even be asked"
    seen, outcome = transcript(method, federation)
    told = {("shape", "shape", (6,)), ("choose", "choice", ())}
    scores = {("score.centre", key, ()) for key in ("rows", "loss", "lost", "correct", "f1")}
    assert seen == told | scores | ({("common", "blind", ())} if start == "shared_kmeans" else set())
    assert all(memory == {} for memory in outcome.memories.values())
    # With weak privacy the server may know how many rows of each class there are, and scores tell it.
    open_seen, _ = transcript(replace(method, privacy="weak"), federation)
    assert ("score.centre", "true", (4,)) in open_seen


def test_scores_are_the_same_whoever_makes_them():
    federation = toy.ragged()
    weak = mdicfl(toy.learner("mlp", federation), k=2, **DISTINCT, **FEW)
    strong, found = replace(weak, privacy="strong"), []
    for method in (weak, strong):
        state = started(method, federation)
        with toy.coordinated(method, federation) as coordinator:
            context = RoundContext(Seed(0), 1, federation.clients)
            found.append(score_everyone(method, state, coordinator, context, "test"))
    (columns, summary), (others, discreet) = found
    assert columns["score"] == others["score"]
    np.testing.assert_allclose(columns["value"], others["value"], rtol=1e-12)
    assert summary["centre"]["macro_f1"].pop("pooled") > 0
    assert discreet["centre"]["macro_f1"].pop("pooled") is None, "it needs the counts of all"
    assert summary["centre"].keys() == discreet["centre"].keys()


def query(method, federation, who, distances):
    """What one client answers to made-up distances."""
    each = Stack((who,), torch.zeros(1, dtype=torch.int64), {"distances": distances[None]})
    with toy.coordinated(method, federation) as coordinator:
        context = RoundContext(Seed(0), 0, federation.clients)
        return int(coordinator.perform(Ask("choose", (who,), {}, each), context).tensor("choice"))


def test_a_server_that_makes_up_distances_finds_the_label_distribution_by_bisection():
    federation = toy.ragged()
    method = mdicfl(toy.learner("mlp", federation), k=2, privacy="strong")
    who = federation.clients[4]
    mine = federation.y[federation.splits["train"].rows(4)].numpy()
    queries = math.ceil(math.log2(1e3))
    for c in range(4):
        low, high = 0.0, 1.0
        for _ in range(queries):
            middle = (low + high) / 2
            # p . e_c against p . (t, t, ...) = t: cluster 1 is nearer just if p_c > t.
            distances = torch.stack([torch.eye(4)[c], torch.full((4,), middle)])
            low, high = (middle, high) if query(method, federation, who, distances) == 1 else (low, middle)
        assert abs((low + high) / 2 - (mine == c).mean()) < 1e-3
    assert queries == 10


BAD_LABELS = {
    "too little": lambda labels: labels * 0.9,
    "too much": lambda labels: labels + 0.1,
    "negative": lambda labels: labels + torch.tensor([-2.0, 2.0, 0.0, 0.0]),
    "wrong length": lambda labels: labels[:, :3],
}


@pytest.mark.parametrize("how", BAD_LABELS)
def test_who_tells_a_bad_label_distribution_counts_as_missing_and_is_asked_again(how):
    federation, _ = turned(3)
    bad = federation.clients[5]
    method = mdicfl(toy.learner("mlp", federation), k=3, **DISTINCT, **FEW)
    state = started(method, federation)
    wrap = altered(bad, "labels", lambda body: {"labels": BAD_LABELS[how](body["labels"])})
    new, info, sent = one_round(method, state, federation, wrap=wrap)
    without = [c for c in federation.clients if c != bad]
    wanted, _, _ = one_round(method, state, federation, cohort=without)
    assert message_difference(new.centres, wanted.centres, 0) == ""
    assert torch.equal(new.of([bad]), state.of([bad]))
    assert info["bad_labels"] == ([bad] if how.startswith("too") else []), "the guard names the others"
    assert sent["update"]["down"] == 11 * nbytes({"model": method.learner.first})
    again, info, sent = one_round(method, new, federation, 1)
    assert sent["labels"]["up"] == 4 * 4
    assert info["bad_labels"] == []
    assert again.has_labels([bad]) == [True]


def test_an_empty_cluster_keeps_its_model_and_twins_count_once():
    federation, _ = turned(3)
    method = mdicfl(toy.learner("mlp", federation), k=3, **DRAWN, **FEW)
    state = started(method, federation)
    few = [c for c in federation.clients if state.of([c]) != 2]
    one, info, _ = one_round(method, state, federation, cohort=few)
    assert info == {"bad_labels": [], "clusters": 3}, "groups that were drawn stand for the first round"
    for name, t in one.centres.items():
        assert torch.equal(t[2], method.learner.first[name])
    equal = {n: t[:1].expand_as(t).clone() for n, t in one.centres.items()}
    probe = method.probe(one, RoundContext(Seed(0), 1, ()))[1]
    twins = merged(replace(one, centres=equal), method.learner, probe, False)[1]
    assert twins == {"clusters": 3, "effective": 1}
    apart = started(changed(method, **DISTINCT), federation)
    apart = replace(apart, shape=(1, 8, 8), member=apart.member.clamp(max=1))
    gone = merged(apart, method.learner, method.probe(apart, RoundContext(Seed(0), 1, ()))[1], False)[1]
    assert gone == {"clusters": 2, "effective": 2}, "a cluster without members does not count"


def test_rows_of_any_kind_will_do_and_other_losses_will_not():
    draw = np.random.default_rng(0)
    rows = {f"c{i}": (draw.normal(size=(20, 5)).astype("float32"), draw.integers(0, 3, 20)) for i in range(4)}
    federation = from_arrays(rows, test=rows, classes=3)
    with Seed(0).borrowed("init"):
        learner = Learner(nn.Linear(5, 3), find_loss("cross_entropy"), 3)
    for sampler in ("back_search", "generator"):
        few = {"pseudo.samples": 3, "search.iterations": 3, "generator.iterations": 3}
        start = {"start.shared_rounds": 1, "start.plateau": 0.0}
        method = mdicfl(learner, k=2, **{"pseudo.sampler": sampler}, **few, **start)
        state = toy.play_rounds(method, federation, rounds=2, score=False).state
        assert state.shape == (5,)
        assert state.begun
    with pytest.raises(KinfolkError, match="loss = 'mse': mdicfl compares the probabilities of classes"):
        mdicfl(Learner(nn.Linear(5, 1), find_loss("mse"), 1))
    with pytest.raises(KinfolkError, match=r"model.norm = 'batch': .*must not depend on other rows"):
        mdicfl(
            Learner(
                nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)), find_loss("cross_entropy"), 2
            )
        )
    with pytest.raises(KinfolkError, match=r"algorithm.pseudo.sampler = 'gan': choose one of"):
        build_algorithm("mdicfl", learner, {"pseudo.sampler": "gan"})
    with pytest.raises(KinfolkError, match=r"algorithm.k = 5: give at most 4"):
        mdicfl(learner, k=5).init(learner.first, federation.clients, Seed(0))


def test_the_shape_of_rows_is_the_commonest_that_the_network_takes():
    learner = Learner(nn.Linear(5, 3), find_loss("cross_entropy"), 3)
    models = {n: t[None] for n, t in learner.first.items()}

    def told(*shapes):
        return row_shape(
            torch.tensor([[*s, *[0] * (6 - len(s))] for s in shapes], dtype=torch.float32), learner, models
        )

    assert told((5,), (2, 5), (2, 5)) == (2, 5)
    assert told((5,), (4,), (4,)) == (5,), "a lie that the network refuses"
    assert told((1 << 23, 5), (5,), (1 << 23, 5)) == (5,), "or that would fill the memory"
    assert told((4,)) == ()
    assert told() == ()


def test_the_default_start_is_one_model_at_first_and_then_finds_the_groups():
    federation, truth = turned(3)
    method = mdicfl(toy.learner("mlp", federation, epochs=4), k=3, **{"start.shared_rounds": 2}, **FEW)
    shared = toy.play_rounds(method, federation, "loop", rounds=2, participation=1.0, score=False).state
    fedavg = FedAvg(method.learner, "uniform")
    plain = toy.play_rounds(fedavg, federation, "loop", rounds=2, participation=1.0,
                            score=False).state  # fmt: skip
    for k in range(3):
        assert message_difference({n: t[k] for n, t in shared.centres.items()}, plain.model, 0) == ""
    assert not shared.begun
    after = toy.play_rounds(method, federation, "loop", rounds=4, participation=1.0).groups
    assert agreement(list(after), truth)["ari"] == 1.0
