"""Attackers: each does what its formula says, in every engine, and the honest are left as they are."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from attacking import BAD, FEDERATION, fedavg, ifca, replies
from scipy.stats import kstest, pearsonr
from small_runs import SPEC, assert_same_end, go

from kinfolk import api
from kinfolk.algorithms import ALGORITHMS
from kinfolk.algorithms.fedsgd import FedSGD
from kinfolk.attacks.attack import Attack
from kinfolk.attacks.updates import altered
from kinfolk.contract import toy
from kinfolk.engines.choose import ENGINES
from kinfolk.errors import KinfolkError
from kinfolk.experiment.attack import attackers
from kinfolk.experiment.budget import head_start
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.record import read_scores
from kinfolk.experiment.score import score_groups
from kinfolk.experiment.spec import override
from kinfolk.learning.learner import keep_model, own_model
from kinfolk.script import client_tasks
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import ClientInfo, Peer, PeerTask
from kinfolk.types import Client, Stack


def by_hand(kind, was: np.ndarray, began: np.ndarray) -> np.ndarray:
    return began - (was - began) if kind == "sign_flip" else began + 10 * (was - began)


def assert_bent(kind, honest: Stack, found: Stack, began) -> None:
    """The attackers' models by the formula, everything else to the last bit."""
    assert honest.clients == found.clients
    for i, who in enumerate(honest.clients):
        for name, leaf in honest.tree("model").items():
            was, now = leaf[i].numpy(), found.tree("model")[name][i].numpy()
            if who in BAD and leaf.is_floating_point():
                np.testing.assert_allclose(now, by_hand(kind, was, began(i, name)), rtol=1e-4, atol=1e-5)
            else:
                np.testing.assert_array_equal(was, now)
    assert all(torch.equal(t, found.body[k]) for k, t in honest.body.items() if k != "model")


@pytest.mark.parametrize("kind", ["sign_flip", "scaled"])
@pytest.mark.parametrize("name", ENGINES)
def test_updates_are_bent_about_what_was_sent(name, kind):
    method, task, message = fedavg()
    honest, found = (replies(method, k, task, message, name) for k in ("", kind))
    assert_bent(kind, honest, found, lambda i, leaf: message["model"][leaf].numpy())


@pytest.mark.parametrize("name", ["loop", "batched"])
def test_who_chooses_a_model_is_bent_about_the_chosen_one(name):
    method, task, message = ifca()
    honest, found = (replies(method, k, task, message, name) for k in ("", "sign_flip"))
    chosen = honest.tensor("choice").tolist()
    assert {chosen[i] for i, c in enumerate(honest.clients) if c in BAD} != {0}
    assert_bent("sign_flip", honest, found, lambda i, leaf: message["models"][leaf][chosen[i]].numpy())


def test_a_gradient_is_bent_about_zero():
    learner = toy.learner("mlp", FEDERATION)
    method, message = FedSGD(learner), {"model": learner.first}
    honest, found = (replies(method, k, "gradient", message) for k in ("", "scaled"))
    for i, who in enumerate(honest.clients):
        for name, leaf in honest.tree("gradient").items():
            times = 10 if who in BAD else 1
            np.testing.assert_allclose(
                found.tree("gradient")[name][i], times * leaf[i].numpy(), rtol=1e-5, atol=1e-6
            )


def noise_of(name="loop", round=4):
    method, task, message = fedavg()
    honest, found = (replies(method, k, task, message, name, round) for k in ("", "noise"))
    floats = [n for n, t in message["model"].items() if t.is_floating_point()]

    def flat(models, i=...):
        return torch.cat([models[n][i].flatten().double() for n in floats]).numpy()

    out = {}
    for i, who in enumerate(honest.clients):
        was, now = flat(honest.tree("model"), i), flat(found.tree("model"), i)
        if who not in BAD:
            np.testing.assert_array_equal(was, now)
            continue
        moved = was - flat(message["model"])
        out[who] = (now - was) / (3 * moved.std())
    return out


def test_noise_is_normal_three_times_the_updates_own_and_new_for_each_client_and_round():
    now, later, batched = noise_of(), noise_of(round=5), noise_of("batched")
    drawn = [*now.values(), *later.values()]
    assert len(drawn) == 6
    for z in drawn:
        assert kstest(z, "norm").pvalue > 1e-3
    together = np.concatenate(drawn)
    assert together.std() == pytest.approx(1, abs=4.5 / np.sqrt(2 * len(together)))
    for i, a in enumerate(drawn):
        for b in drawn[:i]:
            assert abs(pearsonr(a, b).statistic) < 5 / np.sqrt(len(a))
    for who, z in now.items():
        np.testing.assert_allclose(z, batched[who], atol=1e-3)


