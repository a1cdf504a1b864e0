"""Mirrored and shifted pictures: against a loop over pixels, in every engine, and only where one trains."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from kinfolk.algorithms import ALGORITHMS
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.contract import toy
from kinfolk.contract.compare import ENGINE_TOLERANCE, outcome_difference
from kinfolk.engines.one import changes, client_batches
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.spec import parse
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.augment import FlipCrop, find_augment
from kinfolk.script import Ask, client_tasks
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Fit, Plan, Scan, Task
from kinfolk.types import Client, Stack

ENGINES = ("loop", "batched", "workers", "wire")


def by_pixels(image, way, pad, flip):
    """Mirror, put a border round, cut out: pixel by pixel."""
    channels, height, width = image.shape
    sides, places = (2 if flip else 1), 2 * pad + 1
    mirrored, top, left = way % sides, way // sides % places, way // (sides * places)
    wide = np.zeros((channels, height + 2 * pad, width + 2 * pad), image.dtype)
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                wide[c, i + pad, j + pad] = image[c, i, width - 1 - j if mirrored else j]
    return wide[:, top : top + height, left : left + width]


@pytest.mark.parametrize(("pad", "flip"), [(2, True), (1, False), (0, True), (3, True)])
def test_every_way_is_what_a_loop_over_pixels_gives(pad, flip):
    augment = FlipCrop(pad, flip)
    way = torch.arange(augment.ways)
    x = torch.from_numpy(Seed(0).numpy("x").normal(size=(len(way), 2, 4, 5)))
    wanted = np.stack([by_pixels(one, int(w), pad, flip) for one, w in zip(x.numpy(), way, strict=True)])
    np.testing.assert_array_equal(augment(x, way), wanted)
    many = augment(torch.stack([x, x.flip(0)]), torch.stack([way, way.flip(0)]))
    np.testing.assert_array_equal(many, np.stack([wanted, wanted[::-1]]))
    assert len({one.tobytes() for one in wanted}) > 1 or augment.ways == 1


def test_flips_are_half_and_cuts_even():
    augment, context = FlipCrop(2), RoundContext(Seed(4), 3, ())
    drawn = changes(Plan(8, augment=augment), 20_000, "batch", 0, Client("ann"), context)
    assert stats.chisquare(np.bincount(drawn, minlength=augment.ways)).pvalue > 1e-3
    # A row of growing numbers shows how it was changed: whether it falls, and from where to where.
    x = torch.arange(1.0, 10.0).expand(len(drawn), 1, 1, 9)
    seen = augment(x, torch.from_numpy(drawn))[:, 0, 0]
    shown = seen[(seen != 0).all(1)]  # neither border is in it, nor was it cut above or below
    falling = (shown[:, 0] > shown[:, 1]).double().mean()
    assert abs(float(falling) - 0.5) < 4 * 0.5 / np.sqrt(len(shown))
    assert (seen == 0).all(1).double().mean() == pytest.approx(4 / 5, abs=0.02)  # one row high: it fell out


def pictures():
    """Whole numbers, whose sums are exact in any order."""
    draw = Seed(1).numpy("pictures")
    rows = {who: (draw.integers(-9, 9, (n, 1, 6, 6)).astype("f4"), np.arange(n) % 3) for who, n in
            (("ann", 5), ("bob", 17), ("cyd", 24))}  # fmt: skip
    return from_arrays(rows, classes=3)


def sums(task, federation, engine, round=0, run=0):
    with toy.coordinated(_Alone(task), federation, engine) as coordinator:
        context = RoundContext(Seed(run), round, federation.clients)
        return Stack.join(list(coordinator.engine.replies(Ask("look", federation.clients), context))).tensor(
            "sum"
        )


class _Alone:
    """Nothing but one task."""

    def __init__(self, task):
        self.task = task

    def tasks(self):
        return {"look": self.task}

    def eval_tasks(self):
        return {}


def looking(plan):
    """Each picture times its row's number, added up."""

    def step(carry, batch):
        rows = (batch.row + 1).reshape(-1, 1, 1, 1)
        return {"sum": carry["sum"] + batch.sum(batch.x * rows)}

    start = lambda message, memory, facts: {"sum": torch.zeros(1, 6, 6)}  # noqa: E731
    return Task(start, lambda carry: (carry, None), (Scan(step, plan),), {"sum": torch.zeros(1, 6, 6)})


