"""The mean of replies, against NumPy in float64: in any chunks, in any order, by size or uniform."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.fold import Mean, client_weights, from_spec
from kinfolk.types import Client, Stack, Tree

KEEP: Tree = {"w": torch.full((2, 3), 9.0), "n": torch.tensor(5), "half": torch.zeros(1, dtype=torch.float16)}


def replies(number: int, seed: int) -> dict[Client, tuple[int, dict[str, Tree]]]:
    draw = np.random.default_rng(seed)
    found = {}
    for i in range(number):
        tree = {
            "w": torch.from_numpy(draw.normal(size=(2, 3)) * 10.0 ** draw.integers(-3, 4)).float(),
            "n": torch.tensor(int(draw.integers(-4, 9))),
            "half": torch.from_numpy(draw.normal(size=1)).half(),
        }
        found[Client(f"c{i}")] = (int(draw.integers(1, 500)), {"model": tree})
    return found


def folded(chunks: list[Stack], weights: str = "size", keep: Tree = KEEP) -> Tree:
    fold = Mean("model", keep, weights)  # type: ignore[arg-type]
    total = fold.begin()
    for chunk in chunks:
        total = fold.add(total, chunk)
    return fold.end(total)


def by_numpy(given_replies: dict, weights: str) -> dict[str, np.ndarray]:
    sizes = np.array([n if weights == "size" else 1 for n, _ in given_replies.values()], dtype=np.float64)
    share = sizes / sizes.sum()
    trees = [message["model"] for _, message in given_replies.values()]

    def mean(name: str) -> np.ndarray:
        values = np.stack([t[name].double().numpy() for t in trees])
        return np.einsum("i,i...->...", share, values)

    return {"w": mean("w"), "half": mean("half"), "n": np.max([int(t["n"]) for t in trees])}


@settings(deadline=None)
@given(
    st.integers(1, 9),
    st.integers(0, 99),
    st.sampled_from(["size", "uniform"]),
    st.lists(st.integers(1, 8), max_size=4),
    st.randoms(),
)
def test_any_chunks_in_any_order_give_the_mean_of_numpy(number, seed, weights, cuts, shuffle):
    sent = replies(number, seed)
    names = sorted(sent)
    edges = [0, *sorted(c for c in cuts if c < number), number]
    chunks = [Stack.of({c: sent[c] for c in names[a:b]}) for a, b in pairwise(edges) if b > a]
    shuffle.shuffle(chunks)
    got = folded(chunks, weights)
    expected = by_numpy(sent, weights)
    assert list(got) == list(KEEP)
    assert [t.dtype for t in got.values()] == [t.dtype for t in KEEP.values()]
    # One rounding to float32 at the very end: within half a unit in the last place of the exact mean.
    ulp = np.spacing(np.abs(expected["w"]).astype(np.float32))
    assert (np.abs(got["w"].double().numpy() - expected["w"]) <= 0.51 * ulp).all()
    np.testing.assert_allclose(got["half"].double(), expected["half"], rtol=1e-3, atol=1e-3)
    assert int(got["n"]) == expected["n"]


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_parts_made_elsewhere_give_the_mean_of_numpy(weights):
    sent = replies(7, 5)
    names, fold = sorted(sent), Mean("model", KEEP, weights)
    total = fold.begin()
    for part in (names[:3], [], names[3:4], names[4:]):
        elsewhere = from_spec(fold.spec())
        chunks = [Stack.of({c: sent[c]}) for c in part]
        made = elsewhere.begin()
        for chunk in chunks:
            made = elsewhere.add(made, chunk)
        total = fold.merge(total, made)
    got, expected = fold.end(total), by_numpy(sent, weights)
    np.testing.assert_allclose(got["w"].double(), expected["w"], rtol=1e-7)
    assert int(got["n"]) == expected["n"]
    assert fold.end(fold.merge(fold.begin(), fold.begin())) is KEEP


def test_a_fold_that_is_not_known_elsewhere_is_refused():
    with pytest.raises(KeyError, match="no fold is called median"):
        from_spec({"fold": "median"})


def test_sums_run_in_float64():
    # In float32 a million ones added to 2**24 are lost.
    values = torch.ones(1001)
    values[0] = 2.0**24
    sent = {Client(f"{i:04d}"): (1, {"model": {"w": v}}) for i, v in enumerate(values)}
    chunks = [Stack.of({c: sent[c]}) for c in sorted(sent)]
    mean = folded(chunks, keep={"w": torch.tensor(0.0)})["w"]
    assert mean.item() == np.float32((2.0**24 + 1000) / 1001)
    large = {Client(n): (1, {"model": {"w": torch.tensor(3e38)}}) for n in "abc"}
    assert folded([Stack.of(large)], keep={"w": torch.tensor(0.0)})["w"].item() == np.float32(3e38)


def test_the_mean_of_a_model_with_itself_is_the_model():
    tree = replies(1, 3)[Client("c0")][1]["model"]
    sent = {Client(n): (size, {"model": tree}) for n, size in (("a", 3), ("b", 7), ("c", 11))}
    for weights in ("size", "uniform"):
        got = folded([Stack.of(sent)], weights)
        assert all(torch.equal(got[n], tree[n]) for n in tree)


def test_uniform_forgets_sizes():
    sent = {
        Client("a"): (1, {"model": {"w": torch.tensor([0.0])}}),
        Client("b"): (3, {"model": {"w": torch.tensor([4.0])}}),
    }
    keep = {"w": torch.zeros(1)}
    assert folded([Stack.of(sent)], "uniform", keep)["w"].item() == 2
    assert folded([Stack.of(sent)], "size", keep)["w"].item() == 3
    assert client_weights(Stack.of(sent), "size").tolist() == [1, 3]
    assert client_weights(Stack.of(sent), "uniform").tolist() == [1, 1]


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_if_nobody_answers_the_old_model_stands(weights):
    assert folded([], weights) is KEEP


def test_counts_of_zero_divide_nothing():
    chunk = Stack.of({Client("a"): (0, replies(1, 0)[Client("c0")][1])})
    assert folded([chunk]) is KEEP


def test_truth_values_are_true_if_anybodys_is():
    sent = {
        Client(n): (1, {"model": {"seen": torch.tensor(v)}})
        for n, v in (("a", [True, False]), ("b", [False] * 2))
    }
    chunks = [Stack.of({c: sent[c]}) for c in sent]
    assert folded(chunks, keep={"seen": torch.zeros(2, dtype=torch.bool)})["seen"].tolist() == [True, False]


def test_replies_are_not_written_to():
    chunk = Stack.of(replies(3, 1))
    before = {n: t.clone() for n, t in chunk.tree("model").items()}
    folded([chunk, chunk])
    assert all(torch.equal(before[n], t) for n, t in chunk.tree("model").items())
