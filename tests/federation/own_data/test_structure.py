"""Several arrays, sequences and words, as people hand them in: in Python and in files."""

import numpy as np
import pytest
import torch
from structured import clients
from torch.utils.data import Dataset

from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.own_data.folder import read_folder
from kinfolk.federation.own_data.load import load_own
from kinfolk.federation.own_data.loaded import federate
from kinfolk.federation.own_data.report import inspect, report_table
from kinfolk.federation.own_data.store import read_store, write_store
from kinfolk.types import IGNORED


class Items(Dataset):
    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def rows_of(f, who):
    """All of a client's rows in the order they were given."""
    i = f.place(who)
    return torch.cat([split.rows(i) for split in f.splits.values()]).sort()[0]


def test_sequences_are_padded_to_the_longest_of_all_clients_with_their_lengths():
    a, b = [np.array([5, 6, 7]), np.array([8])], torch.tensor([[1, 2], [3, 4]])
    f = from_arrays({"ann": (a, [0, 1]), "bob": (b, [1, 1])})
    assert list(f.x) == ["0", "0.lengths"]
    assert f.x["0"].tolist() == [[5, 6, 7], [8, 0, 0], [1, 2, 0], [3, 4, 0]]
    assert f.x["0.lengths"].tolist() == [3, 1, 2, 2]


def test_sequences_of_vectors_words_in_lists_and_inside_a_dict():
    texts, ages = [[1, 2], [3], [4], [5, 6]], [31.0, 47.5, 12.0, 8.0]
    f = from_arrays({"ann": ({"text": texts, "age": ages}, ["no", "yes", "yes", "no"])})
    assert f.x["text"].tolist() == [[1, 2], [3, 0], [4, 0], [5, 6]]
    assert f.x["text.lengths"].tolist() == [2, 1, 1, 2]
    assert f.x["age"].dtype == torch.float32
    assert f.class_names == ("no", "yes")
    steps = from_arrays({"ann": ([np.ones((2, 3)), np.ones((4, 3))], [0, 1])})
    assert steps.x["0"].shape == (2, 4, 3)
    assert steps.x["0"][0, 2:].abs().sum() == 0


def test_rows_that_are_alike_are_stacked_as_ever():
    rows = [np.arange(3.0), np.ones(3)]
    assert torch.equal(from_arrays([(rows, [0, 1])]).x, from_arrays([(np.stack(rows), [0, 1])]).x)


def test_a_tuple_gives_inputs_by_place_and_a_dataset_may_yield_dicts_or_tuples():
    x, z = np.arange(6.0).reshape(3, 2), np.arange(3)
    by_place = from_arrays({"ann": ((x, z), [0, 1, 0])})
    assert list(by_place.x) == ["0", "1"]
    items = [((torch.tensor(x[i]), torch.tensor(z[i])), i % 2) for i in range(3)]
    assert torch.equal(from_arrays({"ann": Items(*items)}).x["1"], by_place.x["1"])
    dicts = [{"x1": x[i], "x2": z[i], "labels": i % 2} for i in range(3)]
    f = from_arrays({"ann": Items(*dicts)})
    assert list(f.x) == ["x1", "x2"]
    assert f.y.tolist() == [0, 1, 0]
    lone = [({"ids": torch.arange(n)}, "ab"[n % 2]) for n in (1, 3, 2, 1)]
    f = from_arrays({"ann": Items(*lone)})
    assert f.x["ids.lengths"].tolist() == [1, 3, 2, 1]
    assert f.class_names == ("a", "b")


def test_words_are_classes_in_python_as_in_tables_also_beside_given_test_rows():
    y = np.array(["cat", "ant", "cat", "bee"] * 2, dtype=object)
    x = np.zeros((8, 2))
    f = from_arrays({"ann": (x, y), "bob": (x, ["ant"] * 8)}, test={"bob": (x[:1], ["cat"])})
    assert f.class_names == ("ant", "bee", "cat")
    assert f.y[rows_of(f, "ann")].tolist() == [2, 0, 2, 1] * 2
    assert f.y[f.splits["test"].rows(1)].tolist() == [2]


