import io
import zipfile
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import torch
from targets import HEADERS
from torch import nn

from kinfolk.errors import KinfolkError
from kinfolk.experiment.fit_rows import fit_rows
from kinfolk.federation.datasets.formats import read_npz
from kinfolk.federation.own_data.folder import read_folder
from kinfolk.federation.own_data.gather import in_order
from kinfolk.federation.own_data.loaded import federate
from kinfolk.federation.own_data.report import inspect
from kinfolk.streams import Seed

CSV = "a,b,y\n1,0.5,0\n2,1.5,1\n3,2.5,1\n"


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def some(n=4, start=0.0):
    return np.arange(start, start + 2 * n, dtype=np.float32).reshape(n, 2), np.arange(n) % 3


def test_csv_files_become_clients_by_their_name(tmp_path):
    write(tmp_path, **{"bob.v2": "y,b,a\n1,9,8\n0,7,6\n", "ann": CSV})
    found = read_folder(tmp_path)
    assert [*found.clients] == ["ann", "bob.v2"]
    assert found.feature_names == ("a", "b")
    assert found.class_names == ("0", "1")
    x, y = found.clients["bob.v2"]
    assert x.tolist() == [[8, 9], [6, 7]]  # by name of column, whatever their order in the file
    assert x.dtype == np.float32
    assert y.tolist() == [1, 0]
    assert found.types == {"a": "int64", "b": "double, int64", "y": "int64"}


@pytest.mark.parametrize(
    ("header", "asked", "chosen", "how"),
    [
        ("y,label,z", None, "y", "by its name"),
        ("a,label,z", None, "label", "by its name"),
        ("a,b,z", None, "z", "the last one"),
        ("y,label,z", "z", "z", "as asked"),
    ],
)
def test_the_label_column_is_stated(tmp_path, header, asked, chosen, how):
    found = read_folder(write(tmp_path, ann=f"{header}\n1,2,3\n4,5,6\n"), asked)
    assert set(found.feature_names) == set(header.split(",")) - {chosen}
    note = next(note for note in found.notes if note.startswith("label column"))
    assert repr(chosen) in note
    assert how in note


def test_the_same_rows_are_the_same_federation_in_every_kind_of_file(tmp_path):
    rng = np.random.Generator(np.random.PCG64(3))
    prints = set()
    for kind in ("npz", "csv", "parquet"):
        folder = tmp_path / kind
        folder.mkdir()
    for who in ("ann", "bob"):
        x, y = rng.normal(size=(20, 3)).astype(np.float32), rng.integers(0, 4, 20)
        frame = pd.DataFrame(x, columns=[*"abc"]).assign(y=y)
        npz(tmp_path / "npz" / f"{who}.npz", x=x, y=y)
        frame.to_csv(tmp_path / "csv" / f"{who}.csv", index=False)
        frame.to_parquet(tmp_path / "parquet" / f"{who}.parquet")
    for kind in ("npz", "csv", "parquet"):
        prints.add(federate(read_folder(tmp_path / kind), valid=0.2, seed=Seed(5)).fingerprint())
    assert len(prints) == 1


def test_text_labels_are_numbered_over_all_clients(tmp_path):
    write(tmp_path, ann="a,y\n1,dog\n2,cat\n3,dog\n", bob="a,y\n1,emu\n2,cat\n3,null\n4,null\n5,emu\n")
    found = read_folder(tmp_path)
    assert found.class_names == ("cat", "dog", "emu", "null")  # a class may be called null
    assert found.clients["ann"][1].tolist() == [1, 0, 1]
    assert found.clients["bob"][1].tolist() == [2, 0, 3, 3, 2]
    assert any("text" in note and "4 sorted names" in note for note in found.notes)


