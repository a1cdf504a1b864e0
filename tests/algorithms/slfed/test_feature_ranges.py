"""Ranges of made rows, feature by feature: what is found, what travels, what a model is shown."""

import numpy as np
import pytest
import torch
from probing import probe

from kinfolk.algorithms.slfed.feature_ranges import LEAST, MOST, bounds, checked_reach, half_width
from kinfolk.algorithms.slfed.gan import Gan, from_bytes
from kinfolk.algorithms.slfed.probe_images import predicted
from kinfolk.contract import toy
from kinfolk.engines.batched import Batched
from kinfolk.engines.memory import Memories
from kinfolk.engines.one import perform
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed

SCALES = np.array([0.01, 0.3, 1.0, 5.0, 300.0])


@pytest.fixture(scope="module")
def table():
    """Features of very different sizes, among them rare values far away."""
    draw = np.random.default_rng(0)
    rows = {}
    for who, n in (("ann", 250), ("bob", 130), ("cyd", 90)):
        y = np.arange(n) % 3
        x = (draw.normal(size=(n, 5)) + (y[:, None] - 1) * 2) * SCALES
        x[0] = 1e6  # one row of ann in 250 may lie outside, cyd's may not
        rows[who] = (x.astype(np.float32), y)
    return from_arrays(rows, classes=3)


@pytest.fixture(scope="module")
def learner(table):
    return toy.learner("mlp", table)


def make(probe_images, federation, who="ann"):
    memory = {"key": torch.tensor(7), "model": probe_images.learner.first}
    context = RoundContext(Seed(0), 0, federation.clients)
    return perform(probe_images.task(), {}, memory, federation, who, context)[1]