def test_every_engine_sees_the_very_same_rows():
    federation = pictures()
    for shuffle in (True, False):
        plan = Plan(8, epochs=2, shuffle=shuffle, augment=FlipCrop(2))
        seen = {name: sums(looking(plan), federation, name) for name in ENGINES}
        for name in ENGINES[1:]:
            assert torch.equal(seen[name], seen["loop"]), name
        again = [
            sums(looking(plan), federation, "batched", round, run) for round, run in ((0, 0), (1, 0), (0, 1))
        ]
        assert torch.equal(again[0], seen["loop"])
        plain = sums(looking(Plan(8, epochs=2, shuffle=shuffle)), federation, "loop")
        for other in (*again[1:], plain):
            assert all((other[i] != seen["loop"][i]).any() for i in range(3))


def test_a_row_is_another_in_each_epoch_and_at_each_client():
    federation = from_arrays({c: (np.arange(1.0, 65.0).reshape(1, 1, 8, 8), [0]) for c in "ab"}, classes=2)
    one = Fit((), Plan(4, epochs=30, augment=FlipCrop(3)))
    context = RoundContext(Seed(0), 0, federation.clients)
    seen = {
        c: [b.x.numpy().tobytes() for b in client_batches(one, 0, "batch", federation, c, context)]
        for c in "ab"
    }
    assert len(set(seen["a"])) > 20  # of 98 ways
    assert seen["a"] != seen["b"]


def augmented(network, federation, pad=1):
    learner = toy.learner(network, federation)
    object.__setattr__(
        learner, "plan", Plan(4, 2, drop_single=learner.plan.drop_single, augment=FlipCrop(pad))
    )
    return learner


@pytest.mark.parametrize(("network", "engines"), [("mlp", ENGINES), ("tiny_cnn", ENGINES[:2])])
def test_engines_train_alike(network, engines):
    federation = toy.ragged()
    algorithm = FedAvg(augmented(network, federation))
    ends = {name: toy.play_rounds(algorithm, federation, name) for name in engines}
    for name in engines[1:]:
        assert outcome_difference(ends[name], ends["loop"], ENGINE_TOLERANCE) == "", name
    plain = toy.play_rounds(FedAvg(toy.learner(network, federation)), federation, "loop")
    assert outcome_difference(plain, ends["loop"], ENGINE_TOLERANCE) != ""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_on_changed_rows_and_scores_plain_ones(name):
    algorithm = ALGORITHMS[name](augmented("tiny_cnn", toy.ragged()))
    passes = [(task, one) for task, entry in client_tasks(algorithm).items() if isinstance(entry, Task)
              for one in entry.passes]  # fmt: skip
    assert all(one.plan.augment is None for _, one in passes if isinstance(one, Scan))
    training = [one for task, one in passes if isinstance(one, Fit) and task != "generate_images"]
    assert all(one.plan.augment == FlipCrop(1) for one in training)
    assert training or name == "majority_label"


def test_what_are_no_pictures_is_refused_in_one_line():
    flat = from_arrays({c: (np.ones((6, 4), "f4"), np.arange(6) % 2) for c in "ab"}, classes=2)
    with pytest.raises(KinfolkError, match=r"^local.augment = 'flip': rows of shape \(4,\) are no pictures"):
        build_parts(parse('local.augment = "flip"'), flat)
    with pytest.raises(KinfolkError, match=r"^local.augment_pad = 8: must be below the 8 pixels of a side$"):
        find_augment("crop", 8, (1, 8, 9))
    with pytest.raises(KinfolkError, match="give one of none, flip, crop, flip_crop"):
        parse('local.augment = "turn"')
    with pytest.raises(KinfolkError, match=r"local.augment_pad = -1: give 0 or more"):
        parse("local.augment_pad = -1")
    parts = build_parts(parse('local.augment = "flip_crop"\nlocal.augment_pad = 1'))
    assert parts.learner.plan.augment == FlipCrop(1)
    assert build_parts(parse("")).learner.plan.augment is None
