"""The GAN, the images that stand for rows, and the look for copies: against plain torch and NumPy."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from probing import probe
from sklearn.datasets import load_digits
from torch import nn

from kinfolk.algorithms.slfed.copy_guard import CopyGuard
from kinfolk.algorithms.slfed.gan import PART, Gan, from_bytes, to_bytes, to_unit
from kinfolk.algorithms.slfed.probe_images import SEARCH_WEIGHT, checked_images, predicted
from kinfolk.contract import toy
from kinfolk.engines.batched import Batched
from kinfolk.engines.memory import Memories
from kinfolk.engines.one import client_batches, gradient, perform
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.noise import normal
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Batch

KEY = torch.tensor(77)


def by_hand(gan, tree, pixels):
    """Both networks as ordinary modules with the tree's numbers."""
    widths = [round(gan.width * n) for n in (128, 256, 512, 1024)]
    layers = [nn.Linear(100, widths[0]), nn.LeakyReLU(0.2)]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.LeakyReLU(0.2)]
    g = nn.Sequential(*layers, nn.Linear(widths[3], pixels), nn.Tanh()).double()
    d = nn.Sequential(
        *(nn.Linear(pixels, round(gan.width * 512)), nn.LeakyReLU(0.2)),
        *(nn.Linear(round(gan.width * 512), round(gan.width * 256)), nn.LeakyReLU(0.2)),
        nn.Linear(round(gan.width * 256), 1),
    ).double()
    for side, net in (("generator.", g), ("discriminator.", d)):
        net.load_state_dict({n.removeprefix(side): t for n, t in tree.items() if n.startswith(side)})
    return g, d


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    x = (x / 8 - 1).reshape(-1, 1, 8, 8).astype(np.float32)
    parts = {"ann": slice(0, 200), "bob": slice(200, 330), "cyd": slice(400, 500)}
    return from_arrays({who: (x[s], y[s]) for who, s in parts.items()}, valid=0.1, classes=10)


@pytest.fixture(scope="module")
def learner(digits):
    return toy.learner("mlp", digits)


def make(probe_images, federation, who="ann", key=KEY):
    memory = {"key": key, "model": probe_images.learner.first}
    context = RoundContext(Seed(0), 0, federation.clients)
    return perform(probe_images.task(), {}, memory, federation, who, context)[1]


def test_sizes_are_those_of_the_reference():
    tree = Gan().first(KEY, 3072)
    count = {"generator": 0, "discriminator": 0}
    for name, leaf in tree.items():
        if "running" not in name and leaf.is_floating_point():
            count[name.partition(".")[0]] += leaf.numel()
    assert count == {"generator": 3_855_232, "discriminator": 1_704_961}


def test_first_weights_are_spread_as_those_of_torch():
    tree = Gan(width=0.25).first(KEY, 64)
    for name in ("generator.2.weight", "discriminator.0.weight", "discriminator.0.bias"):
        inputs = tree[name.replace("bias", "weight")].shape[1]
        values = tree[name].numpy() * np.sqrt(inputs)
        assert 0.9 < np.abs(values).max() <= 1
        assert abs(values.mean()) < 4 / np.sqrt(3 * values.size)
    other = Gan(width=0.25).first(KEY + 1, 64)
    assert not torch.equal(tree["generator.2.weight"], other["generator.2.weight"])
    assert tree["generator.3.running_var"].unique().tolist() == [1.0]


def test_steps_are_those_of_plain_torch(digits):
    """Three steps of both networks by ordinary modules, losses and optimisers."""
    gan = Gan(width=0.0625, steps=3, batch=16)
    tree = gan.first(KEY, 64)
    g, d = by_hand(gan, tree, 64)
    opt_g, opt_d = (torch.optim.Adam(n.parameters(), 2e-4, betas=(0.5, 0.999)) for n in (g, d))
    bce, carry = nn.BCELoss(), {"work.gan": {n: t.clone() for n, t in tree.items()}, "key": KEY}
    fit = gan.fit()
    states = [s.optimiser.init({n: carry["work.gan"][n] for n in s.names}) for s in fit.descents]
    for step in range(3):
        x = digits.x[step * 16 : step * 16 + 16]
        batch = Batch(x, digits.y[:16], torch.arange(16), None)
        for i, descent in enumerate(fit.descents):
            params, grads = gradient(descent, carry, batch)
            moved, states[i] = descent.optimiser.update(params, grads, states[i], step, descent.lr, 16)
            carry["work.gan"] = {**carry["work.gan"], **moved}
        z = [normal(KEY, (16, 100), use, at) for use, at in ((1, step), (2, step + 1))]
        opt_g.zero_grad()
        bce(d(g(z[0])).sigmoid(), torch.ones(16, 1).double()).backward()
        opt_g.step()
        opt_d.zero_grad()
        real, fake = d(x.flatten(1).double()).sigmoid(), d(g(z[1]).detach()).sigmoid()
        loss = (bce(real, torch.ones_like(real)) + bce(fake, torch.zeros_like(fake))) / 2
        loss.backward()
        opt_d.step()
    for side, net in (("generator.", g), ("discriminator.", d)):
        for name, leaf in net.state_dict().items():
            torch.testing.assert_close(carry["work.gan"][side + name], leaf, rtol=1e-9, atol=1e-12)


