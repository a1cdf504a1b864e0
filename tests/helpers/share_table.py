"""Rounds of requests among a few peers with small models, for tests to look at or to tamper with."""

import os

import torch

from kinfolk.shares.messages import no_request
from kinfolk.shares.options import ShareOptions
from kinfolk.shares.rejections import Rejections, reasons
from kinfolk.shares.secure_sum import first_memory
from kinfolk.shares.session import SecureSumSession
from kinfolk.streams import Seed

WAVE = (("deal", "respond"), ("ready", "judge"), ("judged", "take_back"), ("deal", "respond_at_last"))
STEPS = (
    ("ask", "accept"), ("agree", "settle"), ("confirm", "take_up"), *WAVE, ("answer", "sum_up"),
    ("pass_on", "take_over"),
)  # fmt: skip


def models(names, size=6, seed=5):
    """A model of a few numbers for each peer."""
    draw = Seed(seed).numpy("models")
    return {who: {"w": torch.from_numpy(draw.normal(size=size)).float()} for who in names}


def first_memories(held):
    """What each peer holds before the first round."""
    n = len(held)
    return {who: {"model": model, "pam": model, **first_memory(n)} for who, model in held.items()}


def play(memories, asks, round=0, shares="additive64", min_members=3, tamper=None, turns=range):
    """A round in which peers ask as told, {requester: {member: sigma}}; messages of a step may be changed.

    What comes of it: the messages by step, receiver and sender; and under "sums", by requester, the weights
    of each sum that was formed and the sum itself.
    """
    names, heard = tuple(sorted(memories)), {"sums": {}}
    for who in names:
        asked = no_request(len(names))
        for member, sigma in asks.get(who, {}).items():
            asked["mask"][names.index(member)] = True
            asked["sigma"][names.index(member)] = sigma
        memories[who] = {**memories[who], "asked": asked}

    options = ShareOptions(shares, min_members=min_members)

    def session(who, rejections):
        def scheme(requester, attempt):
            return options.make(os.urandom)

        return SecureSumSession(who, names, round, scheme, rejections, turns=turns)

    for number, (send, receive) in enumerate(STEPS if options.limits.hides else STEPS[:-1]):
        inbox = {who: {} for who in names}
        for who in names:
            sent = getattr(session(who, Rejections(names, memories[who])), send)(memories[who])
            key = "again" if number == 6 else send
            if tamper and key in tamper:
                sent = tamper[key](who, sent, memories[who])
            for to, message in sent.items():
                inbox[to][who] = message
        heard["again" if number == 6 else send] = inbox
        for who in names:
            rejections = Rejections(names, memories[who])
            after = getattr(session(who, rejections), receive)(inbox[who], memories[who])
            memories[who] = {**after, **rejections.noted()}
            if receive == "sum_up" and "sum" in after:
                places = after["asked"]["mask"].nonzero()[:, 0].tolist()
                weights = {names[i]: float(after["asked"]["sigma"][i]) for i in places}
                heard["sums"][who] = weights, after["sum"].numpy()
    return heard


def told(memories, who):
    """What a peer has written down about others."""
    return reasons(memories[who], tuple(sorted(memories)))


def blamed(memories, who):
    """Of whom a peer has refused something."""
    names = tuple(sorted(memories))
    return {name for name, count in zip(names, memories[who]["rejected"].tolist(), strict=True) if count}


def next_round(memories, trained=()):
    """Memories between two rounds; those who train have another model."""
    kept = ("model", "pam", "answered", "request_log", "rejected", "reasons")
    for who, memory in memories.items():
        memory = {key: memory[key] for key in kept}
        if who in trained:
            memory["model"] = {"w": memory["model"]["w"] + 1}
        memories[who] = memory
