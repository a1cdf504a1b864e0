import datetime
import decimal

import numpy as np
import pandas as pd
import pytest

from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.loaded import federate
from kinfolk.federation.own_data.tables import read_frame, read_table


def rows(n: int = 6) -> pd.DataFrame:
    return pd.DataFrame(
        {"who": [*"bab"] * (n // 3), "a": np.arange(n), "b": np.arange(n) / 2, "y": np.arange(n) % 2}
    )


def test_rows_go_to_their_clients_in_order():
    found = read_frame(rows(), "who", "y")
    assert [*found.clients] == ["a", "b"]
    assert found.clients["b"][0].tolist() == [[0, 0], [2, 1], [3, 1.5], [5, 2.5]]
    assert found.clients["b"][1].tolist() == [0, 0, 1, 1]
    assert found.clients["a"][0].tolist() == [[1, 0.5], [4, 2]]
    assert found.feature_names == ("a", "b")
    assert found.rows == 6


def test_the_order_of_rows_of_other_clients_changes_nothing():
    frame = rows(12)
    sorted_by_client = frame.sort_values("who", kind="stable").set_axis(range(5, 17))
    first, second = (federate(read_frame(f, "who", "y"), valid=0.3) for f in (frame, sorted_by_client))
    assert first.fingerprint() == second.fingerprint()


def test_columns_of_many_kinds_are_numbers():
    frame = rows(3).assign(
        c=pd.array([1, 2, 3], dtype="Int8"),
        d=[True, False, True],
        e=pd.Categorical([3, 1, 3]),
        f=pd.Series([1, 2.5, 3], dtype=object),
        g=[decimal.Decimal("0.5")] * 3,
        h=pd.array([1.5, 2.5, 3.5], dtype="double[pyarrow]"),
    )
    x = read_frame(frame, "who", "y").clients["b"][0]
    assert x.tolist() == [[0, 0, 1, 1, 3, 1, 0.5, 1.5], [2, 1, 3, 1, 3, 3, 0.5, 3.5]]


@pytest.mark.parametrize(
    ("labels", "names", "codes"),
    [
        (["no", "yes", "no", "yes", "no", "yes"], ("no", "yes"), [0, 0, 1, 1]),
        (pd.Categorical(["z", "k", "z", "k", "z", "k"]), ("k", "z"), [1, 1, 0, 0]),
        (pd.array([0, 1, 0, 1, 0, 1], dtype="int64[pyarrow]"), ("0", "1"), [0, 0, 1, 1]),
        ([False, True] * 3, ("False", "True"), [0, 0, 1, 1]),
        ([0.5, 1.5] * 3, (), [0.5, 0.5, 1.5, 1.5]),
    ],
    ids=["text", "category", "arrow", "bool", "float"],
)
def test_labels_of_many_kinds(labels, names, codes):
    found = read_frame(rows().assign(y=labels), "who", "y")
    assert found.class_names == names
    assert found.clients["b"][1].tolist() == codes


def test_ids_of_many_kinds_name_the_clients(tmp_path):
    frame = rows()
    assert [*read_frame(frame.assign(who=[1, 2, 1] * 2), "who").clients] == ["1", "2"]
    assert [*read_frame(frame.assign(who=[1.0, 2.0, 1.0] * 2), "who").clients] == ["1", "2"]
    assert [*read_frame(frame.assign(who=pd.Categorical([*"bab"] * 2)), "who").clients] == ["a", "b"]
    frame.assign(who=["007", "7", "007"] * 2).to_csv(tmp_path / "all.csv", index=False)
    assert [*read_table(tmp_path / "all.csv", "who").clients] == ["007", "7"]


def test_a_table_of_a_file_is_that_of_the_frame(tmp_path):
    frame = rows(12)
    frame.to_csv(tmp_path / "all.csv", index=False)
    frame.to_parquet(tmp_path / "all.parquet")
    prints = {
        federate(read_table(tmp_path / name, "who")).fingerprint() for name in ("all.csv", "all.parquet")
    }
    assert prints == {federate(read_frame(frame, "who", "y")).fingerprint()}


def test_rows_without_a_client_are_counted_or_refused(tmp_path):
    frame = rows().assign(who=["b", None, "b", "b", "a", "a"])
    with pytest.raises(KinfolkError, match=r"data\.who: row 2 belongs to nobody \(1 such rows\)"):
        read_frame(frame, "who", "y")
    found = read_frame(frame, "who", "y", missing="drop")
    assert found.left_out == {"rows without a client": 1}
    assert found.rows == 5
    frame.to_csv(tmp_path / "all.csv", index=False)  # an empty cell, which is not a client called ""
    assert read_table(tmp_path / "all.csv", "who", missing="drop").left_out == {"rows without a client": 1}


FAULTS = {
    "unique": (
        rows().assign(who=range(6)),
        "who",
        r"client = 'who': all 6 differ.* id of rows, not of clients",
    ),
    "client": (rows(), "hwo", r"client = 'hwo': no such column; did you mean 'who'"),
    "text": (rows().assign(a=[1, 2, "x", 4, 5, 6]), "who", r"data\.a = 'x': row 3 is not a number"),
    "word": (rows().assign(a=["1", "2", "x", "4", "5", "6"]), "who", r"data\.a = 'x': row 3 is text"),
    "date": (rows().assign(a=datetime.date(2020, 1, 31)), "who", r"data\.a = .*row 1 is a date; --date a"),
    "date label": (rows().assign(y=pd.Timestamp("2020-01-31")), "who", r"data\.y = .*row 1 is no label"),
    "lists": (rows().assign(a=[[1]] * 6), "who", r"data\.a = \[1\]: row 1 is not a number"),
    "two ids": (rows().assign(who=[1, "1", 2, 2, 1, 1]), "who", r"data\.who = '1': stands for two ids"),
    "no features": (
        rows()[["who", "y"]],
        "who",
        r"data\.columns = \['who', 'y'\]: none is left for the features",
    ),
    "twice": (pd.concat([rows(), rows()[["a"]]], axis=1), "who", r"column 'a' occurs twice"),
    "array": (np.zeros((3, 3)), "who", r"data\.frame = 'ndarray': give a pandas DataFrame"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told(fault):
    frame, client, message = FAULTS[fault]
    with pytest.raises(KinfolkError, match=message):
        read_frame(frame, client, "y")


def test_the_label_is_not_the_client_and_is_there(tmp_path):
    assert read_frame(rows()[["a", "y", "b", "who"]].rename(columns={"y": "z"}), "who").feature_names == (
        "a",
        "z",
    )
    with pytest.raises(KinfolkError, match=r"label = 'who': no such column"):
        read_frame(rows(), "who", "who")
    (tmp_path / "all.xls").write_text("")
    with pytest.raises(KinfolkError, match=r"all\.xls': not a table of a known kind \(\.csv, \.parquet\)"):
        read_table(tmp_path / "all.xls", "who")
    with pytest.raises(KinfolkError, match=r"none\.csv': is missing"):
        read_table(tmp_path / "none.csv", "who")


def test_a_frame_is_not_changed():
    frame = rows().assign(a=[1, np.nan, 3, 4, 5, 6])
    before = frame.copy(deep=True)
    read_frame(frame, "who", "y", missing="median")
    pd.testing.assert_frame_equal(frame, before)