def test_targets_of_other_structure():
    x = torch.zeros(3, 4, dtype=torch.int64)
    tokens = from_arrays({"ann": (x, torch.tensor([[0, 1], [2, 2], [1, 0]]))})
    assert tokens.classes == 3
    assert tokens.y.shape == (3, 2)
    ragged = from_arrays({"ann": (x, [[0, 1], [2], [1, 0]])})
    assert ragged.y.tolist() == [[0, 1], [2, IGNORED], [1, 0]]
    several = from_arrays({"ann": (x, torch.tensor([[True, False], [True, True], [False, False]]))})
    assert several.classes == 0
    assert several.y.dtype == torch.bool
    survival = from_arrays({"ann": (x, {"time": np.array([1.0, 2.0, 3.0]), "event": np.array([1, 0, 1])})})
    assert survival.classes == 0
    assert survival.take(torch.tensor([2]))[1]["time"].tolist() == [3.0]


def test_given_test_rows_join_in_the_same_form():
    x = [np.array([1, 2]), np.array([3])]
    f = from_arrays({"ann": (x, [0, 1])}, test={"ann": ([np.array([4, 5, 6])], [1])})
    assert f.x["0"].shape == (3, 3)
    assert f.x["0"][f.splits["test"].rows(0)].tolist() == [[4, 5, 6]]
    assert f.splits["train"].counts().tolist() == [2]


def test_rows_with_nan_in_one_of_several_arrays_are_refused_or_dropped():
    x = {"a": np.array([1.0, np.nan, 3.0]), "b": np.arange(3)}
    with pytest.raises(KinfolkError, match=r"data\.ann\.x\.a: NaN in row 2"):
        from_arrays({"ann": (x, [0, 1, 0])})
    f = from_arrays({"ann": (x, [0, 1, 0])}, missing="drop")
    assert f.x["b"].tolist() == [0, 2]
    with pytest.raises(KinfolkError, match=r"missing = 'median': rows of several arrays"):
        from_arrays({"ann": (x, [0, 1, 0])}, missing="median")


