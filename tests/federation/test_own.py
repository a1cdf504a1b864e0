import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.streams import Seed


def some(n: int, start: int = 0, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(start, start + 2 * n, dtype=np.float32).reshape(n, 2)
    return x, np.arange(n) % classes


def owned(f, who: str, split: str) -> list[list[float]]:
    return f.x[f.splits[split].rows(f.place(who))].tolist()


def test_every_row_is_dealt_once_with_its_label():
    given = {"bob": some(10), "ann": some(7, 100), "one": some(1, 200)}
    f = from_arrays(given, valid=0.25, test_fraction=0.3)
    assert f.clients == ("ann", "bob", "one")
    assert f.classes == 3
    for who, (x, y) in given.items():
        i = f.place(who)
        rows = torch.cat([f.splits[s].rows(i) for s in ("train", "valid", "test")])
        assert sorted(zip(f.x[rows].tolist(), f.y[rows].tolist(), strict=True)) == sorted(
            zip(x.tolist(), y.tolist(), strict=True)
        )
    assert [f.splits[s].counts().tolist() for s in ("train", "valid", "test")] == [
        [4, 5, 1],
        [1, 2, 0],
        [2, 3, 0],
    ]


def test_the_order_of_the_mapping_does_not_matter():
    given = {"bob": some(10), "ann": some(7, 100)}
    backwards = dict(reversed(given.items()))
    assert from_arrays(given).fingerprint() == from_arrays(backwards).fingerprint()
    alone = from_arrays({"bob": some(10)})
    assert owned(alone, "bob", "test") == owned(from_arrays(given), "bob", "test")


def test_the_split_follows_the_seed():
    prints = {from_arrays({"ann": some(50)}, seed=Seed(s)).fingerprint() for s in (1, 1, 2)}
    assert len(prints) == 2


def test_lists_are_named_by_position():
    f = from_arrays([some(3, 10 * i) for i in range(11)])
    assert f.clients[:2] == ("client-000", "client-001")
    assert len(f.clients) == 11
    assert from_arrays([some(2)] * 1001).clients[-1] == "client-1000"


def test_arrays_tensors_and_data_sets_are_the_same():
    x, y = some(9)
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)
    whole = TensorDataset(tx, ty)
    prints = {
        from_arrays([item]).fingerprint()
        for item in ((x, y), [tx, ty], whole, Subset(whole, range(9)), (x.tolist(), y.tolist()), Pairs(x, y))
    }
    assert len(prints) == 1


class Pairs(Dataset):
    def __init__(self, x, y) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int):
        return self.x[i], int(self.y[i])


class Noisy(Pairs):
    def __getitem__(self, i: int):
        return self.x[i] + torch.rand(2).numpy(), int(self.y[i])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([some(1)])


class Items(Pairs):
    def __init__(self, *items) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int):
        return self.items[i]


def test_a_data_set_that_draws_is_read_by_the_seed():
    state = torch.random.get_rng_state()
    assert from_arrays([Noisy(*some(5))]).fingerprint() == from_arrays([Noisy(*some(5))]).fingerprint()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_given_tests_are_used_whole_and_all_other_rows_train():
    f = from_arrays([some(4), some(3, 50)], test=[some(2, 100), some(1, 200)])
    assert f.splits["train"].counts().tolist() == [4, 3]
    assert owned(f, "client-000", "test") == some(2, 100)[0].tolist()
    assert owned(f, "client-001", "test") == some(1, 200)[0].tolist()
    assert owned(f, "client-001", "train") == some(3, 50)[0].tolist()


def test_tests_by_name_may_be_missing_or_empty():
    given = {"ann": some(4), "bob": some(3, 50), "cat": some(2, 80)}
    empty = (np.zeros((0, 2), np.float32), np.zeros(0, np.int64))
    f = from_arrays(given, test={"cat": some(2, 100), "bob": empty}, valid=0.5)
    assert f.splits["test"].counts().tolist() == [0, 0, 2]
    assert owned(f, "cat", "test") == some(2, 100)[0].tolist()
    assert f.splits["valid"].counts().tolist() == [2, 2, 1]
    assert from_arrays(given, test={}).splits["test"].counts().sum() == 0


