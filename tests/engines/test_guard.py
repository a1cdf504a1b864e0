"""The guard: faults 1-6, 9, 10 and 28, each refused for its own reason, and nobody else punished."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.codec import decode
from kinfolk.engines.guard import LARGEST_COUNT, inspect
from kinfolk.errors import KinfolkError
from kinfolk.fold import Mean
from kinfolk.task import Expected, FloatSpec, IntSpec
from kinfolk.types import Client, Message, Stack, map_leaves

MODEL = {"w": torch.zeros(2, 3), "b": torch.zeros(3), "n": torch.zeros((), dtype=torch.int64)}
EXPECTED: Expected = {
    "model": MODEL,
    "group": IntSpec(0, 4),
    "loss": FloatSpec((), 0, 10),
    "law": FloatSpec((3,), 0, 1),
}


def good() -> Message:
    return {
        "model": {"w": torch.ones(2, 3), "b": torch.ones(3), "n": torch.tensor(7)},
        "group": torch.tensor(2),
        "loss": torch.tensor(0.5),
        "law": torch.tensor([0.2, 0.3, 0.5]),
    }


def judged(message: Message, rows: int = 5, expected: Expected = EXPECTED) -> str:
    """What the guard says about one reply beside two good ones in stacks of their own."""
    chunk = Stack.of({Client("mal"): (rows, message)})
    passed, bad = inspect(chunk, expected)
    assert set(bad) | set(passed.clients) == {"mal"}
    assert not set(bad) & set(passed.clients)
    return bad.get(Client("mal"), "")


def with_model(**change: torch.Tensor) -> Message:
    return {**good(), "model": {**good()["model"], **change}}


def test_a_good_reply_passes_untouched():
    chunk = Stack.of({Client("ann"): (5, good())})
    passed, bad = inspect(chunk, EXPECTED)
    assert passed is chunk
    assert bad == {}


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 5])
def test_faults_1_and_2_values_that_are_not_finite(poison, place):
    w = torch.ones(6)
    w[place] = poison
    assert judged(with_model(w=w.reshape(2, 3))) == "model/w is not finite"
    assert judged({**good(), "loss": torch.tensor(poison)}) == "loss is not finite"
    assert judged({**good(), "law": torch.tensor([0, poison, 0])}) == "law is not finite"


def test_fault_2_what_overflows_float32():
    # As float64 it is finite; the model is float32, and nothing is cast.
    assert "torch.float64" in judged(with_model(w=torch.full((2, 3), 1e300, dtype=torch.float64)))
    assert (
        judged(with_model(w=torch.full((2, 3), 1e300, dtype=torch.float64).float()))
        == "model/w is not finite"
    )
    free: Expected = {"loss": FloatSpec()}
    assert judged({"loss": torch.tensor(1e18, dtype=torch.float64)}, expected=free) == ""
    assert judged({"loss": torch.tensor(1e19, dtype=torch.float64)}, expected=free) == "loss is beyond 1e+18"
    assert judged(with_model(w=torch.full((2, 3), 3e38))) == "model/w is beyond 1e+18"
    assert judged({"loss": torch.tensor(1e39, dtype=torch.float64)}, expected=free) == "loss is not finite"


@pytest.mark.parametrize("shape", [(1,), (3, 2), (1, 3), (2, 1), (6,), (2, 3, 1), (), (0, 3), (2, 4)])
def test_fault_3_wrong_shapes_even_those_that_would_broadcast(shape):
    assert "has shape" in judged(with_model(w=torch.ones(shape)))


@pytest.mark.parametrize("shape", [(1,), (2,), ()])
def test_fault_3_wrong_shapes_of_numbers(shape):
    assert "law has shape" in judged({**good(), "law": torch.zeros(shape)})
    if shape:
        assert "loss has shape" in judged({**good(), "loss": torch.zeros(shape)})
        assert "group has shape" in judged({**good(), "group": torch.zeros(shape, dtype=torch.int64)})


@pytest.mark.parametrize(
    "kind",
    [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.complex64],
)
def test_fault_4_wrong_types_are_never_cast(kind):
    assert "has type" in judged(with_model(w=torch.ones(2, 3).to(kind)))
    if kind != torch.int64:
        assert "has type" in judged(with_model(n=torch.tensor(1).to(kind)))
        assert "has type" in judged({**good(), "group": torch.tensor(1).to(kind)})
    if not kind.is_floating_point:
        assert "has type" in judged({**good(), "loss": torch.tensor(1).to(kind)})


def test_fault_5_missing_extra_renamed_and_reordered():
    tree = good()["model"]
    without = {n: t for n, t in tree.items() if n != "b"}
    for wrong in (
        without,
        {**tree, "more": torch.ones(1)},
        {**without, "B": tree["b"]},
        {n: tree[n] for n in ("b", "w", "n")},
        {},
    ):
        assert "tensors of the model in their order" in judged({**good(), "model": wrong})
    assert "expected ['group', 'law', 'loss', 'model']" in judged(
        {k: v for k, v in good().items() if k != "law"}
    )
    assert "reply has" in judged({**good(), "more": torch.ones(1)})
    assert "reply has" in judged({})
    assert judged({**good(), "model": torch.ones(2, 3)}) == "model is a tensor, expected the other"
    assert judged({**good(), "loss": {"loss": torch.tensor(1.0)}}) == "loss is a tree, expected the other"
    assert judged(dict(reversed(good().items()))) == "", "the order of keys is the sender's own"


def test_fault_6_a_declared_shape_that_differs_from_the_data():
    def document(shape: list[int], size: int) -> bytes:
        layout = json.dumps({"layout": [["w", None]], "header": {}})
        tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}
        head = json.dumps({"__metadata__": {"kinfolk": layout}, "w": tensor}).encode()
        return struct.pack("<Q", len(head)) + head + bytes(size)

    assert decode(document([2, 3], 24))[0]["w"].shape == (2, 3)
    for shape, size in (([2, 4], 24), ([10**9, 10**9], 24), ([2, 3], 20), ([-1, 3], 24), ([2.5], 10)):
        with pytest.raises(KinfolkError, match="torn or malformed"):
            decode(document(shape, size))


@pytest.mark.parametrize("rows", [0, -1, -(10**18), LARGEST_COUNT + 1, 10**18])
def test_fault_9_counts_that_no_client_has(rows):
    assert judged(good(), rows) == f"row count is not in 1..{LARGEST_COUNT}"


def test_fault_9_the_largest_count_is_ours_to_set():
    chunk = Stack.of({Client(n): (rows, good()) for n, rows in (("a", 10), ("b", 11), ("c", 1))})
    passed, bad = inspect(chunk, EXPECTED, largest=10)
    assert passed.clients == ("a", "c")
    assert bad == {"b": "row count is not in 1..10"}
    assert judged(good(), LARGEST_COUNT) == ""


@pytest.mark.parametrize("size", [torch.tensor([2.0]), torch.tensor([True]), torch.tensor([np.nan])])
def test_fault_9_counts_that_are_no_whole_numbers(size):
    chunk = Stack.of({Client("mal"): (1, good())})
    passed, bad = inspect(Stack(chunk.clients, size, chunk.body), EXPECTED)
    assert passed.clients == ()
    assert "row count has type" in bad[Client("mal")]


def test_fault_10_all_counts_zero():
    chunk = Stack.of({Client(n): (0, good()) for n in "abc"})
    passed, bad = inspect(chunk, EXPECTED)
    assert set(bad) == {"a", "b", "c"}
    fold = Mean("model", keep=MODEL)
    chunks = [passed] if passed.clients else []
    total = fold.begin()
    for part in chunks:
        total = fold.add(total, part)
    assert fold.end(total) is MODEL


@pytest.mark.parametrize("group", [-1, 4, 2**62, -(2**63)])
def test_fault_28_groups_that_do_not_exist(group):
    assert judged({**good(), "group": torch.tensor(group)}) == "group is not in 0..3"


@pytest.mark.parametrize("group", [1.0, np.nan, True])
def test_fault_28_groups_that_are_no_whole_numbers(group):
    assert "group has type" in judged({**good(), "group": torch.tensor(group)})


@pytest.mark.parametrize("loss", [-0.001, 10.001, -1e10])
def test_numbers_outside_their_range(loss):
    assert judged({**good(), "loss": torch.tensor(loss)}) == "loss is not within [0, 10]"
    assert judged({**good(), "law": torch.tensor([0.0, 1.5, 0.0])}) == "law is not within [0, 1]"


def test_edges_of_the_range_pass():
    for loss in (0.0, 10.0):
        assert judged({**good(), "loss": torch.tensor(loss)}) == ""
    for group in (0, 3):
        assert judged({**good(), "group": torch.tensor(group)}) == ""


SPOILS = {
    "fine": lambda m: m,
    "nan": lambda m: {**m, "loss": m["loss"] * np.nan},
    "inf": lambda m: {**m, "model": {**m["model"], "b": m["model"]["b"] * np.inf}},
    "group": lambda m: {**m, "group": m["group"] + 9},
    "range": lambda m: {**m, "law": m["law"] + 9},
}


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(SPOILS)), st.sampled_from([1, 0])), min_size=1, max_size=8))
def test_in_a_chunk_each_falls_alone(kinds):
    sent = {Client(f"c{i}"): (rows, SPOILS[kind](good())) for i, (kind, rows) in enumerate(kinds)}
    chunk = Stack.of(sent)
    before = map_leaves(torch.clone, chunk.body)
    passed, bad = inspect(chunk, EXPECTED)
    honest = [f"c{i}" for i, (kind, rows) in enumerate(kinds) if kind == "fine" and rows]
    assert list(passed.clients) == honest
    assert set(bad) == set(chunk.clients) - set(honest)
    for name in honest:
        assert torch.equal(passed.row(name)["model"]["w"], good()["model"]["w"])
    # Nothing is repaired: what came in is as it was.
    assert all(
        torch.equal(chunk.body[k].nan_to_num(), before[k].nan_to_num()) for k in ("group", "loss", "law")
    )


def test_a_tensor_may_be_declared_too():
    expected: Expected = {"law": torch.zeros(3, dtype=torch.float64)}
    assert judged({"law": torch.zeros(3, dtype=torch.float64)}, expected=expected) == ""
    assert "has type" in judged({"law": torch.zeros(3)}, expected=expected)
    assert "has shape" in judged({"law": torch.zeros(1, dtype=torch.float64)}, expected=expected)


def test_an_empty_reply_where_none_is_expected():
    assert judged({}, expected={}) == ""
    assert judged({}, rows=0, expected={}) != ""
