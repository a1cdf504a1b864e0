"""Several label columns or arrays: several labels a row, several numbers, survival times."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import kinfolk
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.folder import read_folder
from kinfolk.federation.own_data.load import load_own
from kinfolk.federation.own_data.loaded import federate
from kinfolk.federation.own_data.report import inspect
from kinfolk.federation.own_data.store import read_store, write_store
from kinfolk.federation.own_data.tables import read_frame


class Risk(nn.Linear):
    def __init__(self):
        super().__init__(2, 1)


def exponential(out, y):
    time, event = (y["time"], y["event"]) if isinstance(y, dict) else (y[:, 0], y[:, 1])
    return time * out[:, 0].exp() - event * out[:, 0]


def table(n=20, seed=0):
    draw = np.random.default_rng(seed)
    flu = draw.integers(0, 2, n)
    columns = {"a": draw.normal(size=n), "b": draw.normal(size=n), "time": draw.exponential(size=n)}
    return pd.DataFrame(
        {**columns, "event": draw.integers(0, 2, n), "flu": flu, "cold": draw.integers(0, 2, n)}
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tables").mkdir()
    for i in range(2):
        table(20 + i, i).to_csv(tmp_path / "tables" / f"c{i}.csv", index=False)
    return tmp_path / "tables"


AB = kinfolk.Columns(["a", "b"])


def test_columns_stand_side_by_side_in_the_order_they_are_named(folder):
    found = federate(read_folder(folder, "time,event", columns=AB))
    raw = pd.concat([table(20 + i, i) for i in range(2)])
    assert found.classes == 0
    assert np.allclose(found.y, raw[["time", "event"]].to_numpy(), rtol=1e-6)
    assert np.allclose(
        federate(read_folder(folder, "event,time", columns=AB)).y, raw[["event", "time"]], rtol=1e-6
    )
    assert federate(read_folder(folder, "time,event")).feature_names == ("a", "b", "flu", "cold")


def test_zeros_and_ones_of_several_columns_are_labels(folder, tmp_path):
    rows, _ = load_own(folder, label="flu,cold", columns=AB)
    done = kinfolk.run(lambda: nn.Linear(2, 2), rows, rounds=1, metrics=["auroc"], progress=False)
    assert {"accuracy", "macro_f1", "auroc"} <= set(done.summary["centre"])


@pytest.mark.parametrize("arrays", [False, True])
def test_survival_times_of_files_train_by_a_users_loss(arrays, folder, tmp_path):
    if arrays:
        where = tmp_path / "arrays"
        where.mkdir()
        for i in range(2):
            one = table(20 + i, i)
            np.savez(where / f"c{i}.npz", x=one[["a", "b"]], time=one["time"], event=one["event"])
        found = read_folder(where, "time,event")
        assert [*federate(found).y] == ["time", "event"]
    else:
        found = read_folder(folder, "time,event", columns=AB)
    rows = read_store(write_store(federate(found), tmp_path / "store", inspect(found)))
    done = kinfolk.run(Risk, rows, loss=exponential, metrics=["c_index"], rounds=2, progress=False)
    assert 0 <= done.summary["centre"]["c_index"]["macro"] <= 1


def test_a_comma_in_a_name_is_no_second_column():
    frame = table().rename(columns={"time": "time, days"})
    found = read_frame(frame.assign(who=[*"xy"] * 10), "who", "time, days", columns=AB)
    assert torch.as_tensor(found.clients["x"][1]).dim() == 1


FAULTS = {
    "unknown": ("time,evnt", r"label = 'evnt': no such column; did you mean 'event'"),
    "text": ("time,word", r"data\.who\.word = 'w': is text; of several label columns all hold numbers"),
    "feature": ("a,time", r"columns = 'a': is the label, no feature"),
    "one hot": ("flu,not flu", r"zeros and a one, of which argmax\(1\) is the class"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told(fault, tmp_path):
    label, message = FAULTS[fault]
    frame = table()
    frame.assign(**{"word": "w", "not flu": 1 - frame["flu"]}).to_csv(tmp_path / "who.csv", index=False)
    with pytest.raises(KinfolkError, match=message):
        read_folder(tmp_path, label, columns=AB)


def test_a_client_without_one_of_them_is_named(folder):
    table().drop(columns="event").to_csv(folder / "c1.csv", index=False)
    with pytest.raises(KinfolkError, match=r"data\.c1\.columns = 'event': the label is not there"):
        read_folder(folder, "time,event", columns=AB)


def test_a_row_that_lacks_one_of_them_has_no_label(folder):
    table(4).assign(time=[1.0, None, 2.0, 3.0]).to_csv(folder / "c0.csv", index=False)
    with pytest.raises(KinfolkError, match=r"data\.c0\.time,event: empty or NaN in row 2"):
        read_folder(folder, "time,event", columns=AB)
    found = read_folder(folder, "time,event", columns=AB, missing="drop")
    assert len(found.clients["c0"][1]) == 3