def test_labels_are_text_for_all_if_they_are_for_one(tmp_path):
    write(tmp_path, ann="a,y\n1,7\n2,07\n3,7\n", bob="a,y\n1,A\n2,7\n3,true\n", cat="a,y\n1,true\n2,true\n")
    found = read_folder(tmp_path)
    assert found.class_names == ("07", "7", "A", "true")
    assert [found.clients[w][1].tolist() for w in ("ann", "bob", "cat")] == [[1, 0, 1], [2, 1, 3], [3, 3]]


def test_class_names_that_are_numbers_are_sorted_as_numbers(tmp_path):
    x = np.zeros((6, 1))
    npz(tmp_path / "ann.npz", x=x, y=np.array(["10", "9", "2", "9", "10", "2"]))
    assert read_folder(tmp_path).class_names == ("2", "9", "10")


def test_whole_and_floating_labels_together_are_floats(tmp_path):
    found = read_folder(write(tmp_path, ann="a,y\n1,3\n2,4\n", bob="a,y\n1,3.5\n2,4\n"))
    assert found.class_names == ()
    assert found.clients["ann"][1].dtype == np.float32
    assert federate(found).classes == 0
    assert any("'ann'" in note and "'bob'" in note for note in found.notes)


def test_booleans_are_numbers_and_classes(tmp_path):
    found = read_folder(write(tmp_path, ann="a,y\ntrue,false\nfalse,true\ntrue,true\n"))
    assert found.clients["ann"][0].tolist() == [[1], [0], [1]]
    assert found.clients["ann"][1].tolist() == [0, 1, 1]
    assert found.class_names == ("False", "True")


def test_npz_arrays_of_any_shape_keep_their_bytes(tmp_path):
    x = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    for who in ("ann", "bob"):
        npz(tmp_path / f"{who}.npz", x=x, target=np.array([0, 2]), writer=np.array([1, 1]))
    found = read_folder(tmp_path, "target")
    assert found.clients["ann"][0].dtype == np.uint8
    assert found.left_out == {"arrays 'writer' of npz files": 2}
    assert found.class_names == ("0", "1", "2")
    federation = federate(found)
    rows = federation.splits["train"].rows(0)
    assert federation.take(rows)[0].tolist() == federation.x[rows].tolist()  # bytes as they are, unscaled


def test_types_that_differ_are_told_and_become_float32(tmp_path):
    x, y = some()
    npz(tmp_path / "ann.npz", x=x.astype(">f8"), y=y.astype(">i2"))
    npz(tmp_path / "bob.npz", x=x.astype(np.uint8), y=y)
    found = read_folder(tmp_path)
    assert all(own.dtype == np.float32 for own, _ in found.clients.values())
    assert found.clients["ann"][0].tolist() == x.tolist()
    assert any("float64 and uint8" in note for note in found.notes)


def test_whole_numbers_too_large_for_float32_are_told(tmp_path):
    found = read_folder(write(tmp_path, ann="a,b,y\n16777217,16777216,0\n1,2,1\n"))
    assert any("rounded" in note and note.endswith(" a") for note in found.notes)
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    npz(arrays / "ann.npz", x=np.array([[2**24 + 1], [1]]), y=np.array([0, 1]))
    kept = federate(read_folder(arrays))
    assert (
        kept.x.dtype == torch.int64
    )  # whole numbers out of arrays stay whole until a network asks for floats
    assert fit_rows(nn.Linear(1, 2), kept)[1].endswith("those beyond 16777216 are rounded in x")
    fine = read_folder(write(tmp_path / "fine", ann="a,b,y\n16777218,1e30,0\n1,0.1,1\n"))
    assert not any("rounded" in note for note in fine.notes)


def test_an_index_of_pandas_is_left_out_and_counted(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0, 1, 1]}, index=[7, 3, 9])
    frame.to_parquet(tmp_path / "ann.parquet")
    frame.to_parquet(tmp_path / "bob.parquet")
    found = read_folder(tmp_path)
    assert found.feature_names == ("a",)
    assert found.left_out == {"index columns written by pandas": 2}