Y = [0, 1, 0, 1]
A, B = np.zeros((4, 2)), np.zeros(4, int)
FAULTS = {
    "row counts": ({"a": A, "b": B[:3]}, r"data\.c\.x\.b = 3: y has 4 rows"),
    "names": ({"a": A, "c": B}, r"data\.c\.x = \['a', 'c'\]: others have a, b"),
    "shape": ({"a": np.zeros((4, 3)), "b": B}, r"data\.c\.x\.a = 'floats of row shape \[3\]'"),
    "kind": ({"a": A, "b": np.zeros(4)}, r"data\.c\.x\.b = 'floats of row shape \[\]': 'ann' has whole"),
    "nested": ({"a": {"p": A}, "b": B}, r"data\.c\.x\.a = \['p'\]: a dict in a dict; give one flat dict"),
    "one array": (A, r"data\.c\.x = 'one array': others have a, b"),
    "text": ({"a": A, "b": ["p", "q", "r", "s"]}, r"data\.c\.x\.b = 'text': give numbers; of text the ids"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_unlike_the_others_is_named(fault):
    x, message = FAULTS[fault]
    with pytest.raises(KinfolkError, match=message):
        from_arrays({"ann": ({"a": A, "b": B}, Y), "c": (x, Y)})


def test_a_mask_of_ones_own_is_padded_as_not_real_and_has_no_lengths():
    x = {"tokens": [[5, 2], [3]], "mask": [[True, True], [True]]}
    f = from_arrays({"ann": (x, [0, 1])})
    assert [*f.x] == ["tokens", "tokens.lengths", "mask"]
    assert f.x["mask"].tolist() == [[True, True], [True, False]]


def test_items_may_have_words_for_their_positions():
    f = from_arrays({"ann": Items(*[({"ids": np.arange(n)}, [*"abc"[:n]]) for n in (2, 3, 1, 2, 3)])})
    assert f.class_names == ("a", "b", "c")
    assert f.y.tolist()[0] == [0, 1, -100]


def test_lists_of_python_keep_what_they_hold():
    f = from_arrays({"ann": ([[1, 2], [0.5], []], [0, 1, 0])})
    assert f.x["0"].tolist() == [[1, 2], [0.5, 0], [0, 0]]
    whole = from_arrays({"ann": ([[1, 2], [], [3]], [0, 1, 0])})
    assert whole.x["0"].dtype == torch.int64
    small = [np.array([0, 1], dtype=np.uint8), np.array([1], dtype=np.uint8)]
    assert from_arrays({"ann": (np.zeros((2, 2)), small)}).y.tolist() == [[0, 1], [1, IGNORED]]
    with pytest.raises(KinfolkError, match=r"data\.ann\.x = 'numbers and text'"):
        from_arrays({"ann": ([[1, 2], ["a"]], [0, 1])})
    with pytest.raises(KinfolkError, match=r"data\.ann\.y = 'truth values of differing length'"):
        from_arrays({"ann": (np.zeros((2, 2)), [[True, False], [True]])})


def test_sequences_that_fit_no_rule_are_named():
    with pytest.raises(KinfolkError, match=r"row 2 of shape \[2, 3\]'.* first axis alone"):
        from_arrays({"ann": ([np.zeros((3, 2)), np.zeros((2, 3))], [0, 1])})
    with pytest.raises(
        KinfolkError, match=r"images of differing size; data.resize='HxW' .*brings all to one"
    ):
        from_arrays({"ann": (Items((np.zeros((1, 8, 8)), 0), (np.zeros((1, 9, 8)), 1)))})
    with pytest.raises(KinfolkError, match=r"data\.ann\.y = 'floats of differing length'"):
        from_arrays({"ann": (np.zeros((2, 2)), [np.zeros(2), np.zeros(3)])})


@pytest.mark.parametrize("npy", [False, True])
def test_a_folder_of_several_arrays_is_read_stored_and_mapped(npy, tmp_path):
    given, folder = clients("two inputs"), tmp_path / "rows"
    folder.mkdir()
    for who, (x, y) in given.items():
        arrays = {**{name: t.numpy() for name, t in x.items()}, "y": y.numpy()}
        if npy:
            (folder / who).mkdir()
            for name, array in arrays.items():
                np.save(folder / who / f"{name}.npy", array)
        else:
            np.savez(folder / f"{who}.npz", **arrays)
    found = read_folder(folder)
    f = federate(found)
    assert f.fingerprint() == from_arrays(given).fingerprint()
    assert f.x["word"].dtype == torch.int16
    report = inspect(found)
    assert report.types["word"] == "int16"
    assert report_table(report)
    store = write_store(f, tmp_path / "store", report)
    assert torch.equal(read_store(store, verify=True).x["age"], f.x["age"])
    assert load_own(store)[0].classes == 2


def test_whole_numbers_of_files_stay_whole_and_tables_stay_floats(tmp_path):
    arrays, tables = tmp_path / "arrays", tmp_path / "tables"
    arrays.mkdir()
    tables.mkdir()
    np.savez(arrays / "ann.npz", x=np.arange(8, dtype=np.int16).reshape(4, 2), y=np.array([0, 1, 0, 1]))
    (tables / "ann.csv").write_text("a,b,y\n1,2,0\n3,4,1\n5,6,0\n7,8,1\n")
    assert load_own(arrays)[0].x.dtype == torch.int16
    assert load_own(tables)[0].x.dtype == torch.float32
    np.savez(arrays / "ann.npz", tokens=np.zeros((4, 2), int), target=np.array([0, 1, 0, 1]))
    with pytest.raises(KinfolkError, match=r"has no array 'y', only target, tokens"):
        load_own(arrays)
    assert list(load_own(arrays, label="target")[0].x) == ["tokens"]


def test_a_client_folder_with_something_else_is_named(tmp_path):
    (tmp_path / "ann").mkdir()
    np.save(tmp_path / "ann" / "x.npy", np.zeros((2, 1)))
    with pytest.raises(KinfolkError, match=r"no array 'y'"):
        read_folder(tmp_path)
    (tmp_path / "ann" / "notes.txt").write_text("hm")
    with pytest.raises(KinfolkError, match=r"notes\.txt': not an \.npy file"):
        read_folder(tmp_path)


def test_an_array_of_objects_is_never_opened(tmp_path):
    (tmp_path / "ann").mkdir()
    np.save(tmp_path / "ann" / "x.npy", np.array([{}, {}]), allow_pickle=True)
    np.save(tmp_path / "ann" / "y.npy", np.array([0, 1]))
    with pytest.raises(KinfolkError, match=r"x\.npy': not used: .*objects"):
        read_folder(tmp_path)