def reach_by_hand(x):
    """The least power of two that all but one in a hundred of a feature's values lie within."""
    found = []
    for column in np.abs(x).T:
        inside = np.sort(column)[len(column) - len(column) // 100 - 1]
        found.append(int(np.clip(np.ceil(np.log2(inside)), LEAST, MOST)))
    return found


@pytest.mark.parametrize("kind", ["noise", "gan", "means", "back_search"])
def test_exponents_are_those_of_the_clients_own_rows(table, learner, kind):
    few = probe(learner, kind, 12, Gan(width=0.0625, steps=3), ranges="auto", search_steps=3)
    for who in table.clients:
        x = table.x[table.splits["train"].rows(table.place(who))].numpy()
        held = make(few, table, who)
        assert held["reach"].tolist() == reach_by_hand(x)
        assert held["reach"].dtype == torch.int8
        share = float((np.abs(x) > half_width(held["reach"]).numpy()).mean())
        assert share <= 0.01
    assert make(few, table, "cyd")["reach"][0] == 20, "one row of 90 is more than one in a hundred"
    assert make(few, table, "ann")["reach"][0] < 0, "one row of 250 is not"


def test_made_rows_reach_as_far_as_the_rows_do(table, learner):
    """By fixed ranges everything beyond 1 is cut; by its own each feature is as wide as its rows."""
    for ranges, wide in (("fixed", False), ("own", True)):
        held = make(probe(learner, "means", 30, ranges=ranges, means_of=3, guarded=False), table)
        made = from_bytes(held["images"], *bounds(held, -1.0, 1.0)).abs().amax(0)
        assert (float(made[4]) > 100) is wide
        assert (float(made[3]) > 2) is wide


def test_rows_that_are_shown_as_they_are_come_back_to_half_a_step(table):
    draw = np.random.default_rng(4)
    x, y = (draw.normal(size=(80, 5)) * SCALES).astype(np.float32), np.arange(80) % 3
    federation = from_arrays({"ann": (x, y), "bob": (x, y)}, valid=0.2, classes=3)
    held = make(probe(toy.learner("mlp", federation), "held_out", 10, ranges="own"), federation)
    made = from_bytes(held["images"], *bounds(held, -1.0, 1.0))
    width = half_width(held["reach"])
    wanted = federation.x[federation.splits["valid"].rows(0)[:10]].clamp(-width, width)
    assert bool(((made - wanted).abs() <= width / 255 * 1.001).all())
    assert float((wanted.abs() > 1).double().mean()) > 0.3, "nothing lies outside [-1, 1]"


def test_a_model_is_shown_the_numbers_and_not_the_bytes(table, learner):
    held = make(probe(learner, "noise", 40, ranges="own"), table)
    message = {"reach": held["reach"]}
    width = 2.0 ** held["reach"].numpy().astype(float)
    rows = held["images"].numpy() / 255 * 2 * width - width
    with torch.no_grad():
        wanted = learner.apply(learner.first, torch.from_numpy(rows.astype(np.float32))).argmax(1)
    seen = predicted(learner, learner.first, held["images"], -1.0, 1.0, message)
    assert (seen == wanted).double().mean() > 0.95  # the last bit of a product may decide
    blind = predicted(learner, learner.first, held["images"], -1.0, 1.0)
    assert not torch.equal(seen, blind)


def test_back_searched_rows_look_like_their_classes_to_the_model(table):
    """Each class is seen by one feature, of which one is of size 0.01 and another of 300."""
    net = torch.nn.Linear(5, 3)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
        for c, feature in enumerate((0, 3, 4)):
            net.weight[c, feature] = 1 / SCALES[feature]
    learner = Learner(net, find_loss("cross_entropy"), outputs=3)
    y, sure = torch.arange(30) % 3, {}
    for ranges in ("own", "fixed"):
        held = make(probe(learner, "back_search", 30, ranges=ranges, search_steps=150), table)
        rows = from_bytes(held["images"], *bounds(held, -1.0, 1.0))
        chance = learner.apply(learner.first, rows).softmax(1)
        sure[ranges] = chance.gather(1, y[:, None])[:, 0]
    assert float(sure["own"].min()) > 0.7
    assert float(sure["fixed"][y == 2].max()) < 0.6, "300 can not be reached within [-1, 1]"


def test_pictures_keep_the_range_that_everybody_knows():
    pictures = toy.grouped((12,) * 2, side=8, noise=0.5)
    net = toy.learner("mlp", pictures)
    auto, fixed, own = (
        make(probe(net, "means", 8, ranges=r, means_of=3, guarded=False), pictures, pictures.clients[0])
        for r in ("auto", "fixed", "own")
    )
    assert "reach" not in auto
    assert torch.equal(auto["images"], fixed["images"])
    assert own["reach"].shape == auto["images"].shape[1:]


def test_many_clients_in_one_call_find_the_same(table, learner):
    task = probe(learner, "means", 12, ranges="auto", means_of=3).task()
    memories = Memories(lambda who: {"key": torch.tensor(7), "model": learner.first})
    engine = Batched(table, {"generate_images": task}, memories)
    list(engine.replies(Ask("generate_images", table.clients), RoundContext(Seed(0), 0, table.clients)))
    for who in table.clients:
        alone = make(probe(learner, "means", 12, ranges="auto", means_of=3), table, who)
        for key in ("reach", "images", "made"):
            # Bytes may fall to either side of a half where sums round otherwise.
            apart = engine.memories[who][key].int() - alone[key].int()
            assert int(apart.abs().max()) <= (1 if key == "images" else 0)


def test_a_peers_exponents_are_checked():
    mine = {"reach": torch.zeros(2, dtype=torch.int8)}
    good = torch.tensor([3, -2], dtype=torch.int8)
    assert checked_reach({"reach": good}, mine, "bob")["reach"] is good
    assert checked_reach({"reach": good}, {}, "bob") == {}
    for bad, why in (
        (None, "must be int8"),
        (good.float(), "must be int8"),
        (good[:1], r"of shape \(2,\)"),
        (good + 50, "must lie in -10 ... 20"),
    ):
        with pytest.raises(KinfolkError, match=rf"ranges of 'bob'.*{why}"):
            checked_reach({"reach": bad}, mine, "bob")
