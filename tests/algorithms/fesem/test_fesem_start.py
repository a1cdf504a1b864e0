"""What FeSEM makes of models that clients are made to send: its start, and where empty centres go."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kinfolk.algorithms.blocks import warm_start
from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.blocks.start import Start
from kinfolk.algorithms.blocks.warm_start import sketch_for, warm_kmeans
from kinfolk.algorithms.fesem.fesem import FeSEM
from kinfolk.clustering.agreement import agreement
from kinfolk.contract import toy
from kinfolk.script import play
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Stack

NAMES = tuple(map(Client, "abcdef"))
SIZES = (10, 30, 20, 40, 50, 10)
# Offsets of everybody's model from the first one: by all parameters {a, b, c} and {d, e, f} belong together,
# by the last layer {a, c, e} and {b, d, f}.
BODY = (0.0, 0.1, 0.0, 5.0, 5.1, 5.0)
HEAD = (0.0, 1.0, 0.1, 1.0, 0.1, 1.1)


def offsets(learner, names, body, head):
    """The first model moved by so much, for every client of `names`: {client: model}."""
    return {
        c: {n: t + (h if n.startswith("head.") else b) for n, t in learner.first.items()}
        for c, b, h in zip(names, body, head, strict=True)
    }


def answering(warm, update=None, log=None):
    """Performs requests: clients send these models, whatever they were sent, and have these SIZES."""

    def perform(request):
        if log is not None:
            log.append(request)
        sent = {"warm": warm, "update": warm if update is None else update}.get(request.task)
        rows = dict(zip(NAMES, SIZES, strict=True))
        replies = Stack.of({c: (rows[c], {} if sent is None else {"model": sent[c]}) for c in request.to})
        fold = request.fold
        return replies if fold is None else fold.end(fold.add(fold.begin(), replies))

    return perform


@pytest.mark.parametrize("way", ["held", "folded", "sampled"])
@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("cluster_on", ["all", "last_layer"])
def test_the_warm_start_compares_what_it_is_told_to_and_weighs_as_it_is_told(
    cluster_on, weights, way, monkeypatch
):
    """The groups that clients are trained in, and the centres they get, in the first round."""
    if way != "held":
        monkeypatch.setattr("kinfolk.algorithms.blocks.warm_start._fit", lambda *given: False)
    if way == "sampled":
        monkeypatch.setattr("kinfolk.algorithms.blocks.warm_start.MOST", 5)
    learner = toy.learner("mlp", toy.ragged())
    method = FeSEM(
        learner,
        k=2,
        cluster_on=cluster_on,
        aggregate=Aggregator(weights=weights),
        lam=0.0,
        start=Start(on="models"),
    )
    warm, log = offsets(learner, NAMES, BODY, HEAD), []
    state = method.init(learner.first, NAMES, Seed(0))
    play(method.round(state, NAMES, RoundContext(Seed(0), 0, NAMES)), answering(warm, log=log))
    sent = next(request.each for request in log if request.task == "update")
    group = dict(zip(sent.clients, sent.which.tolist(), strict=True))
    wanted = ("abc", "def") if cluster_on == "all" else ("ace", "bdf")
    assert {frozenset(c for c in NAMES if group[c] == k) for k in range(2)} == set(map(frozenset, wanted))
    for members in wanted:
        share = {c: SIZES[NAMES.index(c)] if weights == "size" else 1 for c in members}
        mean = sum(share[c] * warm[c]["head.bias"] for c in members) / sum(share.values())
        got = sent.table["model"]["head.bias"][group[members[0]]]
        assert torch.allclose(got, mean, atol=1e-4)


def test_an_empty_centre_is_never_put_on_the_only_member_of_another():
    """That would leave the other empty in its turn; its misfit, though the worst of all, does not count."""
    learner = toy.learner("mlp", toy.ragged())
    method = FeSEM(learner, k=3, start=Start("distinct_models"), reseed_after=1, patience=0)
    state = method.init(learner.first, NAMES, Seed(0))
    first = learner.first
    centres = {n: torch.stack([t, t + 10, t + 100]) for n, t in first.items()}
    state = replace(state, centres=centres, member=torch.tensor([0, 0, 0, 0, 0, 1]), split=True)
    # Five members of the first centre, none farther than 1; the only one of the second is 3 away from it.
    where = (0.0, 0.1, -0.1, 0.2, 1.0, 13.0)
    sent = offsets(learner, NAMES, where, where)
    new, info = play(
        method.round(state, NAMES, RoundContext(Seed(0), 1, NAMES)), answering(sent, update=sent)
    )
    assert new.member.tolist() == [0, 0, 0, 0, 0, 1]
    assert info["reseeded"] == 1
    assert torch.equal(new.centres["head.bias"][2], sent[Client("e")]["head.bias"])


# {a, b, c} went one way and {d, e, f} another; a and d went far.
FIRST = {"body": torch.tensor([3.0]), "head": torch.tensor([-7.0])}
FAR = dict(zip(NAMES, (5.0, 0.5, 0.4, 6.0, 0.5, 0.4), strict=True))
GONE = {
    c: {n: FIRST[n] + FAR[c] * (1.0 if (n == "body") == (c in "abc") else 0.5) for n in FIRST} for c in NAMES
}


@pytest.mark.parametrize("way", ["held", "folded", "sampled"])
@pytest.mark.parametrize(
    ("sizes", "start_on", "wanted"),
    [
        (SIZES, "auto", {"abc", "def"}),
        (SIZES, "models", {"ad", "bcef"}),
        ((20,) * 6, "auto", {"ad", "bcef"}),  # who has as many rows is compared as ever
    ],
)
def test_among_clients_of_unlike_size_the_start_goes_by_direction(sizes, start_on, wanted, way, monkeypatch):
    if way != "held":
        monkeypatch.setattr("kinfolk.algorithms.blocks.warm_start._fit", lambda *given: False)
    if way == "sampled":
        monkeypatch.setattr("kinfolk.algorithms.blocks.warm_start.MOST", 5)
    monkeypatch.setattr(f"{__name__}.SIZES", sizes)
    how = 2, 20, RoundContext(Seed(0), 0, NAMES), Aggregator()
    start = warm_kmeans(FIRST, ["body", "head"], *how, directions=None if start_on == "auto" else False)
    centres, labels = play(start, answering(GONE))
    assert {"".join(c for c in NAMES if labels[c] == k) for k in range(2)} == wanted
    for members in wanted:  # the centres are means of models, however they were compared
        mean = torch.stack([GONE[c]["head"] for c in members]).mean(0)
        assert torch.allclose(centres["head"][labels[members[0]]], mean, atol=1e-5)


@pytest.mark.parametrize("start_on", ["auto", "models"])
def test_the_option_says_what_the_start_compares(start_on, monkeypatch):
    seen = []

    def spy(*given, **named):
        seen.append(named["directions"])
        return warm_kmeans(*given, **named)

    monkeypatch.setattr("kinfolk.algorithms.blocks.start.warm_kmeans", spy)
    learner = toy.learner("mlp", toy.ragged())
    method = FeSEM(learner, k=2, start=Start(on=start_on))
    state = method.init(learner.first, NAMES, Seed(0))
    play(
        method.round(state, NAMES, RoundContext(Seed(0), 0, NAMES)),
        answering(offsets(learner, NAMES, BODY, HEAD)),
    )
    assert seen == [None if start_on == "auto" else False]


@pytest.mark.parametrize(
    ("engine", "start_on", "least", "most"),
    [("loop", "auto", 1, 1), ("batched", "auto", 1, 1), ("batched", "models", -1, 0.5)],
)
def test_groups_of_clients_that_train_are_found_whatever_their_size(engine, start_on, least, most):
    """Labels in three turns; 8 to 400 rows, so that some take fifty times as many steps as others."""
    names, turns = tuple(Client(f"c{i:02}") for i in range(12)), [i % 3 for i in range(12)]
    rows = (8, 16, 32, 400, 300, 200, 40, 24, 12, 8, 400, 90)
    federation = toy.grouped(rows, side=8, noise=0.3, names=names, turned=turns)
    learner = toy.learner("mlp", federation, momentum=0.0, lr=0.02)
    method = FeSEM(learner, k=3, start=Start(on=start_on, warm_epochs=1))
    groups = toy.play_rounds(method, federation, engine, rounds=1, score=False).groups
    assert least <= agreement(list(groups), turns)["ari"] <= most


def test_models_are_held_for_the_start_if_the_server_has_room_for_them():
    first = {"w": torch.zeros(250)}  # 1,000 bytes
    assert warm_start._fit(first, 8, None, room=8_000)
    assert not warm_start._fit(first, 9, None, room=8_000)
    sketch = sketch_for({"w": torch.zeros(warm_start.EXACT // 4 // 64)}, ["w"], 65, Seed(0))
    assert warm_start._fit(first, 8, sketch, room=8_000), "sketched or not"
    assert not warm_start._fit(first, 8, sketch, room=0)
    assert warm_start._fit(first, 8, None, room=0)