def test_a_gan_on_digits_makes_images_that_are_like_digits(digits, learner):
    gan = Gan(width=0.25, epochs=25)
    made = make(probe(learner, "gan", 60, gan), digits)
    raw = make(probe(learner, "gan", 60, Gan(width=0.25, epochs=1)), digits)
    images, untrained = (from_bytes(m["images"], -1.0, 1.0).flatten(1) for m in (made, raw))
    rows = digits.x[digits.splits["train"].rows(0)].flatten(1)
    assert made["images"].dtype == torch.uint8
    assert made["images"].shape == (60, 1, 8, 8)
    assert (made["images"].flatten(1).float().std(1) > 10).all()  # no image is one colour
    assert (made["images"].flatten(1).float().std(0) > 1).float().mean() > 0.5  # nor all the same
    off, before = ((i.mean(0) - rows.mean(0)).norm() for i in (images, untrained))
    assert off < 0.6 * before
    assert made["made"] + made["copies"] == 60


@pytest.mark.slow
def test_images_are_the_same_in_one_call_for_many(digits, learner):
    """More than eight steps, after which the batched engine runs a trace of them; clients of unequal size."""
    probe_images = probe(learner, "gan", 12, Gan(width=0.0625, steps=20, batch=30))
    keys = {c: KEY + i for i, c in enumerate(digits.clients)}
    memories = Memories(lambda who: {"key": keys[who], "model": learner.first})
    engine = Batched(digits, {"generate_images": probe_images.task()}, memories)
    list(engine.replies(Ask("generate_images", digits.clients), RoundContext(Seed(0), 0, digits.clients)))
    for who in digits.clients:
        alone = make(probe_images, digits, who, keys[who])
        # Sums in another order: now and then a value between two bytes goes to the other one.
        off = (memories[who]["images"].int() - alone["images"].int()).abs()
        assert off.max() <= 1
        assert off.float().mean() < 0.01
        assert memories[who]["made"] == alone["made"]
    assert not torch.equal(memories["ann"]["images"], memories["bob"]["images"])


def test_another_key_makes_other_images(digits, learner):
    probe_images = probe(learner, "gan", 8, Gan(width=0.0625, epochs=1))
    one, other = (make(probe_images, digits, key=key)["images"] for key in (KEY, KEY + 1))
    assert (one != other).float().mean() > 0.5


def guarded(images, rows, guard):
    """What the guard makes of images among these rows."""
    carry = guard.begin({"images": to_bytes(images)}, torch.tensor(len(rows)), rows.shape[1])
    for sweep in guard.passes():
        for start in range(0, len(rows), 50):
            at = torch.arange(start, min(start + 50, len(rows)))
            carry = sweep.step(carry, Batch(rows[at], at, at, None))
    return guard.without_copies(carry)


def test_copies_are_found_and_blurred_images_are_not_taken_for_them():
    rows = torch.from_numpy(np.random.Generator(np.random.PCG64(0)).uniform(-1, 1, (150, 30))).float()
    copies = rows[:3] + 0.02
    blurred = 0.5 * (rows[10:20] + rows[20:30])
    images, kept, dropped = guarded(torch.cat([blurred[:5], copies, blurred[5:]]), rows, CopyGuard())
    assert (kept, dropped) == (10, 3)
    shown = {tuple(image) for image in images.tolist()}
    assert shown == {tuple(image) for image in to_bytes(blurred).tolist()}
    assert len(images) == 13  # the places of copies are filled again


