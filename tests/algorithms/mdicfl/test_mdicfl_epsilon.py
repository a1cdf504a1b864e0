"""Randomised answers: by whose coins, how often they are true, what they spend, and what a resume repeats."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from mdicfl_options import DISTINCT, FEW, mdicfl
from test_mdicfl import one_round, started
from turned import turned

from kinfolk.algorithms.mdicfl import randomised_response
from kinfolk.algorithms.mdicfl.randomised_response import SPENT, no_coin, respond, throw
from kinfolk.contract import toy
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import read_audit, read_rounds
from kinfolk.experiment.run import run
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer
from kinfolk.types import Client, Stack


@pytest.fixture
def known_secrets(monkeypatch):
    """Secrets that are the same in every test run; what is random must not fail now and then."""
    number = count()
    monkeypatch.setattr(
        randomised_response.secrets, "token_bytes", lambda n: bytes([1 + next(number) % 255]) * n
    )


def coin(memory, name="ann", number=0, seed=5):
    return throw(memory, Peer(Client(name), RoundContext(Seed(seed), number, ())))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_responses_are_as_frequent_as_epsilon_says(epsilon, known_secrets):
    k, times = 4, 4_000
    coins = []
    for _ in range(40):
        memory = no_coin()
        for number in range(times // 40):
            memory = coin(memory, number=number)
            coins.append(memory["coin"])
    shares = []
    for choice in (0, 2):
        answers = torch.func.vmap(
            lambda coin, choice=choice: respond(torch.tensor(choice), coin, epsilon, k)
        )(torch.stack(coins))
        shares.append(np.bincount(answers.numpy(), minlength=k) / times)
        truly = math.exp(epsilon) / (math.exp(epsilon) + k - 1)
        wanted = np.full(k, (1 - truly) / (k - 1))
        wanted[choice] = truly
        np.testing.assert_allclose(shares[-1], wanted, atol=4 * 0.5 / math.sqrt(times))
    assert np.abs(np.log(shares[0] / shares[1])).max() < epsilon + 0.3


def test_who_knows_the_seed_does_not_know_the_coins():
    first, second = (coin(no_coin())["coin"] for _ in range(2))
    assert not torch.equal(first, second), "equal seeds, rounds and names: the secrets differ"
    # How coins were drawn once: a server with the seed could take every answer back to the choice behind it.
    public = torch.from_numpy(Seed(5).numpy("response", 0, "ann").random(2)).float()
    assert not torch.equal(first, public)
    assert not torch.equal(second, public)


def test_a_round_has_one_coin_and_a_coin_serves_once(known_secrets):
    before = coin(no_coin())
    again = coin({**no_coin(), "secret": before["secret"]})
    assert torch.equal(before["coin"], again["coin"]), "asked the same again, a client answers the same"
    assert not torch.equal(coin(before, number=1)["coin"], before["coin"])
    assert coin(before)["coin"].tolist() == [SPENT, SPENT], "no second answer in a round"
    assert coin(coin(before, number=3), number=2)["coin"].tolist() == [SPENT, SPENT], "nor in an earlier one"


def test_answers_are_randomised_in_a_run(known_secrets):
    federation, _ = turned(3)
    plain = mdicfl(toy.learner("mlp", federation), k=3, privacy="strong", **DISTINCT, **FEW)
    method = replace(plain, epsilon=1e-6)
    truth, answers = (one_round(m, started(m, federation), federation)[0].member for m in (plain, method))
    assert 0 < int((truth != answers).sum()) < 12
    with pytest.raises(KinfolkError, match=r"algorithm.epsilon = 1.0: .*privacy = 'strong'"):
        mdicfl(plain.learner, epsilon=1.0)
    assert method.init_client("ann")["coin"].tolist() == [SPENT, SPENT]
    assert respond(torch.tensor(1), torch.tensor([SPENT, SPENT]), 1.0, 3) == -1
    each = Stack(federation.clients, torch.ones(12, dtype=torch.int64), {"distances": torch.ones(12, 3, 4)})
    with toy.coordinated(method, federation) as coordinator:
        got = coordinator.perform(
            Ask("choose", federation.clients, {}, each), RoundContext(Seed(0), 0, federation.clients)
        )
    assert got.clients == (), "without a fresh coin there is no answer"


def test_what_answers_spend_adds_up_and_void_rounds_give_nothing_back():
    federation, _ = turned(3)
    learner = toy.learner("mlp", federation)
    method = mdicfl(learner, k=3, privacy="strong", **DISTINCT, epsilon=0.5, **FEW)
    state = started(method, federation)
    assert set(method.spent(state).values()) == {0.0}
    half = federation.clients[:6]
    one, info, _ = one_round(method, state, federation, cohort=half)
    assert info["epsilon"] == 0.5
    two, info, _ = one_round(method, one, federation, 1)
    assert info["epsilon"] == 1.0
    assert method.spent(two) == {c: 1.0 if c in half else 0.5 for c in federation.clients}
    void = method.still_spent(one, two)
    assert method.spent(void) == method.spent(two)
    assert void.member is one.member
    assert mdicfl(learner, k=3).spent(started(mdicfl(learner, k=3), federation)) == {}


class Killed(Exception):
    """The end of a run that did not come to its end."""


def test_a_resumed_run_repeats_its_answers_and_the_records_say_what_was_spent(tmp_path):
    federation = toy.ragged()
    own = toy.learner("mlp", federation)
    method = mdicfl(
        own, k=2, privacy="strong", **DISTINCT, epsilon=1e-6, **{"pseudo.samples": 2, "search.iterations": 2}
    )
    spec = toy.spec_of(method, {"rounds": 3})

    def go(folder, resume=False, kill=-1):
        def watch(event, facts):
            if event == "round" and facts["round"] == kill:
                raise Killed

        return run(spec, folder, federation=federation, network=own.module, resume=resume, watch=watch)

    with pytest.raises(Killed):
        go(tmp_path / "a", kill=0)  # the start was saved, nothing else
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    ends = [go(tmp_path / name, resume=True) for name in "ab"]
    assert ends[0].state.member.tolist() == ends[1].state.member.tolist()
    lines = [read_rounds(tmp_path / name) for name in "ab"]
    assert [line["groups"] for line in lines[0][1:]] == [line["groups"] for line in lines[1][1:]]
    assert [line["info"]["epsilon"] for line in lines[0][1:]] == pytest.approx([1e-6, 2e-6, 3e-6])
    last = (tmp_path / "a" / "audit.jsonl").read_text().splitlines()
    told = [line for line in last if '"epsilon"' in line]
    assert len(told) == 1
    assert all(c in told[0] for c in federation.clients)


def test_answers_of_void_rounds_are_in_the_audit(tmp_path):
    federation = toy.ragged()
    own = toy.learner("mlp", federation)
    method = mdicfl(
        own, k=2, privacy="strong", **DISTINCT, epsilon=0.5, **{"pseudo.samples": 2, "search.iterations": 2}
    )
    spec = toy.spec_of(method, {"rounds": 2, "absent": 0.5, "quorum": 1.0})
    ended = run(spec, tmp_path / "r", federation=federation, network=own.module)
    lines = read_rounds(tmp_path / "r")
    assert [line["void"] for line in lines[1:]] == [True, True]
    assert not ended.state.begun, "models and clusters are as they were"
    (told,) = [line for line in read_audit(tmp_path / "r") if line["event"] == "epsilon"]
    answered = {c: 0.5 * n for c, n in zip(ended.state.clients, ended.state.answers.tolist(), strict=True)}
    assert told["spent"] == answered
    assert told["most"] == max(answered.values()) == 1.0
