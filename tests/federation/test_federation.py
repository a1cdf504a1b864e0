import hashlib
from dataclasses import replace

import pytest
import torch

from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation, client_names, pack
from kinfolk.federation.soundness import check
from kinfolk.types import Client

NONE = torch.zeros(0, dtype=torch.int64)


def rows(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def make() -> Federation:
    """Three clients on ten rows; ann and cat share their test set."""
    return Federation(
        clients=(Client("ann"), Client("bob"), Client("cat")),
        x=torch.arange(20, dtype=torch.float32).reshape(10, 2),
        y=torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0]),
        splits={
            "train": pack([rows(3, 1), rows(4), rows(6, 5, 4)]),
            "valid": pack([rows(4), NONE, NONE]),
            "test": pack([rows(8), rows(9, 7)], of=[1, 0, 1]),
        },
        classes=3,
        truth=torch.tensor([0, 1, 0]),
        name="three",
    )


def test_split_gives_rows_in_stored_order_and_counts_shared_sets():
    test = make().splits["test"]
    assert [test.rows(i).tolist() for i in range(3)] == [[9, 7], [8], [9, 7]]
    assert test.counts().tolist() == [2, 1, 2]
    assert len(test.row) == 3
    assert test.row.dtype == test.start.dtype == test.of.dtype == torch.int64


def test_pack_of_nothing_has_no_rows():
    split = pack([NONE, NONE])
    assert split.counts().tolist() == [0, 0]
    assert split.rows(1).tolist() == []


def test_only_holds_one_clients_rows_and_nothing_else():
    whole = make()
    for i, who in enumerate(whole.clients):
        one = whole.only(who)
        owned = {r for split in whole.splits.values() for r in split.rows(i).tolist()}
        assert one.clients == (who,)
        assert one.truth is None
        assert len(one.x) == len(one.y) == len(owned)
        assert one.classes == 3
        check(one)
        for name, split in whole.splits.items():
            # The order within a split decides the batches, so it must survive.
            assert torch.equal(one.x[one.splits[name].rows(0)], whole.x[split.rows(i)])
            assert torch.equal(one.y[one.splits[name].rows(0)], whole.y[split.rows(i)])


def test_only_of_only_changes_nothing_but_the_first_time():
    one = make().only(Client("cat"))
    assert one.only(Client("cat")).fingerprint() == one.fingerprint()


def test_place_finds_names_and_refuses_others():
    assert [make().place(who) for who in ("ann", "bob", "cat")] == [0, 1, 2]
    for who in ("bobb", "", "zoe", "aaa"):
        with pytest.raises(KinfolkError, match="no such client"):
            make().place(who)
    with pytest.raises(KinfolkError, match="did you mean 'bob'"):
        make().only(Client("bobb"))


def test_to_moves_every_tensor():
    moved = make().to("meta")
    tensors = [moved.x, moved.y, moved.truth]
    tensors += [t for s in moved.splits.values() for t in (s.start, s.row, s.of)]
    assert {t.device.type for t in tensors if t is not None} == {"meta"}
    assert replace(make(), truth=None).to("cpu").truth is None
    assert make().to("cpu").fingerprint() == make().fingerprint()


def test_shape_is_that_of_one_row():
    assert make().shape == (2,)


def changes() -> dict[str, Federation]:
    base = make()
    x, y = base.x.clone(), base.y.clone()
    x[9, 1] += 1e-6 * 19
    y[9] = 1
    return {
        "x": replace(base, x=x),
        "shape": replace(base, x=base.x.reshape(10, 1, 2)),
        "y": replace(base, y=y),
        "clients": replace(base, clients=(Client("ann"), Client("bob"), Client("dan"))),
        "splits": replace(base, splits={**base.splits, "test": pack([rows(8), rows(7, 9)], of=[1, 0, 1])}),
        "owner": replace(base, splits={**base.splits, "test": pack([rows(8), rows(9, 7)], of=[0, 0, 1])}),
        "classes": replace(base, classes=4),
        "truth": replace(base, truth=torch.tensor([0, 1, 1])),
        "no truth": replace(base, truth=None),
        "name": replace(base, name="other"),
    }