def test_the_limit_is_the_quantile_of_the_rows_own_ratios():
    draw = np.random.Generator(np.random.PCG64(1))
    rows, images = draw.uniform(-1, 1, (120, 4)), draw.uniform(-1, 1, (40, 4))
    guard = CopyGuard(quantile=0.2, sample=100)
    apart = ((rows[:100, None] - rows[None]) ** 2).sum(2)
    apart[np.arange(100), np.arange(100)] = np.inf
    first, second = np.sort(apart, 1)[:, :2].T
    limit = np.sort(first / second)[int(99 * 0.2)]
    shown = to_bytes(torch.from_numpy(images)).numpy() * (2 / 255) - 1
    near = np.sort(((shown[:, None] - rows[None]) ** 2).sum(2), 1)
    wanted = int((near[:, 0] / near[:, 1] >= limit).sum())
    assert 0 < wanted < 40
    _, kept, dropped = guarded(torch.from_numpy(images), torch.from_numpy(rows), guard)
    assert (int(kept), int(dropped)) == (wanted, 40 - wanted)


def test_what_rows_searched_for_cost_by_hand(learner):
    probe_images = probe(learner, "back_search", 7)
    x = torch.randn(7, 1, 8, 8, generator=Seed(9).torch("rows"))
    got = float(probe_images._looks_like({"x": x}, None, {"model": learner.first}))
    z = learner.apply(learner.first, x).double().numpy()
    loss = np.log(np.exp(z).sum(1)) - z[np.arange(7), np.arange(7)]
    pull = SEARCH_WEIGHT / 2 * np.linalg.norm(x.flatten(1).double().numpy(), axis=1)
    assert pull.sum() > 0.05 * loss.sum(), "or a wrong pull would hide"
    assert got == pytest.approx(loss.sum() + pull.sum(), rel=1e-5)


def test_controls_noise_held_out_rows_and_rows_searched_for(digits, learner):
    noise = make(probe(learner, "noise", 40), digits)
    assert abs(from_bytes(noise["images"], -1.0, 1.0).mean()) < 0.05
    held = make(probe(learner, "held_out", 30), digits)
    valid = digits.x[digits.splits["valid"].rows(0)]
    few = min(len(valid), 30)
    assert torch.equal(held["images"][:few], to_bytes(to_unit(valid, -1.0, 1.0))[:few])
    assert torch.equal(held["images"][few:], held["images"][: 30 - few])
    assert held["made"] == few
    model = {name: 3 * t for name, t in learner.first.items()}
    probe_images = probe(learner, "back_search", 20, search_steps=60)
    memory = {"key": KEY, "model": model}
    made = perform(probe_images.task(), {}, memory, digits, "ann", RoundContext(Seed(0), 0, digits.clients))[
        1
    ]
    seen = predicted(learner, model, made["images"], -1.0, 1.0)
    assert (seen == torch.arange(20) % 10).float().mean() > 0.8
    assert set(made) == {"copies", "images", "key", "made", "model"}


@pytest.mark.parametrize(
    ("images", "why"),
    [
        (torch.full((2, 3), float("nan")), "bytes"),
        (torch.zeros(2, 4, dtype=torch.uint8), "shape"),
        (torch.full((2, 3), 9, dtype=torch.uint8), "one colour"),
        (None, "bytes"),
    ],
)
def test_images_that_show_nothing_are_refused_by_name(images, why):
    with pytest.raises(KinfolkError, match=f"(?s)'bob'.*{why}"):
        checked_images(images, torch.zeros(2, 3, dtype=torch.uint8), "bob")


def test_a_gan_of_few_rows_sees_no_others(digits, learner):
    """Rows that were not drawn can be anything, and its images are the same bytes."""
    gan = Gan(width=0.0625, epochs=2, rows=20, batch=8)
    context = RoundContext(Seed(0), 0, digits.clients)
    task = probe(learner, "gan", 12, gan, guarded=False).task()
    seen = {int(r) for b in client_batches(task.passes[1], 1, "gan", digits, "ann", context) for r in b.row}
    assert len(seen) == 20
    mine = digits.splits["train"].rows(0)
    x = digits.x.clone()
    x[[int(mine[r]) for r in range(len(mine)) if r not in seen]] = 0.77
    other = make(probe(learner, "gan", 12, gan, guarded=False), replace(digits, x=x))
    images = make(probe(learner, "gan", 12, gan, guarded=False), digits)["images"]
    assert torch.equal(images, other["images"])
    all_rows = make(probe(learner, "gan", 12, Gan(width=0.0625, epochs=2, batch=8), guarded=False), digits)
    assert not torch.equal(images, all_rows["images"])


def test_the_guard_keeps_no_network_and_no_optimiser():
    images = to_bytes(torch.zeros(3, 4))
    carry = {
        "images": images,
        PART: {"w": torch.ones(2)},
        "optimiser.0.first": {"w": torch.ones(2)},
        "key": KEY,
    }
    held = CopyGuard(sample=2).begin(carry, torch.tensor(5), 4)
    assert set(held) == {"images", "key", "work.sample", "work.sample_near", "work.image_near"}
    assert held["images"] is images