def test_hidden_files_are_counted(tmp_path):
    write(tmp_path, ann=CSV)
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    assert read_folder(tmp_path).left_out == {"hidden files": 1}


CSV_FAULTS = {
    "text feature": ({"ann": "sex,y\nmale,0\nfemale,1\n"}, r"data\.ann\.sex = 'male': row 1 is text"),
    "stray word": (
        {"ann": "a,y\n1,0\n2,1\n?,1\n", "bob": "a,y\n1,0\n"},
        r"data\.ann\.a = '\?': row 3 is text; give numbers, or an empty cell",
    ),
    "date": (
        {"ann": "day,y\n2020-01-31,0\n2020-02-01,1\n"},
        r"data\.ann\.day = '2020-01-31': row 1 is a date; --date day",
    ),
    "missing": (
        {"ann": CSV, "bob": "a,b,y\n1,2,0\n3,,1\n,NA,1\n"},
        r"data\.bob\.a: empty or NaN in row 3 \(3 missing in 2 columns: a, b\); fill them, or take",
    ),
    "missing label": (
        {"ann": "a,y\n1,0\n2,\n"},
        r"data\.ann\.y: empty or NaN in row 2 \(1 missing in 1 column: y\)",
    ),
    "missing text label": (
        {"ann": "a,y\n1,x\n2,\n3,x\n4, \n"},
        r"data\.ann\.y: empty or NaN in row 2 \(2 missing",
    ),
    "infinite": ({"ann": "a,y\n1,0\ninf,1\n"}, r"data\.ann\.a = 'row 2': infinite"),
    "beyond float32": (
        {"ann": "a,y\n1,0\n2,0\n1e39,1\n"},
        r"data\.ann\.a = 'row 3': infinite, or beyond float32",
    ),
    "infinite label": ({"ann": "a,y\n1,0.5\n2,inf\n"}, r"data\.ann\.y = 'row 2': infinite"),
    "columns": (
        {"ann": CSV, "bob": "a,c,y\n1,2,0\n"},
        r"data\.bob\.columns = 'without b, with c': unlike 'ann'.*--columns",
    ),
    "too many words": (
        {"ann": "a,y\n" + "".join(f"{i},word{i}\n" for i in range(30))},
        r"data\.ann\.y = 'word0': row 1 is text, and 30 of 30 labels differ",
    ),
    "words of one row each": (
        {"ann": "a,y\n1,p\n2,q\n3,r\n"},
        r"'p': row 1 is text, and 3 of 3 labels differ",
    ),
    "negative": ({"ann": "a,y\n1,1\n2,-1\n"}, r"data\.ann\.y = -1: row 2: number classes from 0"),
    "far": (
        {"ann": "a,y\n1,1\n2,20230\n"},
        r"data\.ann\.y = 20230: row 2: number classes from 0 \(below 1000",
    ),
    "label name": ({"ann": CSV}, r"label = 'yy': no such column; did you mean 'y'"),
    "no header": ({"ann": "0.5,1.5,0\n0.1,0.2,1\n"}, r"ann\.csv': the first line holds numbers"),
    "index": ({"ann": ",a,y\n0,1,0\n"}, r"ann\.csv': a column has no name"),
    "twice": ({"ann": "a,a,y\n0,1,0\n"}, r"ann\.csv': column 'a' occurs twice"),
    "semicolons": ({"ann": "a;y\n0;1\n"}, r"ann\.csv': has the one column 'a;y'.*commas"),
    "ragged": ({"ann": "a,y\n0,1\n0,1,2\n"}, r"ann\.csv': not used: .*Expected 2 columns, got 3"),
    "short row": ({"ann": "a,b,y\n0,1\n"}, r"ann\.csv': not used: .*Expected 3 columns, got 2"),
    "nothing": ({"ann": ""}, r"ann\.csv': not used: Empty CSV"),
    "no rows": ({"ann": CSV, "bob": "a,b,y\n"}, r"data\.bob = '0 rows': leave this client out"),
    "mixed labels": (
        {"ann": "a,y\n1,true\n", "bob": "a,y\n1,3\n"},
        r"data\.bob\.y = 'whole numbers': 'ann' has bool",
    ),
}