def flipped_by_hand():
    """The same rows, with the attackers' training labels turned round beforehand."""
    y, train = FEDERATION.y.clone(), FEDERATION.splits["train"]
    for who in BAD:
        rows = train.rows(FEDERATION.place(who))
        y[rows] = FEDERATION.classes - 1 - y[rows]
    return replace(FEDERATION, y=y)


@pytest.mark.parametrize("name", ["loop", "batched"])
@pytest.mark.parametrize("make", [fedavg, ifca])
def test_flipped_labels_train_as_if_the_rows_had_them(make, name):
    method, task, message = make()
    honest = replies(method, "", task, message, name)
    found = replies(method, "label_flip", task, message, name)
    expected = replies(method, "", task, message, name, federation=flipped_by_hand())
    for key in honest.body:
        pairs = [(f, e) for f, e in zip(_leaves(found, key), _leaves(expected, key), strict=True)]
        for f, e in pairs:
            torch.testing.assert_close(f, e, rtol=1e-5, atol=1e-6)
    good = [c for c in honest.clients if c not in BAD]
    for h, f in zip(_leaves(honest.at(good), "model"), _leaves(found.at(good), "model"), strict=True):
        assert torch.equal(h, f)
    for who in BAD:
        assert any((honest.row(who)["model"][n] != t).any() for n, t in found.row(who)["model"].items())


def _leaves(stack, key):
    value = stack.body[key]
    return list(value.values()) if isinstance(value, dict) else [value]


def test_trees_of_whole_numbers_are_left_alone():
    tree = {"n": torch.tensor([3])}
    for kind in ("sign_flip", "scaled", "noise"):
        assert altered(kind, tree, {}, torch.tensor(1)) == tree


def test_memories_keep_the_word_on_who_attacks():
    seen = []
    learner = toy.learner("mlp", FEDERATION)
    table = {
        "practise": learner.train(start=own_model, finish=keep_model, reply={}),
        "swap": PeerTask(
            lambda memory, me: {Client("ada"): dict(memory)},
            lambda inbox, memory, me: seen.append((inbox, memory)) or {"model": memory["model"]},
        ),
    }
    attack = Attack("label_flip", BAD, FEDERATION.classes, Seed(3))
    armed = attack.arm(table)
    first = attack.with_flag(lambda who: {"model": learner.first})(Client("cleo"))
    me = Peer(Client("cleo"), RoundContext(Seed(0), 0, FEDERATION.clients))
    letter = armed["swap"].send(first, me)[Client("ada")]
    after = armed["swap"].receive({Client("eve"): letter}, first, me)
    assert set(letter) == set(seen[0][1]) == {"model"}
    assert set(after) == set(first) == {"model", "attack.flag", "attack.key"}
    assert bool(after["attack.flag"])
    carry = armed["practise"].start({}, first, ClientInfo(torch.tensor(3), torch.tensor(1), 2))
    reply, kept = armed["practise"].finish(carry)
    assert reply == {}
    assert set(kept) == set(first)


def test_attackers_are_drawn_by_name():
    clients = [Client(f"c{i}") for i in range(40)]
    few, more = attackers(clients, 0.1, Seed(1)), attackers(clients, 0.25, Seed(1))
    assert (len(few), len(more)) == (4, 10)
    assert few < more
    assert attackers(clients[::-1], 0.1, Seed(1)) == few != attackers(clients, 0.1, Seed(2))
    assert len(attackers(clients[:4], 0.01, Seed(0))) == 1


RUN = ["data.clients=6", "run.rounds=2", "run.attackers=0.34"]


def test_a_run_without_attackers_is_the_run_it_was(tmp_path):
    go(tmp_path / "a")
    go(tmp_path / "b", "run.attack=sign_flip")
    go(tmp_path / "c", "run.attackers=0.5")
    assert_same_end(tmp_path / "a", tmp_path / "b")
    assert_same_end(tmp_path / "a", tmp_path / "c")
    assert "attackers" not in json.loads((tmp_path / "b" / "run.json").read_text())


