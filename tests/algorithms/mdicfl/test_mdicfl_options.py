"""MD-ICFL's options: each reaches what it is about, and the default start is not undone by what follows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mdicfl_options import DISTINCT, FEW, changed, mdicfl
from test_mdicfl import one_round, started
from turned import turned

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.mdicfl.back_search import BackSearch
from kinfolk.algorithms.mdicfl.generator import Generator
from kinfolk.algorithms.mdicfl.mdicfl import MDICFL
from kinfolk.algorithms.mdicfl.pseudo import PseudoRows
from kinfolk.algorithms.options import options_of
from kinfolk.clustering.agreement import agreement
from kinfolk.contract import toy
from kinfolk.contract.checks import check_resume
from kinfolk.contract.compare import message_difference, state_difference
from kinfolk.contract.spoil import Passing
from kinfolk.federation.sources import build
from kinfolk.federation.spec import DataSpec
from kinfolk.learning.inputs import descend_rows
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import build_model
from kinfolk.script import play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan

TURN = RoundContext(Seed(0), 3, ())
SEARCH = {
    "search.lr": 0.3,
    "search.iterations": 9,
    "search.clip_to_range": True,
    "pseudo.prior_mean": 0.8,
    "pseudo.prior_weight": 3.0,
    "pseudo.norm": "squared",
}


def ready(method, federation):
    return replace(started(method, federation), shape=federation.shape)


def group(kind, name, usual, option, value):
    """A group of options by hand: the usual ones, and one that is changed if it is of this group."""
    own = {option.partition(".")[2]: value} if option.startswith(f"{name}.") else {}
    return kind(**{**usual, **own})


@pytest.mark.parametrize("option", SEARCH)
def test_every_option_of_the_search_reaches_it(option):
    federation, _ = turned(2)
    plain = mdicfl(toy.learner("mlp", federation), k=2, **DISTINCT, **FEW)
    state, value = ready(plain, federation), SEARCH[option]
    usual, got = (m.probe(state, TURN)[1].x for m in (plain, changed(plain, **{option: value})))
    search = group(BackSearch, "search", {"iterations": 20}, option, value)
    rows = group(PseudoRows, "pseudo", {"samples": 6}, option, value)
    assert torch.equal(got, search.draw(rows, plain.learner, state.centres, state.shape, TURN, {})[0])
    assert not torch.allclose(got, usual, atol=1e-3)
    if option == "search.clip_to_range":
        assert got.abs().max() <= 1 < usual.abs().max()


def test_the_options_of_the_generator_reach_it():
    federation, _ = turned(2)
    few = {"pseudo.samples": 2, "generator.iterations": 4, "generator.batch": 5}
    few |= {"generator.hidden": 6, "generator.noise": 3, "pseudo.sampler": "generator"}
    more = {"generator.lr": 0.05, "generator.output": "none"}
    prior = {"pseudo.prior_mean": 0.4, "pseudo.prior_weight": 2.0, "pseudo.norm": "squared"}
    learner = toy.learner("mlp", federation)
    method = mdicfl(learner, k=2, **DISTINCT, **few, **more, **prior)
    state = ready(method, federation)
    how, rows = Generator(4, 0.05, 5, 3, 6, "none"), PseudoRows("generator", 2, 0.4, 2.0, "squared")
    got = method.probe(state, TURN)[1].x
    assert torch.equal(got, how.draw(rows, learner, state.centres, state.shape, TURN, {})[0])
    for name, value in {**more, **prior}.items():
        usual = changed(method, **{name: options_of(MDICFL)[name]})
        assert not torch.allclose(usual.probe(state, TURN)[1].x, got, atol=1e-4), (name, value)


@pytest.mark.parametrize("privacy", ["weak", "strong"])
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_clusters_are_means_by_the_weights_that_are_asked_for(weights, privacy):
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    method = mdicfl(learner, k=2, **DISTINCT, **{"aggregate.weights": weights}, privacy=privacy, **FEW)
    said = {}

    def watch(request, reply):
        if request.task == "update":
            said[reply.clients[0]] = (int(reply.size[0]), reply.row(reply.clients[0])["model"]["head.weight"])
        return reply

    new, _, _ = one_round(method, started(method, federation), federation, wrap=lambda e: Passing(e, watch))
    assert len({size for size, _ in said.values()}) > 1
    for k in set(new.member.tolist()):
        mine = [said[c] for c in federation.clients if new.of([c]) == k]
        shares = np.array([size if weights == "size" else 1 for size, _ in mine], dtype=float)
        wanted = np.average([m.double().numpy() for _, m in mine], axis=0, weights=shares)
        np.testing.assert_allclose(new.centres["head.weight"][k].numpy(), wanted, atol=1e-6)


def test_common_rounds_are_fedavg_by_the_same_weights():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    for weights in ("size", "uniform"):
        method = mdicfl(learner, k=2, **{"aggregate.weights": weights, "start.shared_rounds": 2})
        ours = toy.play_rounds(method, federation, score=False).state.centres
        plain = toy.play_rounds(FedAvg(learner, weights), federation, score=False).state.model
        assert message_difference({n: t[1] for n, t in ours.items()}, plain, 0) == ""


def test_rounds_on_the_plateau_do_not_count_and_the_start_ends_all_the_same():
    federation, _ = turned(1)
    few = {"pseudo.samples": 2, "search.iterations": 2, "start.warm_epochs": 1, "start.restarts": 1}
    few |= {"start.shared_rounds": 2, "start.shared_most": 4}
    still = mdicfl(toy.learner("mlp", federation, lr=1e-6), k=2, **few)
    state, told = played(still, federation, 5)
    assert common(told) == [True] * 4 + [False], "nothing is learned, so it ends late"
    assert all(info["blind"] > 0.9 for info in told[:4])
    assert (state.counted, state.begun) == (0, True)
    quick = replace(still, learner=toy.learner("mlp", federation, epochs=4))
    state, told = played(quick, federation, 3)
    assert common(told) == [True, True, False]
    assert told[1]["blind"] < 0.9
    all_count = changed(still, **{"start.plateau": 0.0})
    assert common(played(all_count, federation, 3)[1]) == [True, True, False]


def common(told):
    """Which rounds were of one model."""
    return ["confidence" not in info for info in told]


def played(method, federation, rounds, engine="batched", absent=None):
    """(state, what each round told)."""
    told = []
    with toy.coordinated(method, federation, engine, absent) as coordinator:
        state = started(method, federation)
        for number in range(rounds):
            context = RoundContext(Seed(0), number, federation.clients)
            script = method.round(state, federation.clients, context)
            state, info = play(script, lambda request, context=context: coordinator.perform(request, context))
            told.append(info)
    return state, told


def digits(seed):
    """Rotated digits of four groups, and a small network that has hardly begun after a few epochs."""
    law = {"partition": "dirichlet", "alpha": 10.0}
    federation = build(DataSpec("digits", clients=12, rows=60, groups=4, shift="rotation", **law), Seed(seed))
    with Seed(seed).borrowed("init"):
        module = build_model("mlp", federation.shape, 10, {"hidden": [32]})
    return federation, Learner(module, find_loss("cross_entropy"), 10, plan=Plan(20, 1), lr=0.1)


def test_clusters_stand_until_their_models_are_sure():
    federation, learner = digits(1)
    few = {"pseudo.samples": 3, "search.iterations": 10, "start.plateau": 0.0, "start.shared_rounds": 3}
    sure = mdicfl(learner, k=4, **few)
    rash = changed(sure, **{"start.confidence": 0.0})
    (held, told), (lost, _) = (played(method, federation, 6) for method in (sure, rash))
    truth = federation.truth
    assert all(info["confidence"] < 0.7 for info in told[3:])
    assert agreement(held.member.tolist(), truth)["ari"] == 1.0
    assert agreement(lost.member.tolist(), truth)["ari"] < 0.9, "unsure models attract everybody"
    assert not held.assigned
    assert lost.assigned
    last = replace(sure, final_reassign=True)
    context = RoundContext(Seed(0), 6, federation.clients)
    with toy.coordinated(last, federation, "batched") as coordinator:
        end, _ = play(last.finalize(held, context), lambda request: coordinator.perform(request, context))
    assert torch.equal(end.member, held.member), "nor does a last assignment undo them"
    # Clusters that were drawn are nothing to hold on to.
    drawn = changed(sure, **{"start.name": "random_partition", "start.confidence": 1.0})
    assert played(drawn, federation, 2)[0].assigned


def test_clusters_that_stand_ask_nobody_to_choose():
    federation, _ = turned(3)
    few = {"k": 3, "privacy": "strong", "start.plateau": 0.0, "start.shared_rounds": 1, **FEW}
    method, asked = mdicfl(toy.learner("mlp", federation), **{"start.confidence": 1.0}, **few), []

    def watch(request, reply):
        asked.append(request.task)
        return reply

    toy.play_rounds(method, federation, rounds=3, wrap=lambda e: Passing(e, watch), score=False)
    assert "warm" in asked
    assert "choose" not in asked
    ready_to = changed(method, **{"start.confidence": 0.0})
    toy.play_rounds(ready_to, federation, rounds=3, wrap=lambda e: Passing(e, watch), score=False)
    assert "choose" in asked


@pytest.mark.parametrize("privacy", ["weak", "strong"])
def test_a_model_of_no_numbers_is_far_from_everybody(privacy):
    federation, _ = turned(2)
    method = mdicfl(toy.learner("mlp", federation), k=3, **DISTINCT, privacy=privacy, **FEW)
    state = started(method, federation)
    # Finite, as an absurd reply that passed would leave it, but what it says is not.
    absurd = {n: t.index_copy(0, torch.tensor([2]), t[2:] * 1e30) for n, t in state.centres.items()}
    spoilt = replace(state, centres=absurd, shape=federation.shape)
    assert method.probe(spoilt, TURN)[1].own[2].isnan().all()
    others = [c for c in federation.clients if state.of([c]) != 2]
    new, info, _ = one_round(method, spoilt, federation, cohort=others)
    assert set(new.of(others).tolist()) <= {0, 1}
    assert 0 < info["confidence"] <= 1


def test_warm_rows_go_on_from_the_round_before():
    federation, _ = turned(2)
    method = mdicfl(toy.learner("mlp", federation), k=2, **DISTINCT, **{"search.warm_steps": 2}, **FEW)
    state, first = method.probe(ready(method, federation), TURN)
    assert torch.equal(state.kept["x"], first.x)
    fresh = changed(method, **{"search.warm_steps": 0})
    assert torch.equal(first.x, fresh.probe(state, TURN)[1].x), "at first they are fresh"
    later, second = method.probe(state, RoundContext(Seed(0), 4, ()))
    y, cost = method.pseudo.labels(4), method.pseudo.cost(method.learner)
    assert torch.equal(second.x, descend_rows(method.learner, state.centres, first.x, y, cost, 0.1, 2))
    assert torch.equal(later.kept["x"], second.x)
    # Rows of a model that was no number for a while begin anew.
    x = first.x.clone()
    x[1, 0] = torch.nan
    mended = method.probe(replace(state, kept={"x": x}), RoundContext(Seed(0), 4, ()))[1].x
    assert mended.isfinite().all()
    assert torch.equal(mended[0], second.x[0])
    assert fresh.probe(state, TURN)[0].kept == {}


START = {
    "start.plateau": 0.0,
    "start.shared_rounds": 1,
    "start.confidence": 0.0,
    "pseudo.samples": 2,
    "search.iterations": 3,
}
RESUMED = {
    "warm rows": {**START, "search.warm_steps": 2},
    "start.plateau": {
        "start.shared_rounds": 1,
        "start.shared_most": 2,
        "pseudo.samples": 2,
        "search.iterations": 3,
    },
}


@pytest.mark.parametrize("what", RESUMED)
def test_a_resumed_run_has_the_same_end(what):
    check_resume(lambda learner: mdicfl(learner, k=2, **RESUMED[what]))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["batched", "workers", "wire"])
def test_engines_agree_on_the_start_with_absent_clients(engine):
    federation, _ = turned(2)
    few = {**START, "start.shared_rounds": 2, "search.warm_steps": 2, "start.plateau": 0.99}
    method = mdicfl(toy.learner("mlp", federation), k=2, **few)
    gone = lambda context, who: (context.round + len(who) + ord(who[-1])) % 4 == 0  # noqa: E731
    (one, told), (other, heard) = (played(method, federation, 4, e, gone) for e in ("loop", engine))
    assert one.begun
    assert one.member.tolist() == other.member.tolist()
    assert state_difference(one, other, 1e-4) == ""
    assert [i["clusters"] for i in told] == [i["clusters"] for i in heard]