def test_fingerprint_sees_every_change():
    prints = {what: f.fingerprint() for what, f in changes().items()} | {"base": make().fingerprint()}
    assert len(set(prints.values())) == len(prints)
    assert make().fingerprint() == make().fingerprint()
    assert len(make().fingerprint()) == len(hashlib.sha256().hexdigest())


def test_names_sort_as_numbers_do():
    for count in (1, 10, 100, 101, 1001):
        names = client_names(count)
        assert names == sorted(set(names))
        assert len(names) == count
    assert client_names(24)[3] == "client-03"


def bad(row: int, value: float) -> torch.Tensor:
    x = make().x.clone()
    x[row, 0] = value
    return x


def label(row: int, value: int) -> torch.Tensor:
    y = make().y.clone()
    y[row] = value
    return y


def splits(**changed: object) -> dict[str, object]:
    return {**make().splits, **changed}


REGRESSION = {"classes": 0, "y": torch.full((10,), float("inf"))}
FAULTS = {
    "nan": ({"x": bad(5, float("nan"))}, r"data\.cat = '1 row with NaN"),
    "inf in test": ({"x": bad(8, float("inf"))}, r"data\.bob = '1 row with NaN"),
    "inf in y": (REGRESSION, r"data\.ann = '5 rows with NaN or infinity'"),
    "label high": ({"y": label(1, 3)}, r"data\.ann\.y = 3: labels run from 0 to 2"),
    "label low": ({"y": label(6, -1)}, r"data\.cat\.y = -1"),
    "no training": (
        {"splits": splits(train=pack([rows(3), NONE, rows(6)]))},
        r"data\.bob = '0 training rows'",
    ),
    "duplicate": ({"clients": ("ann", "bob", "bob")}, r"data\.clients = 'bob': this name occurs twice"),
    "unsorted": ({"clients": ("bob", "ann", "cat")}, r"data\.clients = 'bob': stands before 'ann'"),
    "nameless": ({"clients": ("", "ann", "cat")}, r"give every client a name"),
    "nobody": ({"clients": ()}, r"data\.clients = 0"),
    "own test": (
        {"splits": splits(test=pack([rows(8), rows(3), rows(7)]))},
        r"data\.bob = '1 test row also used for training or validation'",
    ),
    "another's test": (
        {"splits": splits(test=pack([rows(6, 5), rows(8), rows(9)]))},
        r"data\.ann = '2 test rows also used",
    ),
    "test in valid": (
        {"splits": splits(valid=pack([rows(7), NONE, NONE]))},
        r"data\.ann = '1 test row also used",
    ),
    "valid in train": (
        {"splits": splits(valid=pack([NONE, rows(4), NONE]))},
        r"data\.bob = '1 validation row also used for training'",
    ),
    "rows outside": ({"splits": splits(valid=pack([rows(10), NONE, NONE]))}, r"data\.splits\.valid"),
    "owner outside": ({"splits": splits(valid=pack([NONE], of=[0, 0, 1]))}, r"data\.splits\.valid"),
    "owner missing": ({"splits": splits(valid=pack([NONE], of=[0, 0]))}, r"data\.splits\.valid"),
    "split missing": ({"splits": {"train": make().splits["train"]}}, r"data\.splits = \['train'\]"),
    "x type": ({"x": make().x.double()}, r"data\.x = 'torch.float64'"),
    "y type": ({"y": make().y.float()}, r"data\.y"),
    "y parts": ({"y": {"a": make().y}}, r"data\.y"),
    "y length": ({"y": make().y[:9]}, r"data\.y = 9: there are 10 rows"),
    "truth": ({"truth": torch.tensor([0])}, r"data\.truth = \(1,\)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_check_names_client_value_and_remedy(fault):
    changed, message = FAULTS[fault]
    with pytest.raises(KinfolkError, match=message) as caught:
        check(replace(make(), **changed))
    assert caught.value.field.startswith("data")
    assert "\n" not in str(caught.value)


def test_check_passes_what_is_sound():
    whole = make()
    assert check(whole) is whole
    # Row 0 belongs to nobody, and validation rows may be another client's training rows.
    assert check(replace(whole, x=bad(0, float("nan")), y=label(0, 99))).classes == 3
    assert check(replace(whole, classes=0, y=torch.zeros(10, 2))).classes == 0