@pytest.mark.parametrize("fault", CSV_FAULTS)
def test_a_faulty_csv_is_told_by_column_and_row(fault, tmp_path):
    files, message = CSV_FAULTS[fault]
    with pytest.raises(KinfolkError, match=message) as caught:
        read_folder(write(tmp_path, **files), "yy" if fault == "label name" else None)
    assert "\n" not in str(caught.value)


X, Y = some()
NPZ_FAULTS = {
    "lengths": ({"x": X, "y": Y[:2]}, r"data\.bob = 'x \[4, 2\], y \[2\]': give as many labels"),
    "shapes": ({"x": X[:, :1], "y": Y}, r"data\.bob\.x = 'row shape \[1\]': 'ann' has \[2\]"),
    "flat": ({"x": X[:, 0], "y": Y}, r"data\.bob\.x = \[4\]: give rows at least one axis"),
    "one-hot": ({"x": X, "y": np.eye(4, dtype=int)}, r"data\.bob\.y = 'row shape \[4\]': 'ann' has \[\]"),
    "complex": ({"x": X.astype(complex), "y": Y}, r"data\.bob\.x = 'complex128': give numbers"),
    "dates": ({"x": X, "y": Y.astype("datetime64[s]")}, r"data\.bob\.y = 'datetime64\[s\]'"),
    "no labels": ({"x": X, "labels": Y}, r"bob\.npz': not used: has no array 'y', only labels, x"),
    "no rows": ({"x": X[:0], "y": Y[:0]}, r"data\.bob = '0 rows'"),
    "blank label": (
        {"x": X, "y": np.array(["a", " ", "a", ""])},
        r"data\.bob\.y: empty or NaN in row 2 \(2 missing",
    ),
    "nan": ({"x": np.where(X == 5, np.nan, X), "y": Y}, r"data\.bob\.x\[1\]: empty or NaN in row 3 \(1 "),
}


@pytest.mark.parametrize("fault", NPZ_FAULTS)
def test_a_faulty_npz_is_told(fault, tmp_path):
    arrays, message = NPZ_FAULTS[fault]
    npz(tmp_path / "ann.npz", x=X, y=np.array(["a"] * 4) if fault == "blank label" else Y)
    npz(tmp_path / "bob.npz", **arrays)
    with pytest.raises(KinfolkError, match=message):
        read_folder(tmp_path)


def test_a_pickle_is_never_opened(tmp_path):
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return open, (str(ran), "w")

    folder = tmp_path / "data"
    folder.mkdir()
    npz(folder / "ann.npz", x=np.array([Bomb()], dtype=object), y=Y[:1])
    with pytest.raises(KinfolkError, match=r"array 'x' is a pickle, never opened"):
        read_folder(folder)
    assert not ran.exists()


def test_a_damaged_file_is_named_whatever_is_cut(tmp_path):
    whole = io.BytesIO()
    np.savez_compressed(whole, x=np.arange(400.0).reshape(200, 2), y=np.arange(200) % 3)
    folder = tmp_path / "npz"
    folder.mkdir()
    raw = whole.getvalue()
    flipped = bytearray(raw)
    flipped[150] ^= 0xFF
    for damaged in (b"", raw[:40], raw[: len(raw) // 2], raw[:-5], bytes(flipped)):
        (folder / "ann.npz").write_bytes(damaged)
        with pytest.raises(KinfolkError, match=r"ann\.npz': not used: .*replace it"):
            read_folder(folder)


def test_an_array_whose_head_lies_is_named(tmp_path):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (10**15, 2)})
    with zipfile.ZipFile(tmp_path / "ann.npz", "w") as archive:
        archive.writestr("x.npy", head.getvalue())
        archive.writestr("y.npy", head.getvalue())
    with pytest.raises(KinfolkError, match=r"ann\.npz': not used"):
        read_folder(tmp_path)


