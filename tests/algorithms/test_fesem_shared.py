"""FeSEM from a common model: how long clients share it, that parting is a round, and what K = 1 is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from turned import turned

from kinfolk.algorithms import build_algorithm
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fesem import FeSEM, FeSEMShared
from kinfolk.clustering.agreement import agreement
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.experiment.record import read_rounds
from kinfolk.script import Ask, play
from kinfolk.streams import Seed, Turn


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_with_one_group_it_is_fedavg_before_and_after_clients_are_parted(engine, rounds):
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    method = FeSEMShared(learner, k=1, shared_rounds=1, plateau=0.0)
    ours = toy.play_rounds(method, federation, engine, rounds=rounds, score=False).state
    plain = toy.play_rounds(FedAvg(learner), federation, engine, rounds=rounds, score=False).state.model
    assert ours.parted == (rounds > 1)
    assert message_difference({n: t[0] for n, t in ours.centres.items()}, plain, 1e-6) == ""


def test_parting_is_a_round_everybody_trains_once_in_it_and_nothing_is_extra():
    federation, truth = turned(3)
    learner = toy.learner("mlp", federation, epochs=3)
    method = FeSEMShared(learner, k=3, shared_rounds=2, plateau=0.0)
    state = method.init(learner.first, federation.clients, Seed(0))
    with toy.staged(method, federation) as stage:
        for number in range(4):
            asked, turn = [], Turn(Seed(0), number, federation.clients)

            def perform(request, turn=turn, asked=asked):
                asked.append(request.task)
                return stage.perform(request, turn)

            before = state
            state, _ = play(method.round(state, federation.clients, turn), perform)
            assert asked == [["count", "update"], ["update"], ["warm"], ["update"]][number]
            assert state.parted == (number > 1)
            if number == 2:
                parting = before, state
        table = method.tasks()
        assert table["warm"].passes == learner.train().passes, "as long as any round's update"
        model = {n: t[0] for n, t in parting[0].centres.items()}
        turn = Turn(Seed(0), 2, federation.clients)
        sent = stage.perform(Ask("warm", federation.clients, {"model": model}), turn)
    assert agreement(parting[1].member.tolist(), truth)["ari"] == 1.0
    for k in range(3):  # the centres are the means of the groups' updates, by rows
        mine = [c for c, g in zip(federation.clients, parting[1].member.tolist(), strict=True) if g == k]
        bias = torch.stack([sent.row(c)["model"]["head.bias"].double() for c in mine]).mean(0)
        assert torch.allclose(parting[1].centres["head.bias"][k].double(), bias, atol=1e-6)


def shared_for(blind, **options):
    """How many rounds clients share one model who tell these numbers, round by round."""
    federation = toy.alike()
    learner = toy.learner("mlp", federation)
    method = FeSEMShared(learner, k=2, **options)
    state, told = method.init(learner.first, federation.clients, Seed(0)), iter(blind)
    with toy.staged(method, federation) as stage:
        for number in range(len(blind) + 1):
            turn = Turn(Seed(0), number, federation.clients)

            def perform(request, turn=turn):
                if request.task != "common":
                    return stage.perform(request, turn)
                replies = stage.perform(replace(request, fold=None), turn)
                said = torch.full((len(replies.clients),), next(told))
                replies = replace(replies, body={**replies.body, "blind": said})
                return request.fold.end(request.fold.add(request.fold.begin(), replies))

            state, _ = play(method.round(state, federation.clients, turn), perform)
            if state.parted:
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
    method = FeSEM(toy.learner("mlp", federation), k=2, shared_rounds=3, shared_most=1)
    assert not toy.play_rounds(method, federation, rounds=3, score=False).state.parted
    assert toy.play_rounds(method, federation, rounds=4, score=False).state.parted


def test_a_run_tells_how_far_the_common_model_is(tmp_path):
    def make(learner):
        return FeSEMShared(learner, k=2, shared_rounds=2, shared_most=3)

    result = toy.run_toy(make, tmp_path / "r", {"rounds": 5})
    told = [r["info"].get("blind") for r in read_rounds(result.folder) if "info" in r]
    shared = [b for b in told if b is not None]
    assert 2 <= len(shared) <= 3
    assert all(0 <= b <= 2 for b in shared)
    assert result.rounds == 5, "nothing was extra"
    assert result.state.parted


def test_it_is_known_by_its_name_and_takes_the_options_of_fesem():
    learner = toy.learner("mlp", toy.alike())
    method = build_algorithm("fesem_shared", learner, {"k": 2, "lam": 0.1})
    assert isinstance(method, FeSEM)
    assert (method.k, method.lam, method.weights, method.warm_epochs) == (2, 0.1, "size", 0)
