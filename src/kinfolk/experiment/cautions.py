"""What SLFed should be warned of before it starts: lists that are too short to be sent, rows that are cut."""

from __future__ import annotations

import torch

from kinfolk.algorithms.slfed.slfed import SLFed
from kinfolk.experiment.build import Parts
from kinfolk.federation.federation import Federation
from kinfolk.types import plain_rows

# Up to this many times the fewest members, many lists are too short: of 8 clients a third can be sent when
# three are needed, of 12 six in ten, of 16 six in seven, of 20 nearly all (benchmarks/ballots.py --lengths).
AMPLE = 2
_TOGETHER = 4096


def cautions(parts: Parts) -> list[str]:
    """Lines to warn of; none for other algorithms.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.spec import Experiment, override
    >>> few = override(Experiment(), ["data.clients=6", "algorithm.name=slfed"])
    >>> cautions(build_parts(few))[0].partition(":")[0]
    '6 clients list at most 2 peers each and a sum by additive64 needs 3'
    """
    if not isinstance(parts.algorithm, SLFed):
        return []
    lines = [short_lists(parts, parts.algorithm), cut_values(parts, parts.algorithm)]
    return [line for line in lines if line]


def short_lists(parts: Parts, method: SLFed) -> str:
    """Whether lists are long enough for a sum; a list holds at most half of the others, and of a cohort."""
    clients, fewest = len(parts.federation.clients), method.shares.limits.min_members
    cohort = max(1, int(parts.spec.run.participation * clients + 0.5))
    most = min((clients - 1) // 2, cohort - 1)
    who = f"{clients} clients" if cohort == clients else f"{clients} clients, {cohort} a round,"
    have = f"{who} list at most {most} peers each and a sum by {method.shares.scheme} needs {fewest}"
    plain = "set algorithm.shares.scheme=plain, which needs one"
    remedy = f"have {2 * fewest + 1} clients or more a round, or {plain}"
    if most < fewest:
        return f"{have}: no model is ever mixed and everybody trains alone; {remedy}"
    if fewest > 1 and most < AMPLE * fewest:
        return f"{have}: many lists will be too short, and those clients train alone; {remedy}"
    return ""


def cut_values(parts: Parts, method: SLFed) -> str:
    """Which share of the training rows' numbers lies outside the range that bytes are spread over."""
    images = method.images
    measured = images.ranges == "own" or (images.ranges == "auto" and len(parts.federation.shape) != 3)
    share = 0.0 if measured else share_outside(parts.federation, images.low, images.high)
    if not share:
        return ""
    where = f"[algorithm.images.low, algorithm.images.high] = [{images.low:g}, {images.high:g}]"
    cut = f"{share:.1%} of the numbers in training rows lie outside {where}"
    return f"{cut} and are cut in made images; set algorithm.images.ranges=own"


def share_outside(federation: Federation, low: float, high: float) -> float:
    """The share of all numbers in training rows below `low` or above `high`.

    >>> from kinfolk.federation.sources import DataSpec, build
    >>> from kinfolk.streams import Seed
    >>> share_outside(build(DataSpec(clients=4), Seed(0)), -1.0, 1.0)
    0.0
    """
    rows = torch.unique(federation.splits["train"].row)
    if federation.maker is not None or not len(rows):  # rows that are made when they are asked for
        return 0.0
    outside = total = 0
    for part in rows.split(_TOGETHER):
        x = plain_rows(federation.take(part)[0])
        outside += int(((x < low) | (x > high)).sum())
        total += x.numel()
    return outside / total