@pytest.mark.parametrize("keep", [0, 10, 400, -4])
def test_a_cut_parquet_is_named(tmp_path, keep):
    path = tmp_path / "ann.parquet"
    pd.DataFrame({"a": np.arange(500.0), "y": np.arange(500) % 2}).to_parquet(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(KinfolkError, match=r"ann\.parquet': not used"):
        read_folder(tmp_path)


def test_a_parquet_column_of_lists_is_named(tmp_path):
    pd.DataFrame({"a": [[1, 2], [3, 4]], "y": [0, 1]}).to_parquet(tmp_path / "ann.parquet")
    with pytest.raises(KinfolkError, match=r"data\.ann\.a = .*row 1 is not a number"):
        read_folder(tmp_path)


def test_a_folder_must_be_of_one_known_kind(tmp_path):
    with pytest.raises(KinfolkError, match="is not a folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(KinfolkError, match="is empty; put one file or folder per client"):
        read_folder(tmp_path)
    write(tmp_path, ann=CSV)
    npz(tmp_path / "bob.npz", x=X, y=Y)
    with pytest.raises(KinfolkError, match=r"data\.folder = 'ann\.csv and bob\.npz': are of different kinds"):
        read_folder(tmp_path)
    (tmp_path / "bob.npz").unlink()
    (tmp_path / "ann.CSV").write_text(CSV)
    with pytest.raises(KinfolkError, match=r"data\.clients = 'ann': two files are named so"):
        read_folder(tmp_path)
    (tmp_path / "ann.CSV").rename(tmp_path / "notes.txt")
    with pytest.raises(
        KinfolkError, match=r"notes\.txt': not a file of a known kind \(\.npz, \.csv, \.parquet"
    ):
        read_folder(tmp_path)


def test_a_name_that_is_no_text_is_refused(tmp_path):
    odd = "an\udcffn.csv"
    try:
        (tmp_path / odd).write_text(CSV)
    except OSError:
        pytest.skip("this file system keeps to plain names")
    with pytest.raises(KinfolkError, match="give every client a name in plain text"):
        read_folder(tmp_path)


def test_an_unknown_rule_for_missing_values_is_refused(tmp_path):
    with pytest.raises(KinfolkError, match="missing = 'mean': "):
        read_folder(write(tmp_path, ann=CSV), missing="mean")


def test_labels_of_any_number_of_digits_are_in_order():
    long = "9" * 9999  # more than `int` takes
    assert in_order({"10", long, "9", "010"}) == ("9", "010", "10", long)


def test_arrays_in_column_order_are_the_same_rows(tmp_path):
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 0, 1, 1, 0])
    found = []
    for name, order in (("rows", np.ascontiguousarray), ("columns", np.asfortranarray)):
        (tmp_path / name / "ann").mkdir(parents=True)
        np.save(tmp_path / name / "ann/x.npy", order(x))
        np.save(tmp_path / name / "ann/y.npy", y)
        found.append(read_folder(tmp_path / name))
    assert (found[0].clients["ann"][0] == found[1].clients["ann"][0]).all()
    assert inspect(found[0]) == inspect(found[1])


@pytest.mark.parametrize("data", HEADERS, ids=range(len(HEADERS)))
def test_headers_of_arrays_that_lie_are_one_line(tmp_path, data):
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann/x.npy").write_bytes(data)
    np.save(tmp_path / "ann/y.npy", np.arange(6) % 2)
    with pytest.raises(KinfolkError, match=r"x\.npy|data\.ann") as caught:
        read_folder(tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", data)
    with suppress(KinfolkError):  # texts of no letters, and one number alone, are arrays, if no rows
        assert read_npz(file, "a.npz")["x"].size in (1, 12)
