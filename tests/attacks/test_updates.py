"""What free riders and colluding attackers send, beside a computation of one's own, in every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attacking import BAD, FEDERATION, asked, engine, fedavg, replies
from scipy.stats import kstest
from small_runs import assert_same_end, equal, go

from kinfolk.attacks.attack import ABSURD_ROUND
from kinfolk.engines.choose import ENGINES
from kinfolk.experiment.record import read_audit

KINDS = ("unchanged", "free_noise", "sybil", "own_cluster")


def flat(tree, i=...):
    """All floats of a tree end to end."""
    parts = [t[i].flatten().double() for t in tree.values() if t.is_floating_point()]
    return torch.cat(parts).numpy()


def both(kind, name="loop", round=4):
    """What attackers sent and would have sent, and where all began; the honest are left as they are."""
    method, task, message = fedavg()
    honest, found = (replies(method, k, task, message, name, round) for k in ("", kind))
    pairs = {}
    for i, who in enumerate(honest.clients):
        if who in BAD:
            pairs[who] = flat(found.tree("model"), i), flat(honest.tree("model"), i)
        else:
            assert equal(honest.row(who), found.row(who))
    whole = [n for n, t in message["model"].items() if not t.is_floating_point()]
    assert whole
    assert all(torch.equal(honest.tree("model")[n], found.tree("model")[n]) for n in whole)
    return pairs, flat(message["model"])


def is_noise(z):
    """Standard normal: in law, and in how far it is spread."""
    assert kstest(z, "norm").pvalue > 1e-3
    assert z.std() == pytest.approx(1, abs=4.5 / np.sqrt(2 * len(z)))


def alike(a, b):
    """The cosine of the angle between two vectors."""
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def apart(a, b):
    """Whether two vectors of noise have nothing to do with each other."""
    return abs(alike(a, b)) < 5 / np.sqrt(len(a))


def test_who_rides_free_sends_back_what_was_sent():
    pairs, began = both("unchanged")
    for now, was in pairs.values():
        np.testing.assert_array_equal(now, began)
        assert np.abs(was - began).max() > 1e-3


def test_a_free_riders_noise_is_as_long_as_its_update_would_be_and_new_each_time():
    pairs, began = both("free_noise")
    later, _ = both("free_noise", round=5)
    drawn = []
    for found in (pairs, later):
        for now, was in found.values():
            assert np.linalg.norm(now - began) == pytest.approx(np.linalg.norm(was - began), rel=1e-3)
            is_noise((now - began) / np.linalg.norm(was - began) * np.sqrt(len(was)))
            drawn.append(now - began)
    assert len(drawn) == 6
    assert all(apart(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


def test_all_ids_of_a_sybil_push_one_way_in_every_round():
    pairs, began = both("sybil")
    later, _ = both("sybil", round=5)
    pushes = [(now - began) / (3 * (was - began).std()) for f in (pairs, later) for now, was in f.values()]
    assert len(pushes) == 6
    is_noise(pushes[0])
    for push in pushes[1:]:
        np.testing.assert_allclose(push, pushes[0], atol=1e-3)


def test_a_cluster_of_ones_own_is_one_model_as_long_as_what_was_sent():
    pairs, began = both("own_cluster")
    later, _ = both("own_cluster", round=5)
    models = [now for found in (pairs, later) for now, _ in found.values()]
    for model in models[1:]:
        np.testing.assert_array_equal(model, models[0])
    assert np.linalg.norm(models[0]) == pytest.approx(np.linalg.norm(began), rel=1e-3)
    assert apart(models[0], began)
    is_noise(models[0] / np.linalg.norm(models[0]) * np.sqrt(len(began)))


@pytest.mark.parametrize("name", ["batched", "wire", pytest.param("workers", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_engines_agree_on_what_is_sent(kind, name):
    here, loop = (both(kind, one)[0] for one in (name, "loop"))
    for who, (now, _) in loop.items():
        np.testing.assert_allclose(here[who][0], now, rtol=1e-3, atol=1e-4)


def test_an_absurd_reply_is_sent_in_one_round():
    pairs, _ = both("absurd", round=ABSURD_ROUND)
    for now, _ in pairs.values():
        np.testing.assert_allclose(now, 9e17, rtol=1e-6)
    for round in (ABSURD_ROUND - 1, ABSURD_ROUND + 1):
        for now, was in both("absurd", round=round)[0].values():
            np.testing.assert_array_equal(now, was)


@pytest.mark.parametrize("name", ENGINES)
def test_a_replay_is_the_first_reply_again(name):
    method, task, message = fedavg()
    other = {"model": {n: t + 1 if t.is_floating_point() else t for n, t in message["model"].items()}}
    told = {}
    for kind in ("", "replay"):
        with engine(method, kind, name) as made:
            told[kind] = [asked(made, task, what, r) for r, what in ((1, message), (2, other), (3, message))]
    for honest, found, first in zip(told[""], told["replay"], [told[""][0]] * 3, strict=True):
        for i, who in enumerate(honest.clients):
            if who in BAD:
                was, now = flat(first.tree("model"), i), flat(found.tree("model"), i)
                np.testing.assert_array_equal(now, was)
            else:
                assert equal(honest.row(who), found.row(who))
    moved = flat(told[""][1].tree("model"), 2) - flat(told[""][0].tree("model"), 2)
    assert FEDERATION.clients[2] in BAD
    assert np.abs(moved).min() > 0.1


def test_who_replays_and_who_does_not_keep_the_memory_of_their_method(tmp_path):
    """FedDC's clients remember their drift; a resumed replay sends what it had sent before it was stopped."""
    changes = ["data.clients=6", "run.attackers=0.34", "run.attack=replay", "algorithm.name=feddc"]
    go(tmp_path / "whole", *changes, "run.rounds=4")
    go(tmp_path / "parts", *changes, "run.rounds=2")
    end = go(tmp_path / "parts", *changes, "run.rounds=4", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")
    plain = go(tmp_path / "plain", *changes, "run.rounds=1", "run.attackers=0")
    for memory in end.memories.values():
        assert set(next(iter(plain.memories.values()))) <= set(memory)
    assert not [line for line in read_audit(tmp_path / "whole") if line["event"] == "rejected"]
