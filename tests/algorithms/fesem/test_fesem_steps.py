"""FeSEM step by step in rounds that were really trained: the objective, switches, empty centres, the end."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from turned import turned

from kinfolk.algorithms import with_options
from kinfolk.algorithms.blocks.start import Start
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fesem.fesem import FeSEM
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.experiment.record import read_audit, read_rounds
from kinfolk.experiment.run import run
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.script import play
from kinfolk.streams import RoundContext, Seed

STARTS = ("warm_kmeans", "random_partition", "distinct_models")


def flat64(tree, names):
    """[rows, D] in NumPy."""
    return np.concatenate([tree[n].numpy().astype(np.float64).reshape(len(tree[n]), -1) for n in names], 1)


def local_losses(learner, federation, clients, models):
    """F_i(w_i) by hand: the mean cross entropy of each client's model on its training rows."""
    found = []
    for i, who in enumerate(clients):
        x, y = federation.take(federation.splits["train"].rows(federation.clients.index(who)))
        out = learner.apply({n: t[i] for n, t in models.items()}, x).detach().numpy().astype(np.float64)
        top = out.max(1, keepdims=True)
        logs = out - top - np.log(np.exp(out - top).sum(1, keepdims=True))
        found.append(-logs[np.arange(len(y)), y.numpy()].mean())
    return np.array(found)


def played(method, federation, cohorts):
    """Of every round: (who sent what, the groups and centres they trained from, the state after it)."""
    state = method.init(method.learner.first, federation.clients, Seed(0))
    with toy.coordinated(method, federation, "batched") as coordinator:
        for number, cohort in enumerate(cohorts):
            context, seen = RoundContext(Seed(0), number, federation.clients), []

            def perform(request, context=context, seen=seen):
                if request.task == "update":  # the same work twice gives the same models
                    seen[:] = [coordinator.perform(replace(request, fold=None), context), request.each]
                return coordinator.perform(request, context)

            state, _ = play(method.round(state, cohort, context), perform)
            yield *seen, state


@pytest.mark.parametrize(
    "options",
    [
        *({"start.name": start} for start in STARTS),
        {"aggregate.weights": "size"},
        {"cluster_on": "last_layer", "start.name": "random_partition"},
        {"lam": 0.7, "prox_scaling": "plain"},
    ],
    ids=str,
)
def test_the_objective_never_rises_in_any_step_of_a_run(options):
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    usual = {"k": 3, "reseed_after": 1, "patience": 0, "start.warm_epochs": 2}
    method = with_options(FeSEM, learner, {**usual, **options})
    everyone = federation.clients
    cohorts = [everyone, everyone[:5], everyone[2:], everyone]
    moved = 0.0
    for sent, given, state in played(method, federation, cohorts):
        models, rows = sent.tree("model"), sent.size.numpy()
        share = rows / rows.sum()
        apart = share if method.aggregate.weights == "size" else np.full(len(rows), 1 / len(rows))
        loss = float(share @ local_losses(learner, federation, sent.clients, models))
        w = flat64(models, method.names)

        def eq6(group, centres, w=w, apart=apart, loss=loss):
            c = flat64(centres, method.names)
            return loss + method.lam * float(apart @ ((w - c[group]) ** 2).sum(1))

        old, place = given.table["model"], dict(zip(given.clients, given.which.tolist(), strict=True))
        before, after = np.array([place[c] for c in sent.clients]), state.of(sent.clients).numpy()
        steps = [eq6(before, old), eq6(after, old), eq6(after, state.centres)]
        assert steps[1] <= steps[0] + 1e-9, "the E-step raised it"
        assert steps[2] <= steps[1] + 1e-6 * abs(steps[1]), "the M-step raised it"
        moved += steps[0] - steps[2]
    assert moved > 1e-4, "no step did anything: nothing was tested"