def test_engines_agree_under_attack_and_only_the_honest_are_scored(tmp_path):
    changes = [
        *RUN,
        "run.attack=noise",
        "algorithm.name=fesem",
        "algorithm.k=2",
        "algorithm.aggregate.name=median",
    ]
    changes += ["run.rounds=7"]  # five go into the start
    ends = {name: go(tmp_path / name, *changes, f"engine.name={name}") for name in ENGINES}
    bad = json.loads((tmp_path / "loop" / "run.json").read_text())["attackers"]
    assert len(bad) == 2
    for name, end in ends.items():
        scored = set(read_scores(tmp_path / name)["client"])
        assert len(scored) == 4
        assert not scored & set(bad)
        for leaf, t in ends["loop"].state.centres.items():
            torch.testing.assert_close(end.state.centres[leaf], t, rtol=1e-4, atol=1e-5)
    clean = go(tmp_path / "clean", *changes, "run.attack=none")
    assert any((clean.state.centres[n] - t).abs().max() > 1e-2 for n, t in ends["loop"].state.centres.items())


class Grouped:
    """Groups that are what the state says."""

    def groups(self, state):
        return torch.tensor(state)


def test_agreement_is_about_the_honest_and_sizes_count_everyone():
    clients = tuple(map(Client, "abcd"))
    given = (Grouped(), [0, 0, 1, 1], [0, 0, 1, 1], clients, RoundContext(Seed(0), 0, clients))
    truth = torch.tensor([0, 0, 1, 0])
    assert score_groups(*given, truth)["ari"] < 1
    found = score_groups(*given, truth, {"d"})
    assert (found["ari"], found["sizes"]) == (1.0, score_groups(*given, None)["sizes"])
    assert found["mixed"] == 1
    assert score_groups(*given, truth, {"c", "d"})["mixed"] == 0
    assert "mixed" not in score_groups(*given, truth)


def few_of(name):
    """Two groups of six clients; a body besides the head for methods that tell them apart."""
    groups = ["algorithm.k=2"] if name in ("fesem", "ifca", "hypcluster", "robust") else []
    return groups or (["model.name=mlp"] if name in ("fedper", "fedrep", "fedbabu", "lg_fedavg") else [])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_runs_under_attack(tmp_path, name):
    few = few_of(name)
    changes = [*RUN, "run.attack=sign_flip", f"algorithm.name={name}", *few]
    start = head_start(build_parts(override(SPEC, changes)))
    again = 2 if name == "fedrep" else 1  # a round of it is worth two: heads train first
    end = go(tmp_path, *changes, f"run.rounds={2 * again + start}")
    assert end.rounds >= 2
    assert len(set(read_scores(tmp_path)["client"])) == 4


def _models(task):
    return [] if isinstance(task, PeerTask) else [t for t in task.reply.values() if isinstance(t, dict)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_runs_under_attacks_that_add_tasks_or_memories(tmp_path, name):
    few = few_of(name)
    for kind in ("replay", "backdoor"):
        changes = [*RUN, f"run.attack={kind}", f"algorithm.name={name}", "engine.name=batched", *few]
        parts = build_parts(override(SPEC, changes))
        models = any(_models(task) for task in client_tasks(parts.algorithm).values())
        if kind == "replay" and not models:
            with pytest.raises(KinfolkError, match=r"run.attack = 'replay': no reply of this algorithm"):
                go(tmp_path / kind, *changes)
            continue
        go(tmp_path / kind, *changes, f"run.rounds={2 + head_start(parts)}")
        success = read_scores(tmp_path / kind)["score"] == "attack_success"
        assert success.any() == (kind == "backdoor")


def test_a_resumed_attack_ends_with_the_same_bits(tmp_path):
    changes = [*RUN, "run.attack=noise", "algorithm.name=local", "engine.name=batched"]
    go(tmp_path / "whole", *changes, "run.rounds=3")
    go(tmp_path / "parts", *changes)
    go(tmp_path / "parts", *changes, "run.rounds=3", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["run.attack=flip"], "run.attack = 'flip': give one of none, sign_flip, scaled, noise, label_flip"),
        (["run.attackers=1"], r"run.attackers = 1.0: give a number from 0 to below 1"),
        (["run.attack=noise", "run.attackers=0.9"], "leaves none of the 4 clients honest; give less"),
    ],
)
def test_what_can_not_be_is_refused(tmp_path, changes, words):
    with pytest.raises(KinfolkError, match=words):
        go(tmp_path, *changes)


def test_numbers_to_predict_have_no_labels_to_flip(tmp_path):
    rows = {f"c{i}": (torch.arange(12.0).reshape(6, 2), torch.arange(6.0)) for i in range(4)}
    with pytest.raises(KinfolkError, match=r"run.attack = 'label_flip': the data have numbers to predict"):
        api.run(
            lambda: torch.nn.Linear(2, 1),
            rows,
            folder=tmp_path,
            settings={"run.attack": "label_flip", "run.attackers": 0.3},
        )