def test_classes_are_counted_over_tests_too_unless_given():
    assert from_arrays([some(4)], test=[some(8, classes=8)]).classes == 8
    assert from_arrays([some(4)], classes=12).classes == 12
    assert from_arrays([(np.zeros((4, 2)), np.array([True, False, True, True]))]).classes == 2


def test_floats_mean_regression():
    x = np.zeros((6, 2))
    for y in (np.linspace(0, 1, 6), np.linspace(0, 1, 12).reshape(6, 2)):
        f = from_arrays([(x, y)])
        assert f.classes == 0
        assert f.y.dtype == torch.float32
        assert np.allclose(f.y.numpy(), y)


def test_numbers_are_stored_as_they_are_and_trained_on_in_three_types():
    kinds = {
        np.float64: (torch.float32, torch.float32),
        np.float16: (torch.float16, torch.float32),
        ">f4": (torch.float32, torch.float32),
        np.uint8: (torch.uint8, torch.int64),
        np.uint16: (torch.int32, torch.int64),
        np.int32: (torch.int32, torch.int64),
        np.bool_: (torch.bool, torch.bool),
    }
    for kind, (stored, trained) in kinds.items():
        f = from_arrays([(np.ones((4, 2), kind), np.zeros(4, np.uint8))])
        assert f.x.dtype == stored
        assert f.take(torch.arange(4))[0].dtype == trained
        assert f.y.dtype == torch.int64
    frozen = np.ones((4, 2))[::-1]
    frozen.flags.writeable = False
    assert from_arrays([(frozen, [0, 1, 0, 1])]).shape == (2,)


def test_the_federation_does_not_share_memory_with_what_was_given():
    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    f = from_arrays([(x, y)])
    x += 1
    assert f.x.abs().sum() == 0


def test_rows_with_missing_values_are_dropped_or_filled_where_it_is_asked_for():
    x = np.array([[1.0], [np.nan], [3.0], [5.0]])
    given, test = {"ann": (x, [0, 1, 0, 1])}, {"ann": (x[1:3], [1, 0])}
    dropped = from_arrays(given, test=test, missing="drop")
    assert owned(dropped, "ann", "train") == [[1.0], [3.0], [5.0]]
    assert owned(dropped, "ann", "test") == [[3.0]]
    filled = from_arrays(given, test=test, missing="median")
    assert owned(filled, "ann", "train") == [[1.0], [3.0], [3.0], [5.0]]


def test_text_labels_are_classes_by_their_sorted_names():
    f = from_arrays([(np.zeros((4, 1)), ["no", "yes", "yes", "no"])], test={})
    assert (f.classes, f.y.tolist()) == (2, [0, 1, 1, 0])


