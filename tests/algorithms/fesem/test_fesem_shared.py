"""FeSEM from a common model: how long clients share it, that parting is a round, and what K = 1 is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from turned import turned

from kinfolk.algorithms import build_algorithm
from kinfolk.algorithms.blocks.start import Start
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fesem.fesem import FeSEM, FeSEMShared
from kinfolk.clustering.agreement import agreement
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.experiment.record import read_rounds
from kinfolk.script import play
from kinfolk.streams import RoundContext, Seed


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("plateau", [0.0, 0.9])
def test_with_one_group_it_is_fedavg(engine, plateau):
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    method = FeSEMShared(
        learner, k=1, start=Start("shared_kmeans", shared_rounds=1, plateau=plateau, shared_most=2)
    )
    options = {"rounds": 4, "participation": 0.5, "score": False}
    ours = toy.play_rounds(method, federation, engine, **options).state
    plain = toy.play_rounds(FedAvg(learner), federation, engine, **options).state.model
    assert message_difference({n: t[0] for n, t in ours.centres.items()}, plain, 0) == ""


def test_parting_trains_once_more_from_the_common_model_and_is_counted():
    federation, truth = turned(3)
    learner = toy.learner("mlp", federation)
    method = FeSEMShared(
        learner, k=3, start=Start("shared_kmeans", shared_rounds=2, plateau=0.0, warm_epochs=3)
    )
    state = method.init(learner.first, federation.clients, Seed(0))
    with toy.coordinated(method, federation) as coordinator:
        for number in range(4):
            asked, context = [], RoundContext(Seed(0), number, federation.clients)

            def perform(request, context=context, asked=asked):
                asked.append(request)
                return coordinator.perform(request, context)

            before = state
            state, _ = play(method.round(state, federation.clients, context), perform)
            tasks = [request.task for request in asked]
            assert tasks == [["count", "update"], ["update"], ["warm", "update"], ["update"]][number]
            assert state.split == (number > 1)
            if number == 2:
                model = {n: t[0] for n, t in before.centres.items()}
                sent, centres = coordinator.perform(asked[0], context), asked[1].each
                assert message_difference(asked[0].shared["model"], model, 0) == ""
    warm = method.tasks()["warm"]
    assert warm.extra, "it is taken off the rounds of a run"
    assert warm.passes[0].plan == replace(learner.plan, epochs=3)
    assert agreement(state.member.tolist(), truth)["ari"] == 1.0
    group = dict(zip(centres.clients, centres.which.tolist(), strict=True))
    for k in range(3):  # what clients go on from: the means of their groups, of as many rows each
        bias = torch.stack([sent.row(c)["model"]["head.bias"].double() for c in group if group[c] == k]).mean(
            0
        )
        assert torch.allclose(centres.table["model"]["head.bias"][k].double(), bias, atol=1e-6)


def shared_for(blind, **options):
    """How many rounds clients share one model who tell these numbers, round by round."""
    federation = toy.alike()
    learner = toy.learner("mlp", federation)
    method = FeSEMShared(learner, k=2, start=Start("shared_kmeans", **options))
    state, told = method.init(learner.first, federation.clients, Seed(0)), iter(blind)
    with toy.coordinated(method, federation) as coordinator:
        for number in range(len(blind) + 1):
            context = RoundContext(Seed(0), number, federation.clients)

            def perform(request, context=context):
                if request.task != "common":
                    return coordinator.perform(request, context)
                replies = coordinator.perform(replace(request, fold=None), context)
                said = torch.full((len(replies.clients),), next(told))
                replies = replace(replies, body={**replies.body, "blind": said})
                return request.fold.end(request.fold.add(request.fold.begin(), replies))

            state, _ = play(method.round(state, federation.clients, context), perform)
            if state.split:
                return number
    return len(blind) + 1


@pytest.mark.parametrize(
    ("blind", "options", "rounds"),
    [
        ([0.5] * 9, {"shared_rounds": 3, "plateau": 0.9}, 3),
        ([0.99, 0.98, 0.95, 0.8, 0.7, 0.6, 0.5], {"shared_rounds": 2, "plateau": 0.9}, 5),
        (
            [0.8, 0.95, 0.8, 0.7],
            {"shared_rounds": 2, "plateau": 0.9},
            3,
        ),  # rounds that count, in a row or not
        ([0.99] * 9, {"shared_rounds": 2, "plateau": 0.9, "shared_most": 4}, 4),
        ([0.4] * 9, {"shared_rounds": 1, "plateau": 0.9}, 1),
    ],
)
def test_clients_share_until_so_many_rounds_have_left_the_plateau(blind, options, rounds):
    assert shared_for(blind, **options) == rounds


def test_rounds_that_are_only_counted_are_not_cut_short():
    federation = toy.alike()
    method = FeSEM(
        toy.learner("mlp", federation),
        k=2,
        start=Start("shared_kmeans", shared_rounds=3, shared_most=1, plateau=0),
    )
    assert not toy.play_rounds(method, federation, rounds=3, score=False).state.split
    assert toy.play_rounds(method, federation, rounds=4, score=False).state.split


def test_a_run_tells_how_far_the_common_model_is(tmp_path):
    def make(learner):
        return FeSEMShared(learner, k=2, start=Start("shared_kmeans", shared_rounds=2, shared_most=3))

    result = toy.run_toy(make, tmp_path / "r", {"rounds": 5})
    told = [r["info"].get("blind") for r in read_rounds(result.folder) if "info" in r]
    shared = [b for b in told if b is not None]
    assert 2 <= len(shared) <= 3
    assert all(0 <= b <= 2 for b in shared)
    assert [r["extra"] for r in read_rounds(result.folder) if "extra" in r] == [5.0], "parting, once"
    assert result.state.split


def test_it_is_known_by_its_name_and_takes_the_options_of_fesem():
    learner = toy.learner("mlp", toy.alike())
    method = build_algorithm("fesem_shared", learner, {"k": 2, "lam": 0.1})
    assert isinstance(method, FeSEM)
    assert (method.k, method.lam, method.aggregate.weights, method.start.warm_epochs) == (2, 0.1, "size", 5)
