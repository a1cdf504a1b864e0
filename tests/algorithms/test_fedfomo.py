"""FedFomo against mixtures computed by hand, and whom clients are sent."""

import numpy as np
import pytest
import torch
from test_feddane import LR, flat, line

from kinfolk.algorithms.fedfomo import FedFomo, State, parcels
from kinfolk.algorithms.local import Local
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import nbytes

NAMES = ("ada", "ben", "cleo", "dan")
EPOCHS = 2


def lines(valid=0.3, rows=(9, 14, 7, 12)):
    """Four clients, two on each of two nearly opposite lines."""
    draw, by_client = np.random.Generator(np.random.PCG64(5)), {}
    for i, (who, n) in enumerate(zip(NAMES, rows, strict=True)):
        x = draw.normal(size=(n, 3)).astype(np.float32)
        slope = np.array([1.0, -2.0, 0.5]) * (1 if i % 2 else -0.9)
        by_client[who] = (x, (x @ slope + 0.3 * draw.normal(size=n)).astype(np.float32))
    return from_arrays(by_client, test=by_client, valid=valid)


def error(federation, split, i, w):
    """(mean squared error, its gradient) of client i's rows, in float64; w is [slopes, offset]."""
    mine = federation.splits[split].rows(i)
    x, y = federation.x[mine].double().numpy(), federation.y[mine].double().numpy()
    wide = np.column_stack([x, np.ones(len(x))])
    apart = wide @ w - y
    return (apart**2).mean(), 2 / len(y) * wide.T @ apart


def mix(judge, before, candidates, order):
    """(q, mixture); the last candidate is the client's own."""
    lengths = [np.linalg.norm(w - before, order) for w in candidates]
    gains = [judge(before) - judge(w) for w in candidates]
    q = np.array([g / d if d > 0 else 0.0 for g, d in zip(gains, lengths, strict=True)])
    good = np.maximum(q, 0)
    if not good.sum():
        return q, candidates[-1]
    return q, before + sum(s * (w - before) for s, w in zip(good / good.sum(), candidates, strict=True))


def by_hand(federation, w, cohorts, order, split):
    """(models, affinity) when everybody is sent all models that there are."""
    n = len(NAMES)
    model, before, sent, affinity = [w] * n, [w] * n, {}, np.zeros((n, n))
    for cohort in cohorts:
        start, offered = dict(enumerate(model)), dict(sent)
        for i in cohort:
            others = [j for j in offered if j != i]
            candidates = [*(offered[j] for j in others), model[i]]
            q, start[i] = mix(lambda v, i=i: error(federation, split, i, v)[0], before[i], candidates, order)
            if np.abs(q).sum():
                affinity[i, others] += (q / np.abs(q).sum())[:-1]
        for i in cohort:
            before[i] = v = start[i]
            for _ in range(EPOCHS):
                v = v - LR * error(federation, "train", i, v)[1]
            model[i] = sent[i] = v
    return model, affinity


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(("norm", "order"), [("l2", 2), ("l1", 1)])
@pytest.mark.parametrize("valid", [0.3, 0.0])
def test_mixtures_on_linear_regression(engine, norm, order, valid):
    federation = lines(valid)
    learner, w = line(batch=16, epochs=EPOCHS)
    cohorts = ((0, 1, 3), (0, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3))
    got = toy.play_rounds(
        FedFomo(learner, norm=norm), federation, engine, len(cohorts),
        cohort=lambda t: [NAMES[i] for i in cohorts[t]], score=False,
    )  # fmt: skip
    split = "valid" if valid else "train"
    models, affinity = by_hand(federation, w, cohorts, order, split)
    assert got.state.judged_on == split
    for i, who in enumerate(NAMES):
        np.testing.assert_allclose(flat(got.memories[who]["model"]), models[i], rtol=1e-3, atol=1e-5)
        kept = {name: leaf[i] for name, leaf in got.state.models.items()}
        assert message_difference(kept, got.memories[who]["model"], 0) == ""
    np.testing.assert_allclose(got.state.affinity.numpy(), affinity, rtol=1e-3, atol=1e-4)
    # Those on the same line like each other better than those on the other.
    assert affinity[0, 2] > affinity[0, 1]
    assert affinity[1, 3] > affinity[1, 0]


