"""The measures and the damages that the checks rely on."""

import pytest
import torch

from kinfolk.algorithms.blocks.one_model import State
from kinfolk.contract.compare import (
    ENGINE_TOLERANCE,
    message_difference,
    state_difference,
    tensor_difference,
    unsound,
)
from kinfolk.contract.spoil import HARMS
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.guard import inspect
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import FloatSpec, IntSpec, Task
from kinfolk.types import Client, Stack

NAN, INF = float("nan"), float("inf")


def off(a, b, tolerance=1e-5):
    return tensor_difference(torch.tensor(a), torch.tensor(b), tolerance)


def test_closeness_is_measured_on_the_scale_of_the_whole_tensor():
    assert off([100.0, 1e-4], [100.0, 0.0]) == ""  # 1e-6 of the norm
    assert off([1.0, 1e-4], [1.0, 0.0]) == "is off by 1.0e-04 of its norm"
    assert off([5e-7, 0.0], [0.0, 0.0]) == ""  # below what float32 knows of weights of size one
    assert off([5e-6, 0.0], [0.0, 0.0]) != ""
    assert off([1.0, 2e-4], [1.0, 0.0], ENGINE_TOLERANCE) != "", "engines are held to less than that"


def test_what_is_not_finite_must_be_so_in_the_same_places():
    assert off([NAN, 1.0], [NAN, 1.0]) == ""
    assert off([NAN, 1.0], [1.0, 1.0]) == "is finite in other places"
    assert off([INF, 1.0], [INF, 1.0]) == ""


def test_integers_types_and_shapes_must_be_the_same():
    assert off([1000000, 1], [1000001, 1]) == "differs in 1 of 2 entries"
    assert off([1.0], [1]).startswith("is torch.float32 [1], not torch.int64")
    assert off([1.0], [[1.0]]) != ""


def test_no_tolerance_means_equal_bits():
    assert off([1.0 + 2**-23], [1.0], 0) != ""
    assert off([0.0], [-0.0], 0) != ""
    assert off([NAN], [NAN], 0) == ""


def test_names_and_their_order_count():
    a, b = torch.zeros(1), torch.ones(1)
    assert message_difference({"m": {"a": a, "b": b}}, {"m": {"a": a, "b": b}}, 0) == ""
    assert message_difference({"m": {"a": a, "b": b}}, {"m": {"b": b, "a": a}}, 1) != ""
    assert message_difference({"m": {"a": a}}, {"m": {"a": a, "b": b}}, 1) != ""
    assert state_difference(State({"w": a}), State({"w": b}), 1e-5).startswith("state.model/w is off")
    assert unsound({"n": torch.tensor([1]), "m": {"w": torch.tensor([INF])}}) == "m/w is not finite"


REPLIES = {
    "a model": ({"model": {"w": torch.ones(2, 3), "b": torch.ones(3), "n": torch.tensor(1)}}, None),
    "numbers": (
        {"loss": torch.ones(4), "group": torch.tensor(1)},
        {"loss": FloatSpec((4,)), "group": IntSpec(0, 3)},
    ),
    "one number": ({"group": torch.tensor(1)}, {"group": IntSpec(0, 3)}),
    "nothing": ({}, {}),
}


class Told:
    """An engine whose clients have three rows, and which replies what it is told."""

    def __init__(self, replies, task):
        self.answers, self.table, self.device = replies, {"t": task}, torch.device("cpu")

    def claims(self, who):
        return dict.fromkeys(who, 3)

    def replies(self, request, context):
        return iter(self.answers)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("kind", REPLIES)
def test_every_harm_is_one_that_the_guard_refuses(kind, harm):
    body, expected = REPLIES[kind]
    reply = Stack.of({Client("ada"): (3, body)})
    before = {k: v if isinstance(v, torch.Tensor) else dict(v) for k, v in reply.body.items()}
    assert inspect(reply, expected or body) == (reply, {})
    replies = [HARMS[harm](reply), Stack.of({Client(c): (3, body) for c in ("ben", "cleo")})]
    task = Task(lambda *_: {}, lambda carry: (carry, None), reply=expected or body)
    log: list[tuple[str, str]] = []
    stage = Coordinator(Told(replies, task), lambda event, **facts: log.append((event, facts["client"])))
    names = ("ada", "ben", "cleo")
    got = stage.perform(Ask("t", names), RoundContext(Seed(0), 0, names))
    assert got.clients == ("ben", "cleo")
    assert log == [("rejected", "ada")]
    assert message_difference(reply.body, before, 0) == ""