GOOD = some(4)
NANS = (np.array([[np.nan, 0], [0, np.inf], [1, 1]]), np.zeros(3, int))
FAULTS = {
    "nobody": ([], {}, r"data\.clients = 0: a federation needs"),
    "no container": (GOOD[0], {}, r"data\.clients = 'ndarray': give a list"),
    "text": ("ann", {}, r"data\.clients = 'str'"),
    "pair for a list": (GOOD, {}, r"data\.client-000 = 'ndarray': give a pair"),
    "three": ([(1, 2, 3)], {}, r"data\.client-000 = 'tuple': give a pair"),
    "duplicate": ({1: GOOD, "1": GOOD}, {}, r"data\.clients = '1': this name occurs twice"),
    "nameless": ({"": GOOD}, {}, r"give every client a name"),
    "empty": ({"ann": GOOD, "bob": (np.zeros((0, 2)), np.zeros(0))}, {}, r"data\.bob = '0 rows'"),
    "empty data set": ([Items()], {}, r"data\.client-000 = '0 rows'"),
    "lengths": ({"ann": (GOOD[0], [0, 1])}, {}, r"data\.ann = 'x \[4, 2\], y \[2\]': give as many"),
    "single number": ({"ann": (GOOD[0], 3)}, {}, r"data\.ann = .*give as many"),
    "row shapes": (
        [GOOD, (np.zeros((2, 3), np.float32), [0, 1])],
        {},
        r"data\.client-001\.x = .*\[3\].*the same",
    ),
    "label kinds": ([GOOD, (GOOD[0], GOOD[1] + 0.5)], {}, r"data\.client-001\.y = 'floats.*the same"),
    "row kinds": ([GOOD, (GOOD[0].astype(np.uint8), GOOD[1])], {}, r"data\.client-001\.x = 'whole numbers"),
    "test kinds": ([GOOD], {"test": [(GOOD[0], GOOD[1] * 1.0)]}, r"data\.client-000\.test\.y = 'floats"),
    "negative": ({"ann": (GOOD[0], [0, 1, -2, 1])}, {}, r"data\.ann\.y = -2: labels run"),
    "label too high": ({"ann": GOOD}, {"classes": 2}, r"data\.ann\.y = 2: labels run from 0 to 1"),
    "not finite": ({"ann": GOOD, "bob": NANS}, {}, r"data\.bob\.x\[1\] = 'row 2': infinite"),
    "missing": ([(np.array([[1.0], [np.nan]]), [0, 1])], {}, r"client-000\.x\[0\]: empty or NaN in row 2"),
    "words": ([(np.array([["a", "b"]]), [0])], {}, r"data\.client-000\.x = 'text': give numbers"),
    "ragged images": (
        [([np.zeros((1, 2, 2)), np.zeros((1, 3, 2))], [0, 1])],
        {},
        r"x = '\[1, 2, 2\] and \[1, 3, 2\]': images of differing size; data.resize='HxW'",
    ),
    "a list of what": ([([[1, 2], "three"], [0, 1])], {}, r"data\.client-000\.x = 'list': give numbers"),
    "complex": ([(np.zeros((2, 2), complex), [0, 1])], {}, r"data\.client-000\.x = 'complex128'"),
    "flat rows": (
        [(np.zeros(4), [0, 1, 0, 1])],
        {},
        r"data\.client-000\.x = \[4\]: give rows at least one axis",
    ),
    "one-hot": (
        [(GOOD[0], np.eye(4, dtype=int))],
        {},
        r"data\.client-000\.y = \[4, 4\]: give one label per row",
    ),
    "stream": ([Stream()], {}, r"data\.client-000 = 'Stream': give a map-style"),
    "no pairs": ([Items(7)], {}, r"data\.client-000 = 'int': each item"),
    "no label": ([Items({"x": 1})], {}, r"data\.client-000 = \['x'\]: name the target of an item y, label"),
    "items differ": (
        [Items((np.zeros(2), 0), (np.zeros(2, int), 1))],
        {},
        r"data\.client-000\.x = .*same type and shape",
    ),
    "labels differ": (
        [Items(([1.0], 0), ([1.0], 0.5))],
        {},
        r"data\.client-000\.y = .*same type and shape",
    ),
    "valid": ([GOOD], {"valid": 1.0}, r"data\.valid = 1.0"),
    "test_fraction": ([GOOD], {"test_fraction": 0.0}, r"data\.test_fraction = 0.0"),
    "classes": ([GOOD], {"classes": 0}, r"data\.classes = 0"),
    "classes of floats": (
        [(GOOD[0], GOOD[1] * 1.0)],
        {"classes": 3},
        r"data\.classes = 3: the labels are floats",
    ),
    "test length": ([GOOD], {"test": [GOOD, GOOD]}, r"data\.test = 2: give one test set for each of the 1"),
    "test name": (
        {"ann": GOOD},
        {"test": {"anne": GOOD}},
        r"data\.test = 'anne': no such client; did you mean 'ann'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_by_client_value_and_remedy(fault):
    given, options, message = FAULTS[fault]
    with pytest.raises(KinfolkError, match=message):
        from_arrays(given, **options)