def test_who_has_no_rows_to_judge_by_trains_alone():
    federation = lines(0.3, rows=(9, 14, 1, 12))  # of a single row none is held out
    assert federation.splits["valid"].counts().tolist()[2] == 0
    learner, _ = line(batch=16, epochs=EPOCHS)
    got = toy.play_rounds(FedFomo(learner), federation, "batched", rounds=3, score=False)
    alone = toy.play_rounds(Local(learner), federation, "batched", rounds=3, score=False)
    assert got.state.judged_on == "valid"
    for who, same in (("cleo", True), ("ben", False), ("dan", False)):
        differs = message_difference(got.memories[who]["model"], alone.memories[who]["model"], 1e-5)
        assert (differs == "") is same, who


def known(affinity, sent=None, models=2, **options):
    """A method, and a state in which everybody (or those of `sent`) has sent a model."""
    names = tuple(f"c{i}" for i in range(len(affinity)))
    learner, _ = line(batch=4)
    there = torch.tensor([sent is None or i in sent for i in range(len(names))])
    stack = {n: torch.stack([t + i for i in range(len(names))]) for n, t in learner.first.items()}
    state = State(stack, there, torch.tensor(affinity, dtype=torch.float64), names, "valid")
    return FedFomo(learner, models=models, **options), state


LIKED = [[0, 0.1, 0.9, -0.3, 0.5], *[[0.0] * 5] * 4]


def context(number):
    return RoundContext(Seed(7), number, ())


def test_without_chance_the_most_liked_are_sent():
    method, state = known(LIKED, epsilon=0.0)
    assert {tuple(method.choose(state, "c0", context(t))) for t in range(20)} == {(2, 4)}
    method, state = known(LIKED, sent={0, 1, 3}, epsilon=0.0, models=4)
    assert method.choose(state, "c0", context(0)) == [1, 3]
    assert method.choose(state, "c0", context(1)) == [1, 3]


def test_among_equals_and_by_chance_everybody_gets_a_turn():
    for who, options in (("c3", {"epsilon": 0.0}), ("c0", {"epsilon": 1.0, "decay": 0.0})):
        method, state = known(LIKED, **options)
        found = [method.choose(state, who, context(t)) for t in range(200)]
        assert all(len(set(taken)) == 2 for taken in found)
        often = np.bincount(np.ravel(found), minlength=5)
        assert often[int(who[1])] == 0
        assert (np.delete(often, int(who[1])) > 70).all()  # 100 each, give or take


def test_chance_falls_from_round_to_round():
    method, state = known(LIKED, epsilon=0.3, decay=0.05, models=1)
    strayed = {}
    for t in (0, 3, 6, 50):
        draws = [method.choose(state, "c0", RoundContext(Seed(s), t, ())) for s in range(400)]
        strayed[t] = sum(taken != [2] for taken in draws) / 400
    # A random model is the most liked one in one case of four.
    assert strayed[0] == pytest.approx(0.3 * 0.75, abs=0.06)
    assert strayed[3] == pytest.approx(0.15 * 0.75, abs=0.05)
    assert strayed[6] == strayed[50] == 0


def test_parcels_hold_what_is_offered_and_mark_empty_places():
    _, state = known(LIKED)
    got = parcels(state, {"c0": [3], "c1": [0, 4], "c2": []})
    assert got.tensor("given").tolist() == [[True, False], [True, True], [False, False]]
    bias = state.models["bias"]
    assert torch.equal(got.row("c1")["models"]["bias"], bias[[0, 4]])
    assert torch.equal(got.row("c0")["models"]["bias"][0], bias[3])


def test_a_client_is_sent_no_more_than_it_downloads():
    federation = lines()
    learner, _ = line(batch=16)
    got = toy.play_rounds(FedFomo(learner, models=2), federation, rounds=2, score=False)
    model = nbytes({"model": learner.first})
    assert got.ledger["valid"]["down"] == 4 * 2 * (model + 1)  # nothing at first; a mark on each place
    assert got.ledger["valid"]["up"] == 2 * 4 * (model + 2 * 8 + 8)


@pytest.mark.parametrize(("name", "value"), [("models", 0), ("epsilon", -1), ("decay", -1)])
def test_bad_options_are_refused(name, value):
    with pytest.raises(KinfolkError, match=rf"algorithm.{name} = {value}"):
        FedFomo(line(batch=4)[0], **{name: value})
