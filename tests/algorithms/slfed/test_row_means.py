"""Images that are means of rows: against NumPy, on every engine, and what must never leave."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from probing import probe

from kinfolk.algorithms.slfed.gan import from_bytes
from kinfolk.contract import toy
from kinfolk.engines.batched import Batched
from kinfolk.engines.memory import Memories
from kinfolk.engines.one import perform
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed

KEY = torch.tensor(5)
# Of three classes; ann's rows take several batches, bob has two rows of class 2, cyd too few of all.
ROWS = {"ann": (300, 200, 100), "bob": (20, 15, 2), "cyd": (2, 1, 2)}


@pytest.fixture(scope="module")
def federation():
    draw = np.random.Generator(np.random.PCG64(3))
    clients = {}
    for who, counts in ROWS.items():
        y = draw.permutation(np.repeat(np.arange(3), counts))
        clients[who] = (draw.uniform(-1, 1, (len(y), 1, 4, 5)).astype(np.float32), y)
    return from_arrays(clients, valid=0.0, classes=3)


@pytest.fixture(scope="module")
def learner(federation):
    return toy.learner("mlp", federation)


def rows_of(federation, who):
    mine = federation.splits["train"].rows(federation.clients.index(who))
    return federation.x[mine].double().flatten(1).numpy(), federation.y[mine].numpy()


def by_hand(x, y, of, most):
    """Image by image, classes in turns: the mean of the next `of` rows of the class, with their contrast."""
    found = []
    for nth in range(most):
        for c in range(3):
            rows = x[y == c][nth * of : (nth + 1) * of]
            if len(rows) == of:
                centred = rows - rows.mean(1, keepdims=True)
                mean = (centred / rows.std(1, keepdims=True)).mean(0)
                found.append(rows.mean() + mean / mean.std() * rows.std(1).mean())
    return np.clip(np.array(found), -1, 1)


def made(probe_images, federation, who):
    memory = {"key": KEY, "model": probe_images.learner.first}
    return perform(
        probe_images.task(), {}, memory, federation, who, RoundContext(Seed(0), 0, federation.clients)
    )[1]


@pytest.mark.parametrize(
    ("who", "of", "count"), [("ann", 8, 60), ("ann", 3, 200), ("bob", 3, 20), ("bob", 5, 7)]
)
def test_images_are_means_of_rows_of_a_class_with_their_contrast(federation, learner, who, of, count):
    got = made(probe(learner, "means", count, guarded=False, means_of=of), federation, who)
    wanted = by_hand(*rows_of(federation, who), of, most=-(-count // 3))[:count]
    assert int(got["made"]) == len(wanted) > 1
    shown = from_bytes(got["images"], -1.0, 1.0).flatten(1).double().numpy()
    again = np.arange(count) % len(wanted)
    # Half a step of a byte, and a little more for what lies between two of them.
    np.testing.assert_allclose(shown, wanted[again], rtol=0, atol=1.03 / 255)
    assert int(got["copies"]) == 0


def test_who_has_no_class_of_enough_rows_shows_nothing(federation, learner):
    got = made(probe(learner, "means", 6, means_of=3), federation, "cyd")
    assert int(got["made"]) == 0
    assert len(got["images"].unique()) == 1  # not even on the own side is there a mean of fewer rows


def likeness(images, rows):
    """The highest correlation of an image with a row."""
    return np.corrcoef(images.flatten(1).double(), rows.reshape(len(rows), -1))[
        : len(images), len(images) :
    ].max()


def test_one_row_among_dull_ones_does_not_show(learner):
    """Rows weigh alike: a plain mean of these is the one bright row, 99 % of it."""
    draw = np.random.Generator(np.random.PCG64(6))
    x, y = draw.normal(0, 0.005, (16, 1, 40, 5)).astype(np.float32), np.repeat([0, 1], 8)
    x[[3, 12]] *= 100
    dull = from_arrays({"ann": (x, y)}, test={"ann": (x[:1], y[:1])}, classes=3)
    got = made(probe(toy.learner("mlp", dull), "means", 6, means_of=8), dull, "ann")
    assert int(got["made"]) == 2
    plain = torch.stack([torch.from_numpy(x[y == c]).mean(0) for c in (0, 1)])
    assert likeness(plain, x) > 0.98
    assert likeness(got["images"], x) < 0.6  # of eight rows that are not alike: 1 / sqrt(8) = 0.35, and noise


def test_a_mean_of_equal_rows_is_a_copy_and_does_not_leave(learner):
    draw = np.random.Generator(np.random.PCG64(7))
    x, y = draw.uniform(-1, 1, (40, 1, 4, 5)).astype(np.float32), np.repeat([0, 1], 20)
    x[20:] = x[20]
    twins = from_arrays({"ann": (x, y)}, test={"ann": (x[:1], y[:1])}, classes=3)
    unwatched = made(probe(learner, "means", 12, guarded=False, means_of=5), twins, "ann")
    assert likeness(unwatched["images"], x[20:]) > 0.999
    got = made(probe(learner, "means", 12, means_of=5), twins, "ann")
    assert int(got["copies"]) > 0
    assert int(got["made"]) > 1
    assert likeness(got["images"], x[20:]) < 0.9


def test_a_single_image_is_none(learner):
    draw = np.random.Generator(np.random.PCG64(4))
    for rows, wanted in ((10, 2), (9, 0)):  # of ten rows two means of five, of nine only one
        x, y = draw.uniform(-1, 1, (rows, 1, 4, 5)).astype(np.float32), np.zeros(rows, dtype=np.int64)
        one = from_arrays({"ann": (x, y)}, test={"ann": (x[:1], y[:1])}, classes=3)
        assert int(made(probe(learner, "means", 6, means_of=5), one, "ann")["made"]) == wanted


def test_each_row_is_in_one_image_at_most(federation, learner):
    """A row that changes moves one image, or none."""
    probe_images = probe(learner, "means", 30, guarded=False, means_of=8)  # so few that none is shown twice
    before = made(probe_images, federation, "ann")["images"]
    moved = []
    for row in (0, 255, 256, 479):
        x = federation.x.clone()
        x[int(federation.splits["train"].rows(0)[row])] *= -1
        after = made(probe_images, replace(federation, x=x), "ann")["images"]
        moved.append(int((after != before).flatten(1).any(1).sum()))
    assert set(moved) <= {0, 1}
    assert sum(moved) > 0


def test_one_call_for_many_makes_the_same_images(federation, learner):
    task = probe(learner, "means", 30, means_of=3).task()
    memories = Memories(lambda who: {"key": KEY, "model": learner.first})
    engine = Batched(federation, {"generate_images": task}, memories)
    context = RoundContext(Seed(0), 0, federation.clients)
    list(engine.replies(Ask("generate_images", federation.clients), context))
    for who in federation.clients:
        alone = perform(task, {}, {"key": KEY, "model": learner.first}, federation, who, context)[1]
        assert torch.equal(memories[who]["images"], alone["images"]), who
        assert int(memories[who]["made"]) == int(alone["made"])
