"""With strong privacy clients answer distances, and nothing that is none."""

from __future__ import annotations

import math

import pytest
import torch
from mdicfl_options import DISTINCT, FEW, mdicfl
from turned import turned

from kinfolk.codec import decode, encode
from kinfolk.contract import toy
from kinfolk.engines.choose import ENGINES
from kinfolk.engines.memory import Memories
from kinfolk.engines.wire import Wire
from kinfolk.errors import KinfolkError
from kinfolk.script import Ask, client_tasks
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Stack

K, CLASSES = 3, 4
SOUND = torch.ones(K, CLASSES)
ODD = {
    "a NaN": SOUND * torch.tensor([1.0, math.nan, 1.0])[:, None],
    "an infinity": SOUND * torch.tensor([1.0, math.inf, 1.0])[:, None],
    "negative": SOUND - torch.tensor([0.0, 0.0, 1.5])[:, None],
    "beyond the farthest": SOUND + torch.tensor([0.0, 0.0, 1.1])[:, None],
    "of too few clusters": SOUND[:2],
    "of too many clusters": torch.ones(K + 1, CLASSES),
    "of too few classes": SOUND[:, :3],
    "of too many classes": torch.ones(K, CLASSES + 1),
    "flat": SOUND.flatten(),
    "of another kind": SOUND.long(),
}
FEDERATION, _ = turned(2)
METHOD = mdicfl(toy.learner("mlp", FEDERATION), k=K, privacy="strong", **DISTINCT, **FEW)
CONTEXT = RoundContext(Seed(0), 0, FEDERATION.clients)


def asked(distances, who, engine="loop", method=METHOD):
    """(who answers, the coordinator) when all of these clients are sent such distances."""
    each = Stack(
        who,
        torch.zeros(len(who), dtype=torch.int64),
        {"distances": distances.expand(len(who), *distances.shape)},
    )
    with toy.coordinated(method, FEDERATION, engine) as coordinator:
        return coordinator.perform(Ask("choose", who, {}, each), CONTEXT).clients


@pytest.mark.parametrize("how", ODD)
@pytest.mark.parametrize("engine", ENGINES)
def test_nobody_answers_what_are_no_distances(engine, how):
    who = FEDERATION.clients[:3]
    with pytest.raises(KinfolkError, match=r"task = 'choose': nobody answers what is sent: distances "):
        asked(ODD[how], who, engine)
    each = Stack(who, torch.zeros(3, dtype=torch.int64), {"distances": ODD[how].expand(3, *ODD[how].shape)})
    with toy.coordinated(METHOD, FEDERATION, engine) as coordinator:
        stacks = coordinator.engine.replies(Ask("choose", who, {}, each), CONTEXT)
        assert [c for stack in stacks for c in stack.clients] == [], "whatever server there is"


@pytest.mark.parametrize("how", ["a NaN", "negative", "beyond the farthest"])
@pytest.mark.parametrize("engine", ENGINES)
def test_others_answer_all_the_same(engine, how):
    who = FEDERATION.clients[:4]
    distances = torch.stack([SOUND, ODD[how], SOUND, SOUND])
    each = Stack(who, torch.zeros(4, dtype=torch.int64), {"distances": distances})
    log = []
    with toy.coordinated(
        METHOD, FEDERATION, engine, log=lambda event, **facts: log.append((event, facts["client"]))
    ) as coordinator:
        got = coordinator.perform(Ask("choose", who, {}, each), CONTEXT)
    assert got.clients == (who[0], who[2], who[3])
    assert log == [("silent", who[1])]


def test_distances_at_the_ends_of_their_range_are_answered():
    for distances in (SOUND * 0, SOUND * 2, SOUND * (2 + 1e-5)):
        assert asked(distances, FEDERATION.clients[:2]) == FEDERATION.clients[:2]


def test_a_question_that_is_not_answered_costs_no_coin():
    method = mdicfl(METHOD.learner, k=K, privacy="strong", epsilon=1.0, **DISTINCT, **FEW)
    who = FEDERATION.clients[:2]
    bad, good = (
        Stack(who, torch.zeros(2, dtype=torch.int64), {"distances": torch.stack([SOUND, second])})
        for second in (ODD["a NaN"], SOUND)
    )
    with toy.coordinated(method, FEDERATION) as coordinator:
        from kinfolk.script import Exchange

        coordinator.perform(Exchange("coin", who), CONTEXT)
        assert coordinator.perform(Ask("choose", who, {}, bad), CONTEXT).clients == who[:1]
        assert coordinator.perform(Ask("choose", who, {}, good), CONTEXT).clients == who[1:]


def test_a_site_says_no_more_than_that_it_does_not_answer():
    engine = Wire(FEDERATION, client_tasks(METHOD), Memories(lambda who: {}))
    who = Client(FEDERATION.clients[0])
    header = {"to": who, "task": "choose", "run": "0", "round": "0", "request": "1"}
    for how, distances in ODD.items():
        data = encode({"distances": distances.contiguous()}, header)
        message, back = decode(engine.sites[who].answer(data, FEDERATION.clients))
        assert message == {}, how
        assert back["declined"] == "yes"
    assert decode(engine.sites[who].answer(encode({"distances": SOUND}, header), FEDERATION.clients))[0]


def test_the_server_sends_only_what_clients_answer():
    """A cluster whose model is no number is as far as can be, and nobody chooses it."""
    from kinfolk.algorithms.mdicfl.output_distance import told

    apart = torch.tensor([[[0.5, math.nan], [1.5, 1.9]], [[0.1, 0.2], [0.3, 0.4]]])
    assert told(apart).tolist() == [[[2.0, 2.0], [1.5, pytest.approx(1.9)]], apart[1].tolist()]
