"""Attackers among peers without a server: what they put into sums is bent, and nothing else is."""

import numpy as np
import pytest
import torch
from film import EASY, NAMES, Film, flat, learner, nine, slfed

from kinfolk.attacks.attack import Attack
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.errors import KinfolkError
from kinfolk.experiment.run import run
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import override
from kinfolk.learning.noise import bits, normal
from kinfolk.script import client_tasks
from kinfolk.shares.secure_sum import SecureSum
from kinfolk.streams import Seed
from kinfolk.task import PeerTask
from kinfolk.types import Client

BAD = frozenset(map(Client, "bf"))


class Armed:
    """An algorithm some of whose clients attack, for films and for the engines of the contract."""

    def __init__(self, inner, kind):
        self.inner, self.attack, self.learner = inner, Attack(kind, BAD, 4, Seed(3)), inner.learner
        self.init, self.round, self.eval_inputs = inner.init, inner.round, inner.eval_inputs
        self.init_client = self.attack.with_flag(inner.init_client, client_tasks(inner))

    def tasks(self):
        return self.attack.arm(self.inner.tasks())

    def eval_tasks(self):
        return {}


def bent(kind, who, number, w, c):
    """What an attacker gives away, by the formulas of the page on attackers."""
    if kind == "sign_flip":
        return c - (w - c)
    if kind == "scaled":
        return c + 10 * (w - c)
    key = torch.tensor(Seed(3).number("attack", "noise", who))
    z = normal(bits(key, (), number), (len(w),)).numpy()
    return w + 3 * (w - c).std() * z


@pytest.mark.parametrize(("kind", "waves"), [("sign_flip", 1), ("scaled", 1), ("noise", 1), ("sign_flip", 3)])
def test_sums_hold_the_bent_models_of_attackers_and_the_true_ones_of_the_honest(kind, waves, monkeypatch):
    monkeypatch.setattr(SecureSum, "waves", lambda self, peers, longest: waves)
    film = Film(Armed(slfed(learner(), shares__scheme="plain", **EASY), kind), nine(), 5)
    touched = 0
    for number in (3, 4):
        began = {c: flat(m["pam"]) for c, m in film.after[number - 1, "responses"].items()}
        models = {c: flat(m["model"]) for c, m in film.after[number, "begin"].items()}
        gave = {c: bent(kind, c, number, models[c], began[c]) if c in BAD else models[c] for c in NAMES}
        assert all(not np.allclose(gave[c], models[c], atol=1e-4) for c in BAD)
        for who, members in film.lists(number).items():
            pam = flat(film.after[number, "responses"][who]["pam"])
            whole = models[who] + sum(sigma * gave[c] for c, sigma in members.items())
            np.testing.assert_allclose(pam, whole / (1 + sum(members.values())), rtol=1e-5, atol=1e-5)
            touched += len(BAD & members.keys())
        for c in NAMES:  # an attacker goes on with what it has trained
            np.testing.assert_array_equal(flat(film.after[number, "confirm"][c]["model"]), models[c])
    assert touched > 3


def test_honest_letters_and_rows_are_left_as_they_are():
    """Up to the first sum that holds an attacker's model a run is the run without attackers."""
    clean, bad = (
        Film(Armed(slfed(learner(), shares__scheme="plain", **EASY), kind), nine(), 1)
        for kind in ("none", "scaled")
    )
    for c in NAMES:
        for step in ("begin", "generate_images", "opinions"):
            a, b = ({k: v for k, v in film.after[0, step][c].items() if not k.startswith("attack.")}
                    for film in (clean, bad))  # fmt: skip
            assert message_difference(a, b, 0) == ""


@pytest.mark.slow
def test_engines_agree_under_attack_among_peers():
    ends = {
        name: toy.play_rounds(
            Armed(slfed(learner(), shares__scheme="plain", **EASY), "noise"),
            nine(),
            name,
            rounds=3,
            score=False,
        )
        for name in ("loop", "batched", "workers", "wire")
    }
    for name in ("batched", "workers", "wire"):
        for c in NAMES:
            loop, here = (flat(ends[e].memories[c]["pam"]) for e in ("loop", name))
            np.testing.assert_allclose(here, loop, rtol=1e-3, atol=1e-4)


def test_each_attack_makes_another_run(tmp_path):
    sets = ["data.clients=8", "data.rows=20", "model.name=logistic", "engine.name=loop", "run.rounds=3"]
    sets += ["algorithm.name=slfed", "algorithm.images.kind=noise", "algorithm.images.count=20"]
    sets += ["algorithm.shares.scheme=plain", "run.attackers=0.25"]
    pams = {}
    for kind in ("none", "sign_flip", "scaled", "noise", "own_cluster", "slander", "label_flip"):
        end = run(override(Experiment(), [*sets, f"run.attack={kind}"]), tmp_path / kind)
        pams[kind] = np.concatenate([flat(m["pam"]) for _, m in sorted(end.memories.items())])
    for i, a in enumerate(pams):
        for b in list(pams)[:i]:
            assert np.abs(pams[a] - pams[b]).max() > 1e-3, f"{a} and {b} are the same run"


def test_an_attack_that_could_change_nothing_is_refused():
    silent = {"talk": PeerTask(lambda memory, me: {}, lambda inbox, memory, me: memory)}
    with pytest.raises(KinfolkError, match=r"run.attack = 'noise': no exchange of this algorithm says"):
        Attack("noise", BAD, 4, Seed(0)).arm(silent)
    assert set(Attack("label_flip", BAD, 4, Seed(0)).arm(silent)) == {"talk"}
