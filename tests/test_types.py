"""Stacks are found by name: no order of arrival, join or choice may move a row to another client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.types import Client, IndexedMessages, Message, Stack, leaves, map_leaves, nbytes, stack_messages

NAMES = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=7, unique=True)
KINDS = [torch.float32, torch.float64, torch.int64, torch.bool, torch.float16]


def message(name: str, shape: tuple[int, ...], kind: torch.dtype) -> Message:
    """A message that only this client could have sent."""
    draw = np.random.default_rng(list(name.encode("utf-8", "surrogatepass")))
    return {
        "v": torch.from_numpy(draw.integers(0, 100, shape)).to(kind),
        "m": {"a": torch.tensor(draw.normal()), "b/c.d": torch.from_numpy(draw.normal(size=(2, *shape)))},
    }


def stack_of(names: list[str], shape: tuple[int, ...] = (3,), kind: torch.dtype = torch.float32) -> Stack:
    return Stack.of({Client(n): (len(n), message(n, shape, kind)) for n in names})


def assert_same(a: Message, b: Message) -> None:
    assert list(a) == list(b)
    for (key, name, x), (other_key, other_name, y) in zip(leaves(a), leaves(b), strict=True):
        assert (key, name) == (other_key, other_name)
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        assert torch.equal(x, y)


@settings(deadline=None)
@given(NAMES, st.lists(st.integers(0, 3), max_size=2), st.sampled_from(KINDS), st.randoms())
def test_rows_stay_with_their_client(names, shape, kind, shuffle):
    stack = stack_of(names, tuple(shape), kind)
    assert stack.clients == tuple(sorted(names))
    assert len(stack) == len(names)
    assert stack.size.tolist() == [len(n) for n in sorted(names)]
    mixed = list(names)
    shuffle.shuffle(mixed)
    assert_same(stack_of(mixed, tuple(shape), kind).body, stack.body)
    for name in names:
        assert_same(stack.row(name), message(name, tuple(shape), kind))


@settings(deadline=None)
@given(NAMES, st.data())
def test_at_takes_the_rows_that_are_named_in_any_order(names, data):
    stack = stack_of(names)
    who = data.draw(st.lists(st.sampled_from(names), unique=True))
    some = stack.at(who)
    assert some.clients == tuple(sorted(who))
    assert some.size.tolist() == [len(n) for n in sorted(who)]
    for name in who:
        assert_same(some.row(name), message(name, (3,), torch.float32))
    assert all(leaf.shape[0] == len(who) for _, _, leaf in leaves(some.body))


@settings(deadline=None)
@given(NAMES, st.data())
def test_join_undoes_any_parting(names, data):
    stack = stack_of(names)
    home = data.draw(st.lists(st.integers(0, 3), min_size=len(names), max_size=len(names)))
    parts = [stack.at([n for n, h in zip(names, home, strict=True) if h == part]) for part in range(4)]
    joined = Stack.join(data.draw(st.permutations(parts)))
    assert joined.clients == stack.clients
    assert torch.equal(joined.size, stack.size)
    assert_same(joined.body, stack.body)


def test_nobody():
    empty = Stack.of({})
    assert len(empty) == 0
    assert not empty
    assert empty.size.dtype == torch.int64
    assert empty.body == {}
    assert Stack.join([]).clients == Stack.join([empty, empty]).clients == ()
    nobody = stack_of(["a", "b"]).at([])
    assert nobody.tensor("v").shape == (0, 3)
    assert Stack.join([nobody, stack_of(["z"])]).clients == ("z",)


def test_a_name_that_is_not_there_is_an_error():
    stack = stack_of(["a", "c"])
    with pytest.raises(KeyError):
        stack.at(["a", "b"])
    with pytest.raises(KeyError):
        stack.row("b")
    picked = IndexedMessages(stack.clients, torch.tensor([0, 0]), {"v": torch.zeros(1)})
    with pytest.raises(KeyError):
        picked.at(["b"])


def test_a_picked_message_is_that_of_a_stack_and_costs_as_much():
    table = {"m": {"w": torch.arange(6.0).reshape(3, 2)}, "n": torch.tensor([7, 8, 9])}
    who, which = tuple(Client(c) for c in "abcd"), torch.tensor([2, 0, 2, 1])
    picked = IndexedMessages(who, which, table)
    stack = Stack(
        who, torch.zeros(4, dtype=torch.int64), {"m": {"w": table["m"]["w"][which]}, "n": table["n"][which]}
    )
    for some in (["a"], ["d", "b"], list(who)):
        assert picked.nbytes(some) == stack.nbytes(some) == 16 * len(some)
        assert torch.equal(picked.at(some).tree("m")["w"], stack.at(some).tree("m")["w"])
        assert torch.equal(picked.at(some).tensor("n"), stack.at(some).tensor("n"))
    assert torch.equal(picked.row("c")["m"]["w"], torch.tensor([4.0, 5.0]))


def test_trees_and_tensors_are_not_confused():
    stack = stack_of(["a"])
    with pytest.raises(AssertionError, match="tensor, not a tree"):
        stack.tree("v")
    with pytest.raises(AssertionError, match="tree, not a tensor"):
        stack.tensor("m")


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 4), max_size=3)), max_size=5))
def test_nbytes_agrees_with_numpy(leaves_wanted):
    tree = {f"t{i}": torch.zeros(shape, dtype=kind) for i, (kind, shape) in enumerate(leaves_wanted)}
    assert nbytes({"m": tree, "n": torch.zeros(2)}) == sum(t.numpy().nbytes for t in tree.values()) + 8


def test_nbytes_counts_what_travels_not_what_is_stored():
    assert nbytes({"v": torch.zeros(1).expand(1000)}) == 4000
    assert nbytes({"v": torch.zeros(1000)[::10]}) == 400


def test_map_leaves_leaves_its_argument_alone():
    given_message = message("a", (2,), torch.float32)
    before = map_leaves(torch.clone, given_message)
    doubled = map_leaves(lambda t: t * 2, given_message)
    assert_same(given_message, before)
    assert torch.equal(doubled["m"]["a"], before["m"]["a"] * 2)
    assert [(key, name) for key, name, _ in leaves(doubled)] == [("v", None), ("m", "a"), ("m", "b/c.d")]


def test_unequal_messages_do_not_stack():
    with pytest.raises(RuntimeError):
        stack_messages([{"v": torch.zeros(2)}, {"v": torch.zeros(1)}])
    with pytest.raises(KeyError):
        stack_messages([{"v": torch.zeros(2)}, {"w": torch.zeros(2)}])
