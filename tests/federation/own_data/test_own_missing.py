import numpy as np
import pandas as pd
import pytest

from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.folder import read_folder
from kinfolk.federation.own_data.loaded import MissingValue, federate
from kinfolk.federation.own_data.tables import read_frame

NAN = np.nan


def gappy() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "who": ["ann"] * 4 + ["bob"] * 3 + ["cat"] * 2,
            "a": [1.0, NAN, 3.0, 8.0, 5.0, 6.0, 7.0, NAN, NAN],
            "b": [NAN, 1.0, 1.0, 4.0, 2.0, NAN, 4.0, 9.0, 9.0],
            "y": [0, 1, 0, 1, 1, 0, 1, 0, 1],
        }
    )


HOLES = (MissingValue("a", 3, "ann", 2), MissingValue("b", 2, "ann", 1))


def test_dropped_rows_and_clients_are_counted_and_named():
    found = read_frame(gappy(), "who", "y", missing="drop")
    assert {who: x.tolist() for who, (x, _) in found.clients.items()} == {
        "ann": [[3, 1], [8, 4]],
        "bob": [[5, 2], [7, 4]],
    }
    assert found.clients["bob"][1].tolist() == [1, 1]
    assert found.left_out == {"rows with a missing value": 5, "clients without a complete row": 1}
    assert any("cat" in note for note in found.notes)
    assert found.missing == HOLES


def test_medians_are_the_clients_own_or_else_everybodys():
    found = read_frame(gappy(), "who", "y", missing="median")
    assert found.clients["ann"][0].tolist() == [[1, 1], [3, 1], [3, 1], [8, 4]]  # of 1, 3, 8 and of 1, 1, 4
    assert found.clients["bob"][0].tolist() == [[5, 2], [6, 3], [7, 4]]
    assert found.clients["cat"][0].tolist() == [[5.5, 9], [5.5, 9]]  # of 1, 3, 8, 5, 6, 7
    assert found.left_out == {}
    assert found.missing == HOLES
    assert "3 missing values filled with the median of the client's own column" in found.notes
    assert any(
        note.startswith("2 missing values filled with the median of all clients'") for note in found.notes
    )


def test_a_median_looks_at_no_other_client_where_it_need_not():
    changed = gappy()
    changed.loc[changed["who"] == "bob", ["a", "b"]] = 1000.0
    ann = read_frame(gappy(), "who", "y", missing="median").clients["ann"][0]
    assert read_frame(changed, "who", "y", missing="median").clients["ann"][0].tolist() == ann.tolist()


def test_the_first_gap_of_a_table_is_its_lowest_row_whoever_owns_it():
    frame = pd.DataFrame({"who": ["zoe", "zoe", "ann", "ann"], "a": [1, NAN, NAN, 2], "y": [0, 1, 0, 1]})
    assert read_frame(frame, "who", "y", missing="drop").missing == (MissingValue("a", 2, "zoe", 2),)
    with pytest.raises(KinfolkError, match=r"data\.zoe\.a: empty or NaN in row 2 \(2 missing in 1 column"):
        read_frame(frame, "who", "y")


def test_a_missing_label_can_be_dropped_but_not_filled():
    frame = gappy()
    frame["y"] = [0, 1, NAN, 1, 1, 0, 1, 0, 1]
    with pytest.raises(KinfolkError, match=r"data\.ann\.y: row 3 has no label, which no median can fill"):
        read_frame(frame, "who", "y", missing="median")
    found = read_frame(frame, "who", "y", missing="drop")
    assert found.missing[-1] == MissingValue("y", 1, "ann", 3)
    assert found.clients["ann"][1].tolist() == [1]
    assert found.class_names == ("0", "1")  # pandas made floats of these whole numbers, for the gap


def test_a_gap_does_not_turn_whole_numbers_of_a_csv_into_floats(tmp_path):
    (tmp_path / "ann.csv").write_text("a,y\n1,0\n2,\n3,2\n")
    found = read_folder(tmp_path, missing="drop")
    assert found.class_names == ("0", "1", "2")
    assert found.clients["ann"][1].tolist() == [0, 2]
    (tmp_path / "ann.csv").write_text("a,y\n1,0.0\n2,\n3,2.0\n")
    assert read_folder(tmp_path, missing="drop").class_names == ()


def test_missing_values_of_arrays(tmp_path):
    x = np.arange(12, dtype=np.float64).reshape(3, 2, 2)
    x[1, 0, 1] = NAN
    np.savez(tmp_path / "ann.npz", x=x, y=np.array([0.5, 1.5, NAN]))
    found = read_folder(tmp_path, missing="drop")
    assert found.clients["ann"][0].tolist() == x[:1].tolist()
    assert found.missing == (MissingValue("x", 1, "ann", 2), MissingValue("y", 1, "ann", 3))
    np.savez(tmp_path / "ann.npz", x=x, y=np.array([0.5, 1.5, 2.5]))
    filled = read_folder(tmp_path, missing="median").clients["ann"][0]
    assert filled[1].tolist() == [[4, 5], [6, 7]]  # between 1 and 9


def test_what_can_not_be_settled_is_told():
    frame = pd.DataFrame({"who": ["ann", "ann"], "a": [NAN, NAN], "b": [1.0, 2.0], "y": [0, 1]})
    with pytest.raises(KinfolkError, match="every row misses a value"):
        read_frame(frame, "who", "y", missing="drop")
    with pytest.raises(KinfolkError, match="column 'a' has no value at all"):
        read_frame(frame, "who", "y", missing="median")


@pytest.mark.parametrize("missing", ["drop", "median"])
def test_what_is_settled_can_be_trained_on(missing):
    assert federate(read_frame(gappy(), "who", "y", missing=missing)).x.isfinite().all()