@pytest.mark.parametrize("start", STARTS)
def test_every_start_logs_how_many_switched(start, tmp_path):
    def make(learner):
        return FeSEM(learner, k=3, start=Start(start), reseed_after=0)

    federation = toy.ragged()
    first = make(toy.learner("mlp", federation))
    member = first.init(first.learner.first, federation.clients, Seed(0)).member
    for rounds in (1, 3) if start == "distinct_models" else (1, 2):
        result = toy.run_toy(make, tmp_path / str(rounds), {"rounds": rounds})
        lines = [fact["groups"]["switch"] for fact in read_rounds(result.folder) if fact["round"]]
        assert len(lines) == rounds
        moved = float((result.state.member != member).double().mean())
        assert lines[-1] == pytest.approx(moved)
        member = result.state.member
    if start == "distinct_models":
        assert lines[1:] == [0.0, 0.0], "locked in"


def test_a_centre_that_empties_in_round_one_keeps_its_model_and_the_run_goes_on(tmp_path):
    """Clients that do not move are as near to every centre: all fall to the first, the others empty."""
    federation, _ = turned(3)
    learner = toy.learner("mlp", federation, lr=0.0)
    method = FeSEM(learner, k=3, start=Start("random_partition"), reseed_after=0, patience=2)
    calm, sizes = [], []
    for rounds in (1, 2, 3, 4):
        state = toy.play_rounds(method, federation, rounds=rounds, score=False).state
        calm.append((state.stable_rounds, bool(method.finished(state))))
        sizes.append(state.member.bincount(minlength=3).tolist())
        for k in range(3):
            assert message_difference({n: t[k] for n, t in state.centres.items()}, learner.first, 1e-5) == ""
    assert sizes[1:] == [[12, 0, 0]] * 3
    assert calm[2:] == [(1, False), (2, True)]


def test_a_settled_run_stops_by_itself(tmp_path):
    federation, _ = turned(3)
    learner = toy.learner("mlp", federation)
    spec = toy.spec_of(FeSEM(learner, k=3, patience=2, start=Start(warm_epochs=1)), {"rounds": 30})
    spec = replace(spec, local=replace(spec.local, lr=1e-12))
    result = run(spec, tmp_path / "r", federation=federation, network=learner.module)
    assert result.rounds < 10
    facts = json.loads((tmp_path / "r/run.json").read_text())
    assert "did not change for 2 rounds" in json.dumps(facts)


def test_a_client_whose_updates_are_no_numbers_is_named_in_the_audit_and_the_groups_are_those_of_the_others(
    tmp_path,
):
    federation, truth = turned(3)
    rows = {c: federation.take(federation.splits["train"].rows(i)) for i, c in enumerate(federation.clients)}
    bad = federation.clients[4]
    rows[bad] = rows[bad][0] * 1e30, rows[bad][1]
    spoilt = from_arrays({c: (x.numpy(), y.numpy()) for c, (x, y) in rows.items()}, classes=4)
    learner = toy.learner("mlp", spoilt)
    spec = toy.spec_of(FeSEM(learner, k=3), {"rounds": 7})  # five of them go into the start
    result = run(spec, tmp_path / "r", federation=spoilt, network=learner.module)
    told = [line for line in read_audit(tmp_path / "r") if line["event"] == "rejected"]
    assert {line["client"] for line in told} == {bad}
    assert {(line["round"], line["task"]) for line in told} >= {(0, "warm"), (0, "update"), (1, "update")}
    assert all(line["reason"] for line in told)
    honest = [i for i, c in enumerate(spoilt.clients) if c != bad]
    pairs = set(zip(result.state.member[honest].tolist(), truth[honest].tolist(), strict=True))
    assert len(pairs) == 3, "three turns, three groups, one for each"
    assert all(torch.isfinite(t).all() for t in result.state.centres.values())


@pytest.mark.parametrize("start", ["random_partition", "distinct_models"])
def test_one_centre_of_some_clients_is_uniform_fedavg_as_well(start):
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    options = {"rounds": 3, "participation": 0.5, "score": False}
    plain = toy.play_rounds(FedAvg(learner, "uniform"), federation, **options).state.model
    got = toy.play_rounds(
        FeSEM(learner, k=1, lam=0.0, start=Start(start)), federation, **options
    ).state.centres
    assert message_difference({n: t[0] for n, t in got.items()}, plain, 0) == ""
