"""Small federations whose clients are sites of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from kinfolk.codec import decode
from kinfolk.deploy.site import Site
from kinfolk.engines.rpc import unpack_several
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import parse
from kinfolk.federation.federation import Federation
from kinfolk.federation.sources import build
from kinfolk.streams import Seed
from kinfolk.types import Client, Message, leaves


def spec_of(method: str, rounds: int = 8, checkpoint_every: int = 1) -> Experiment:
    """Eight clients with digits; `method` as on the command line."""
    name, *options = method.split(",")
    given = "\n".join(option.replace("=", " = ") for option in options)
    return parse(
        f"""
        [data]
        name = "digits"
        clients = 8
        [algorithm]
        name = "{name}"
        {given}
        [local]
        epochs = 1
        [run]
        rounds = {rounds}
        checkpoint_every = {checkpoint_every}
        seed = 3
        [engine]
        name = "loop"
        device = "cpu"
        """
    )


def federated(spec: Experiment) -> Federation:
    """All rows of a spec."""
    return build(spec.data, Seed(spec.run.seed))


def sites_of(rows: Federation, folder: Path | None = None) -> dict[Client, Site]:
    """A site for every client, which holds its rows alone."""
    return {c: Site(c, rows.only(c), folder / c if folder else None) for c in rows.clients}


class Flaky:
    """A carrier that loses requests and replies by a seed, and lets sites die and come back."""

    def __init__(self, sites: dict[Client, Site], loses: float, dies: float, seed: int = 0) -> None:
        self.sites, self.loses, self.dies = sites, loses, dies
        self.draw = random.Random(seed)
        self.lost = self.died = 0

    def ask(
        self, requests: Mapping[Client, bytes], seconds: float
    ) -> Iterator[tuple[Client, bytes | Exception]]:
        """Answers in any order, some of them lost on either way."""
        for who in self.draw.sample(sorted(requests), len(requests)):
            if self.draw.random() < self.dies:
                old = self.sites[who]
                self.sites[who] = Site(who, old.rows, old.folder, old.identity)
                self.died += 1
            if self.draw.random() < self.loses:
                self.lost += 1
                yield who, ConnectionError("lost on the way there")
                continue
            answer = self.sites[who].answer(requests[who])
            if self.draw.random() < self.loses:
                self.lost += 1
                yield who, ConnectionError("lost on the way back")
                continue
            yield who, answer


def all_equal(one: Message, other: Message) -> bool:
    """Whether two messages have the same tensors under the same names, bit for bit."""
    left, right = list(leaves(one)), list(leaves(other))
    return [place[:2] for place in left] == [place[:2] for place in right] and all(
        torch.equal(a[2], b[2]) for a, b in zip(left, right, strict=True)
    )


def memory_of(site: Site) -> Message:
    """What a site remembers of its run, on its disk if it was started anew."""
    if site.begun is not None:
        return site.begun.store.memory
    assert site.folder is not None
    return memory_file(next(site.folder.glob("*/memory.safetensors")))


def memory_file(file: Path) -> Message:
    """The memory in a site's file."""
    return dict(unpack_several(*decode(file.read_bytes())))["memory"]
