from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.load import load_own
from kinfolk.federation.own_data.store import write_store
from kinfolk.streams import Seed

SHARED = Path(__file__).parents[4] / "shared" / "data"


def table(path, n=20):
    frame = pd.DataFrame({"who": np.arange(n) % 2, "a": np.arange(n) / 3, "y": np.arange(n) % 5 % 2})
    frame.to_csv(path, index=False)
    return path


def folder(path, n=20):
    path.mkdir()
    whole = pd.read_csv(table(path.with_suffix(".csv"), n))
    for who, own in whole.groupby("who"):
        own.drop(columns="who").to_csv(path / f"{who}.csv", index=False)
    return path


def test_every_form_gives_the_same_federation(tmp_path):
    options = {"test_fraction": 0.3, "valid": 0.25, "seed": Seed(9)}
    split, report = load_own(folder(tmp_path / "clients"), **options)
    one, same = load_own(tmp_path / "clients.csv", client="who", **options)
    store = write_store(one, tmp_path / "store", report=same)
    back, kept = load_own(store)
    assert split.fingerprint() == one.fingerprint() == back.fingerprint()
    assert report.sizes == same.sizes == {"0": 10, "1": 10}
    assert report.anomalies == same.anomalies
    assert kept == same
    assert one.splits["test"].counts().tolist() == [3, 3]
    assert one.splits["valid"].counts().tolist() == [2, 2]


def test_the_split_follows_the_seed(tmp_path):
    path = table(tmp_path / "all.csv", 200)
    prints = {load_own(path, client="who", seed=Seed(s))[0].fingerprint() for s in (1, 1, 2)}
    assert len(prints) == 2


def test_a_client_keeps_its_split_when_others_come_or_go(tmp_path):
    path = folder(tmp_path / "clients", 200)
    both, _ = load_own(path)
    (path / "0.csv").unlink()
    alone, _ = load_own(path)
    for split in ("train", "test"):
        mine = both.x[both.splits[split].rows(both.place("1"))]
        assert mine.tolist() == alone.x[alone.splits[split].rows(0)].tolist()


FAULTS = {
    "nothing": ("none", {}, r"data\.path = .*none': there is no such file or folder"),
    "kind": ("notes.txt", {}, r"notes\.txt': give a folder with one file per client, a store, or a table"),
    "no client": ("clients.csv", {}, r"client: name the column of clients\.csv that says whose each row is"),
    "client of a folder": (
        "clients",
        {"client": "who"},
        r"client = 'who': a folder names its clients itself",
    ),
    "client of a store": ("store", {"client": "who"}, r"client = 'who': a folder names its clients itself"),
    "split of a store": ("store", {"test_fraction": 0.5}, r"test_fraction = 0\.5: a store is settled"),
    "label of a store": ("store", {"label": "y"}, r"label = 'y': a store is settled"),
    "missing": ("clients", {"missing": "mean"}, r"missing = 'mean': "),
    "test_fraction": ("clients", {"test_fraction": 0.0}, r"data\.test_fraction = 0\.0"),
    "valid": ("clients", {"valid": 1.0}, r"data\.valid = 1\.0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told(fault, tmp_path):
    name, options, message = FAULTS[fault]
    federation, report = load_own(folder(tmp_path / "clients"))
    write_store(federation, tmp_path / "store", report)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(KinfolkError, match=message):
        load_own(tmp_path / name, **options)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not beside the repository")
def test_hospitals_with_missing_values(tmp_path):
    with np.load(SHARED / "heart_disease.npz", allow_pickle=False) as raw:
        frame = pd.DataFrame(raw["x"], columns=raw["feature_name"].tolist())
        frame["hospital"], frame["y"] = raw["client_name"][raw["client"]], raw["y"]
    frame.to_csv(tmp_path / "heart.csv", index=False)
    with pytest.raises(
        KinfolkError, match=rf"empty or NaN in row .* \({frame.isna().sum().sum()} missing in 10 columns"
    ):
        load_own(tmp_path / "heart.csv", client="hospital")
    federation, report = load_own(tmp_path / "heart.csv", client="hospital", missing="median")
    assert report.sizes == {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    assert {hole.column: hole.values for hole in report.missing} == {
        name: n for name, n in frame.isna().sum().items() if n
    }
    assert {hole.column: hole.row for hole in report.missing} == {
        name: int(own.isna().to_numpy().argmax()) + 1 for name, own in frame.items() if own.isna().any()
    }
    assert federation.classes == 5
    _, fewer = load_own(tmp_path / "heart.csv", client="hospital", missing="drop")
    assert fewer.left_out["rows with a missing value"] == 920 - len(frame.dropna())


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not beside the repository")
def test_writers_as_files_as_a_store(tmp_path):
    clients = tmp_path / "writers"
    clients.mkdir()
    with np.load(SHARED / "femnist.npz", allow_pickle=False) as raw:
        x, y, client, names = raw["x"], raw["y"], raw["client"], raw["client_name"]
    chosen = np.flatnonzero(np.bincount(client) >= 300)
    for c in chosen:
        np.savez(clients / f"{names[c]}.npz", x=x[client == c], y=y[client == c])
    federation, report = load_own(clients)
    assert federation.clients == tuple(sorted(names[chosen].tolist()))
    assert sum(report.balance.values()) == np.isin(client, chosen).sum()
    back, _ = load_own(write_store(federation, tmp_path / "store", report=report))
    assert back.fingerprint() == federation.fingerprint()
    who = back.clients[0]
    own = back.x[back.splits["train"].rows(0)]
    theirs = {image.tobytes() for image in x[client == np.flatnonzero(names == who)[0]]}
    assert {image.numpy().tobytes() for image in own} <= theirs
