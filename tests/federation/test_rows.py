"""Rows of any type and structure in a federation: kept as they are, taken as networks want them."""

import numpy as np
import pytest
import torch
from structured import clients

from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation, labels_of, pack
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.own_data.loaded import LoadedClients
from kinfolk.federation.own_data.report import inspect
from kinfolk.federation.own_data.store import read_manifest, read_store, write_store
from kinfolk.federation.soundness import check
from kinfolk.federation.sources import DataSpec, build
from kinfolk.federation.summary import summarize
from kinfolk.streams import Seed
from kinfolk.types import IGNORED, Client

NONE = torch.zeros(0, dtype=torch.int64)
SPLITS = {
    "train": pack([torch.tensor([0, 1]), torch.tensor([3])]),
    "valid": pack([torch.tensor([2]), NONE]),
    "test": pack([torch.tensor([4, 5])], [0, 0]),
}
WHO = (Client("ann"), Client("bob"))
X, Y = torch.arange(12.0).reshape(6, 2) / 8, torch.tensor([0, 1, 1, 0, 1, 0])


def made(x=X, y=Y, classes=2, **more):
    return Federation(WHO, x, y, SPLITS, classes, **more)


def test_fingerprints_of_plain_rows_are_those_of_version_0_18():
    told = {
        made(
            truth=torch.tensor([0, 1]), name="two"
        ): "5f5dd92dde90e8c9a5ac60b3ac0d957c5766fe38ab5440f2c58f3650",
        made(
            (X * 8).to(torch.uint8), name="bytes", scale=(1 / 255, 0.0)
        ): "0ecf41a70f85886a1fe0f9eb168a1e5efd4a",
        build(
            DataSpec(clients=4, rows=10), Seed(0)
        ): "b88b6f54945be701206e0d6d31fe80c535b46d111d6279023262c587",
        build(
            DataSpec("gaussians", clients=4, rows=10, shift="source"), Seed(0)
        ): "4d1915c421f3a6b790227083ff5a",
        from_arrays(
            {"ann": (np.arange(10.0).reshape(5, 2), [0, 1, 0, 1, 1])}
        ): "228ea993234b0812a478be519782cbb",
    }
    for federation, digest in told.items():
        assert federation.fingerprint().startswith(digest)


def test_fingerprints_of_several_tensors_tell_names_types_and_numbers():
    parts = {"a": X, "b": Y}
    same = made(dict(parts)).fingerprint()
    others = (
        {"a": X, "c": Y},
        {"a": X, "b": Y.int()},
        {"a": X + 1, "b": Y},
        {"a": X},
    )
    assert made(dict(parts)).fingerprint() == same
    assert len({same, made().fingerprint(), *(made(x).fingerprint() for x in others)}) == 6


def test_rows_are_taken_as_float32_int64_or_bool_and_move_whole():
    x = {"half": X.half(), "ids": Y.to(torch.uint8), "real": Y.bool()}
    f = made(x)
    rows = torch.tensor([[3, 0], [1, 1]])
    taken, y = f.take(rows)
    assert {name: t.dtype for name, t in taken.items()} == {
        "half": torch.float32, "ids": torch.int64, "real": torch.bool,
    }  # fmt: skip
    assert torch.equal(taken["half"], X.half().float()[rows])
    assert torch.equal(taken["ids"], Y[rows])
    assert torch.equal(y, Y[rows])
    own = f.only(Client("bob"))
    assert own.rows == 3
    assert torch.equal(own.take(own.splits["train"].rows(0))[0]["ids"], Y[3:4])
    assert own.x["half"].dtype == torch.float16
    assert f.to("cpu").fingerprint() == f.fingerprint()
    assert f.device == torch.device("cpu")


def test_targets_may_be_sequences_or_several_tensors():
    y = torch.tensor([[0, 1], [1, IGNORED], [1, 1], [0, 0], [IGNORED, IGNORED], [1, 0]])
    f = check(made(y=y))
    assert labels_of(f, torch.tensor([0, 1, 4])).tolist() == [0, 1, 1]
    assert summarize(f).counts.tolist() == [[1, 2], [2, 0]]
    several = check(made(y={"time": X[:, 0], "event": Y.bool()}, classes=0))
    assert several.take(torch.tensor([1]))[1]["event"].dtype == torch.bool


LONG = torch.zeros(6, 4, dtype=torch.int64)
MASK = LONG.bool()
FAULTS = {
    "row counts": ({"a": X, "mask": LONG[:5]}, r"data\.x\.mask = 5: there are 6 rows of x"),
    "type": ({"a": X.double()}, r"data\.x\.a = 'torch\.float64': store rows as one of float32"),
    "name": ({"a b": X}, r"data\.x = 'a b': name inputs as the parameters of forward"),
    "mask": ({"t": LONG, "mask": MASK[:, :3]}, r"data\.x\.mask = 'row shape \[3\]': t has rows of 4"),
    "flat mask": ({"t": LONG, "mask": MASK[:, 0]}, r"data\.x\.mask = 'row shape \[\]': t has rows of 4"),
    "lengths": ({"0": LONG, "0.lengths": LONG[:, 0] + 5}, r"data\.x\.0\.lengths = .* from 0 to 4"),
    "nan": ({"a": X, "b": X * float("nan")}, r"data\.ann = '5 rows with NaN"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_inputs_are_named(fault):
    x, message = FAULTS[fault]
    with pytest.raises(KinfolkError, match=message):
        check(made(x))


def test_a_label_of_a_sequence_is_checked():
    with pytest.raises(KinfolkError, match=r"data\.bob\.y = 7: labels run from 0 to 1"):
        check(made(y=torch.tensor([[0, 1], [0, IGNORED], [0, 0], [0, 7], [0, 0], [0, 0]])))
    with pytest.raises(KinfolkError, match=r"data\.ann\.y = -100"):
        check(made(y=torch.tensor([0, IGNORED, 0, 0, 0, 0])))


@pytest.mark.parametrize("kind", ["two inputs", "tokens", "ragged"])
def test_a_store_keeps_structure_and_types_and_maps_them(kind, tmp_path):
    f = from_arrays(clients(kind))
    rows = {"ann": (np.zeros((2, 1), np.float32), np.array([0, 1]))}
    store = write_store(f, tmp_path / "store", inspect(LoadedClients(rows, f.class_names or ("a", "b"))))
    again = read_store(store, verify=True)
    assert again.fingerprint() == f.fingerprint()
    leaves = list(again.x.values()) if isinstance(again.x, dict) else [again.x]
    assert all(type(t.numpy().base) is not None for t in leaves)
    assert not any(t.untyped_storage().resizable() for t in leaves)  # memory of a file, not of torch
    assert read_manifest(store)["version"] == (1 if kind == "tokens" else 2)
    if kind == "two inputs":
        assert again.x["word"].dtype == torch.int16
        assert sorted(path.name for path in store.glob("x*")) == ["x.age.npy", "x.word.npy"]
