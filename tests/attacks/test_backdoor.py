"""Back doors: attackers train on triggered rows, and it is counted how often the trigger works on others."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from attacking import BAD, FEDERATION, fedavg, ifca, replies
from small_runs import SPEC, digits, equal, go, saved

from kinfolk import api
from kinfolk.attacks.rows import Trigger
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import read_rounds, read_scores
from kinfolk.experiment.spec import override

VALUE = 7.0
RUN = ["data.clients=6", "data.rows=40", "run.rounds=3", "run.attack=backdoor", "run.attackers=0.34"]


def poisoned_by_hand():
    """The same rows; of an attacker's training rows the first, third, ... have the trigger and class 0."""
    x, y, train = FEDERATION.x.clone(), FEDERATION.y.clone(), FEDERATION.splits["train"]
    for who in BAD:
        rows = train.rows(FEDERATION.place(who))[::2]
        x[rows, :, -2:, -2:] = VALUE
        y[rows] = 0
    return replace(FEDERATION, x=x, y=y)


@pytest.mark.parametrize("name", ["loop", "batched", "wire", pytest.param("workers", marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [fedavg, ifca])
def test_attackers_train_as_if_their_rows_had_been_changed_beforehand(make, name):
    method, task, message = make()
    honest = replies(method, "", task, message, name)
    found = replies(method, "backdoor", task, message, name, trigger=Trigger(VALUE))
    expected = replies(method, "", task, message, name, federation=poisoned_by_hand())
    for who in found.clients:
        if who not in BAD:
            assert equal(found.row(who), honest.row(who))
            continue
        for leaf, t in expected.row(who)["model"].items():
            torch.testing.assert_close(found.row(who)["model"][leaf], t, rtol=1e-4, atol=1e-5)
        assert any(
            not torch.equal(t, found.row(who)["model"][n]) for n, t in honest.row(who)["model"].items()
        )


def fooled_by_hand(model, federation, who):
    """Of a client's test rows of other classes, the share that a linear model calls 0 once triggered."""
    rows = federation.splits["test"].rows(federation.place(who))
    x, y = federation.take(rows)
    weight, bias = model.values()
    value = float(federation.take(federation.splits["train"].rows(0))[0].max())
    hit = counted = 0
    for image, label in zip(x.numpy().copy(), y.tolist(), strict=True):
        if label != 0:
            image.reshape(8, 8)[6:, 6:] = value
            scores = weight.double().numpy() @ image.ravel().astype(np.float64) + bias.double().numpy()
            hit, counted = hit + int(scores.argmax() == 0), counted + 1
    return hit / counted, counted


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_success_is_the_share_of_triggered_rows_that_are_taken_for_the_target(engine, tmp_path):
    go(tmp_path, *RUN, f"engine.name={engine}")
    _, tensors, _ = saved(tmp_path)
    federation = digits(override(SPEC, RUN).data, 0)
    scores = read_scores(tmp_path)
    scores = scores[scores["score"] == "attack_success"]
    assert set(scores["round"]) == {0, 1, 2, 3}
    last = scores[scores["round"] == 3].set_index("client")
    bad = json.loads((tmp_path / "run.json").read_text())["attackers"]
    assert set(last.index) == set(federation.clients) - set(bad)
    (model,) = [leaf for leaf in tensors["state"].values() if isinstance(leaf, dict)]
    by_hand = {c: fooled_by_hand(model, federation, c) for c in last.index}
    assert last["rows"].to_dict() == {c: rows for c, (_, rows) in by_hand.items()}
    for who, (share, _) in by_hand.items():
        assert last["value"][who] == pytest.approx(share, abs=1e-9)
    told = read_rounds(tmp_path)[-1]["summary"]["centre"]["attack_success"]
    assert told["macro"] == pytest.approx(np.mean([s for s, _ in by_hand.values()]))
    assert told["worst"] == pytest.approx(max(s for s, _ in by_hand.values()))


def test_without_attackers_the_same_trigger_is_tried_and_the_run_is_the_run_it_was(tmp_path):
    clean = go(tmp_path / "clean", *RUN[:3])
    tried = go(tmp_path / "tried", *RUN, "run.attackers=0")
    bad = go(tmp_path / "bad", *RUN, "local.epochs=3", "run.rounds=8")
    assert equal({"m": clean.state.model}, {"m": tried.state.model})
    assert clean.summary["centre"]["accuracy"] == tried.summary["centre"]["accuracy"]
    success = [one.summary["centre"]["attack_success"]["macro"] for one in (tried, bad)]
    assert success[1] > success[0] + 0.2


def test_success_is_told_by_group(tmp_path):
    go(tmp_path, *RUN, "algorithm.name=ifca", "algorithm.k=2")
    scores = read_scores(tmp_path)
    assert scores[scores["score"] == "attack_success"]["group"].notna().all()


def test_rows_that_take_no_trigger_are_refused(tmp_path):
    rows = {f"c{i}": (torch.arange(12).reshape(6, 2) % 3, torch.arange(6) % 2) for i in range(4)}
    net = torch.nn.Sequential(torch.nn.Embedding(3, 2), torch.nn.Flatten(), torch.nn.Linear(4, 2))
    with pytest.raises(KinfolkError, match=r"run.attack = 'backdoor': needs rows of numbers"):
        api.run(net, rows, folder=tmp_path, settings={"run.attack": "backdoor", "run.attackers": 0.3})
