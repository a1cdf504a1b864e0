"""Rounds of SLFed with everybody's memory after each request, for tests to look at or to tamper with."""

from functools import cache

import numpy as np
import torch

from kinfolk.algorithms.options import with_options
from kinfolk.algorithms.slfed.slfed import SLFed
from kinfolk.contract import toy
from kinfolk.script import Ask, Exchange, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import PeerTask
from kinfolk.types import Client

NAMES = tuple(map(Client, "abcdefghi"))
STEPS = (
    "begin",
    "images",
    "counts",
    "opinions",
    "requests",
    "accepts",
    "confirm",
    "shares",
    "ready",
    "verdict",
    "again",
    "responses",
    "results",
)


def slfed(net, kind=SLFed, **options):
    """The method with some options changed; `images__kind` stands for `images.kind`."""
    return with_options(kind, net, {name.replace("__", "."): value for name, value in options.items()})


EASY = {"images__kind": "noise", "images__count": 30}
# Two requests that do not get in each other's way: a asks, and is asked.
APART = {"a": "fghi", "b": "acde"}


@cache
def nine():
    """Nine clients of two kinds."""
    return toy.grouped((12,) * 9, side=8, noise=0.5, names=NAMES, turned=[0, 0, 0, 0, 0, 1, 1, 1, 1])


@cache
def learner():
    """A small network for them."""
    return toy.learner("tiny_cnn", nine())


@cache
def past():
    """Four rounds without trouble."""
    return Film(slfed(learner(), **EASY), nine(), 4)


class Film:
    """Rounds with everybody's memory after each request, from the start or from where another film ends.

    In the last round `tamper` changes messages, `gone` names who is missing, `repeat` what happens twice and
    `ask` who asks whom, instead of what they would ask by themselves.
    """

    def __init__(self, algorithm, federation, rounds, past=None, tamper=None, gone=None, repeat=(), ask=None):
        self.after, self.requests, self.answers = {}, [], []
        with toy.coordinated(algorithm, federation) as coordinator:
            state = (
                past.state
                if past
                else algorithm.init(toy.first_model(algorithm), federation.clients, Seed(0))
            )
            coordinator.engine.memories.update(past.memories if past else {})
            for number in range(past.rounds if past else 0, rounds):
                context = RoundContext(Seed(0), number, federation.clients)
                last = number == rounds - 1

                def act(request, context=context, last=last):
                    name = request.task if isinstance(request, Ask) else request.swap
                    if last and gone and name in gone:
                        who = tuple(sorted(set(federation.clients) - gone[name]))
                        request = (
                            Ask(name, tuple(c for c in request.to if c in who))
                            if isinstance(request, Ask)
                            else Exchange(name, who)
                        )
                    if last and tamper and name in tamper and isinstance(request, Exchange):
                        swap = coordinator.engine.table[name]
                        bad = PeerTask(lambda m, me: tamper[name](swap.send(m, me), m, me), swap.receive)
                        coordinator.engine.swap(bad, request.among, context)
                        answer = None
                    else:
                        answer = coordinator.perform(request, context)
                    if last and ask is not None and name == "opinions":
                        for who, memory in coordinator.engine.memories.items():
                            coordinator.engine.memories[who] = {
                                **memory,
                                "asked": wish(memory, ask.get(who, "")),
                            }
                    if last and name in repeat:
                        coordinator.perform(request, context)
                    self.requests.append(request)
                    self.answers.append(answer)
                    self.after[context.round, name] = dict(coordinator.engine.memories)
                    return answer

                state, self.info = play(algorithm.round(state, federation.clients, context), act)
            self.bytes = coordinator.ledger.take()[0]
            self.state, self.memories, self.rounds = state, dict(coordinator.engine.memories), rounds

    def lists(self, number, step="ready", word="verdict"):
        """Whom each client asks in the end, or at an earlier step: {client: {member: sigma}}."""
        found = {}
        for who, memory in self.after[number, step].items():
            asked = memory.get("asked")
            if asked is not None and int(asked[word]):
                places = asked["mask"].nonzero()[:, 0].tolist()
                found[who] = {NAMES[i]: float(asked["sigma"][i]) for i in places}
        return found


def wish(memory, members):
    """A request to these members, each with the weight that it has in the trust."""
    asked = {**memory["asked"], "mask": torch.tensor([name in members for name in NAMES])}
    return {**asked, "sigma": torch.where(asked["sigma"] > 0, asked["sigma"], 0.3)}


def flat(model):
    return np.concatenate([t.double().numpy().ravel() for t in model.values() if t.is_floating_point()])


def check_pams(film, number, but=(), tolerance=1e-6):
    """Every PAM is (M_A + sum sigma M_i) / (1 + sum sigma), or the own model where nobody was asked."""
    models = {c: flat(m["model"]) for c, m in film.after[number, "confirm"].items()}
    lists, summed = film.lists(number), 0
    for who in set(NAMES) - set(but):
        pam = flat(film.after[number, "responses"][who]["pam"])
        members = lists.get(who, {})
        whole = models[who] + sum(sigma * models[c] for c, sigma in members.items())
        np.testing.assert_allclose(pam, whole / (1 + sum(members.values())), rtol=tolerance, atol=tolerance)
        summed += bool(members)
    return summed


def check_passed_on(film, number, tolerance=1e-6):
    """A member without a sum of its own has the one it is part of, less its own term, if four are in it."""
    models = {c: flat(m["model"]) for c, m in film.after[number, "confirm"].items()}
    lists, found = film.lists(number), 0
    for members in lists.values():
        for me in members if len(members) > 3 else ():
            if me not in lists:
                others = {c: sigma for c, sigma in members.items() if c != me}
                whole = models[me] + sum(sigma * models[c] for c, sigma in others.items())
                pam = flat(film.after[number, "results"][me]["pam"])
                np.testing.assert_allclose(
                    pam, whole / (1 + sum(others.values())), rtol=tolerance, atol=tolerance
                )
                found += 1
    return found
