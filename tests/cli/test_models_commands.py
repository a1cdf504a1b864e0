"""`kinfolk predict` and `kinfolk export`: what they print and write, and what they refuse."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from kinfolk.experiment.record import read_scores
from kinfolk.federation.own_data.store import read_store


def write_table(path, rows=30, seed=0):
    draw = np.random.default_rng(seed)
    parts = []
    for who in ("ann", "bob"):
        age, size = draw.normal(size=rows), draw.normal(size=rows)
        parts.append(
            pd.DataFrame({"who": who, "age": age, "size": size, "y": np.where(age > 0, "old", "young")})
        )
    pd.concat(parts).to_csv(path, index=False)


@pytest.fixture
def table_run(kinfolk, tmp_path):
    write_table(tmp_path / "all.csv")
    words = ("data.name=own", "data.path=all.csv", "data.client_column=who", "model.name=logistic",
             "run.rounds=8", "local.lr=0.5", "data.test_fraction=0.2")  # fmt: skip
    code, _, err = kinfolk("run", "--out", "run", *(part for word in words for part in ("--set", word)))
    assert code == 0, err
    return kinfolk


def test_a_table_is_predicted_by_the_names_of_its_columns(table_run, tmp_path):
    pd.DataFrame({"size": [0.1, 0.2], "note": ["a", "b"], "age": [3.0, -3.0]}).to_csv("new.csv", index=False)
    code, printed, err = table_run("predict", "run", "new.csv", "--client", "ann", "--out", "said.csv")
    assert code == 0, err
    assert "columns that the model does not use: note" in err
    said = pd.read_csv("said.csv")
    assert said["prediction"].tolist() == ["old", "young"]
    assert list(said.columns) == ["row", "prediction", "p(old)", "p(young)"]
    assert said[["p(old)", "p(young)"]].sum(axis=1).tolist() == pytest.approx([1, 1])
    assert "old" in printed
    assert "2 rows" in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            {"age": [1.0], "sise": [2.0]},
            "error: x = 'size': this column of the run is missing; did you mean 'sise'?",
        ),
        ({"age": [1.0], "size": ["big"]}, "error: x.size"),
        ({"age": [1.0, None], "size": [1.0, 2.0]}, "error: x.age = 'row 2': is missing"),
    ],
)
def test_other_columns_are_refused_by_name(columns, told, table_run):
    pd.DataFrame(columns).to_csv("new.csv", index=False)
    code, out, err = table_run("predict", "run", "new.csv", "--out", "said.csv")
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1
    assert not pd.io.common.file_exists("said.csv")


def test_files_that_will_not_do_are_refused(table_run, tmp_path):
    np.savez("wide.npz", x=np.zeros((2, 5)))
    (tmp_path / "empty").mkdir()
    for data, told in (
        ("nowhere.csv", "DATA = 'nowhere.csv': there is no such file or folder"),
        ("wide.npz", "x = [2, 5]: give rows of shape [rows, 2]"),
        ("empty", "the run was not trained on images from files"),
        ("run/spec.toml", "is of no known kind"),
    ):
        code, _, err = table_run("predict", "run", data)
        assert (code, told in err) == (2, True), err
    np.savez("good.npz", x=np.zeros((2, 2)))
    code, _, err = table_run("predict", "run", "good.npz", "--out", "said.txt")
    assert (code, "give the name of a .csv file" in err) == (2, True)


def test_export_writes_files_and_tells_them(table_run, tmp_path):
    code, out, err = table_run("export", "run", "--out", "mine", "--json")
    assert code == 0, err
    assert [name.rpartition("/")[2] for name in json.loads(out)["files"]] == [
        "README.md", "model.json", "model.safetensors"
    ]  # fmt: skip
    assert json.loads((tmp_path / "mine" / "model.json").read_text())["feature_names"] == ["age", "size"]
    code, _, err = table_run("export", "run", "--all", "--client", "ann", "--out", "more")
    assert (code, "leave --client and --group out" in err) == (2, True)
    code, _, err = table_run("export", "run", "--group", "1", "--out", "more")
    assert (code, "fedavg has no groups; name a client" in err) == (2, True)


def test_a_folder_of_images_is_predicted_by_file(kinfolk, tmp_path):
    for who in ("ann", "bob"):
        for name, grey in (("dark", 20), ("light", 230)):
            folder = tmp_path / "photos" / who / name
            folder.mkdir(parents=True)
            for i in range(6):
                Image.new("L", (8, 8), grey + i).save(folder / f"{i}.png")
    words = (
        "data.name=own",
        "data.path=photos",
        "model.name=logistic",
        "run.rounds=5",
        "data.test_fraction=0.2",
    )
    code, _, err = kinfolk("run", "--out", "run", *(part for word in words for part in ("--set", word)))
    assert code == 0, err
    (tmp_path / "new").mkdir()
    Image.new("L", (8, 8), 10).save(tmp_path / "new" / "night.png")
    Image.new("L", (8, 8), 250).save(tmp_path / "new" / "snow.png")
    code, _, err = kinfolk("predict", "run", "new", "--out", "said.csv")
    assert code == 0, err
    said = pd.read_csv("said.csv")
    assert said[["file", "prediction"]].to_numpy().tolist() == [["night.png", "dark"], ["snow.png", "light"]]
    Image.new("L", (9, 8), 250).save(tmp_path / "new" / "snow.png")
    (tmp_path / "new" / "night.png").unlink()
    code, _, err = kinfolk("predict", "run", "new")
    assert (code, "the run was trained on images of 8 x 8" in err) == (2, True)


def test_raw_columns_are_predicted_as_the_run_was_trained_on_them(kinfolk, tmp_path):
    draw = np.random.default_rng(0)
    (tmp_path / "sites").mkdir()
    for who in ("ann", "bob", "cyd"):
        pay, sex = draw.normal(5e4, 9e3, 60), draw.choice(["f", "m"], 60)
        seen = pd.Timestamp("2024-01-31") + pd.to_timedelta(draw.integers(0, 400, 60), unit="D")
        y = 1e5 + 2 * pay + 3e4 * (sex == "m") + draw.normal(size=60)
        frame = pd.DataFrame(
            {"pay": pay, "sex": sex, "seen": seen.strftime("%Y-%m-%d"), f"only_{who}": 1, "y": y}
        )
        frame.loc[frame.index % 10 == 3, "pay"] = None
        frame.to_csv(tmp_path / "sites" / f"{who}.csv", index=False)
    words = ("--columns", "pay,sex,seen", "--categorical", "sex", "--date", "seen:month", "--fill", "mean")
    code, out, err = kinfolk("data", "import", "sites", "--label", "y", *words, "--out", "store")
    assert code == 0, err
    assert "is one-hot by the 2 sorted values" in out.replace("\n", " ")
    sets = ("data.name=own", "data.path=store", "model.name=logistic", "run.rounds=12", "engine.name=loop")
    code, _, err = kinfolk("run", "--out", "run", *(part for word in sets for part in ("--set", word)))
    assert code == 0, err
    told = json.loads((tmp_path / "run" / "federation.json").read_text())
    assert told["feature_names"] == ["pay", "sex=f", "sex=m", "seen", "seen.month"]
    assert told["scaling"]["by"] == "global"
    raw = pd.read_csv(tmp_path / "sites" / "bob.csv")
    raw[["y", "seen", "sex", "pay"]].to_csv("new.csv", index=False)
    code, _, err = kinfolk("predict", "run", "new.csv", "--out", "said.csv")
    assert code == 0, err
    error = pd.read_csv("said.csv")["prediction"] - raw["y"]
    test = (read_store(tmp_path / "store").splits["test"].rows(1) - 60).numpy()
    scores = read_scores(tmp_path / "run")
    last = scores[(scores["round"] == 12) & (scores["client"] == "bob")].set_index("score")["value"]
    assert np.square(error[test]).mean() == pytest.approx(last["mse"], rel=1e-4)
    assert np.square(error[raw["pay"].notna()]).mean() < 1e7  # of a variance of 5e8
    raw.assign(sex="never", seen="31.1.2024").to_csv("odd.csv", index=False)
    code, _, err = kinfolk("predict", "run", "odd.csv")
    assert (code, "x.seen = '31.1.2024': row 1 is no date" in err) == (2, True), err
    raw.assign(sex="never").to_csv("odd.csv", index=False)
    code, _, err = kinfolk("predict", "run", "odd.csv")
    assert (code, "'sex': 60 values unknown to the run, as 'never'" in err) == (0, True), err


def test_images_of_any_size_are_predicted_by_the_size_and_statistics_of_the_run(kinfolk, tmp_path):
    draw = np.random.default_rng(0)
    for who in ("ann", "bob"):
        for name, grey in (("dark", 20), ("light", 200)):
            folder = tmp_path / "photos" / who / name
            folder.mkdir(parents=True)
            for i in range(6):
                size = tuple(draw.integers(6, 12, 2).tolist())
                Image.new("RGB", size, (grey + i, 90, 0)).save(folder / f"{i}.png")
    words = ("data.name=own", "data.path=photos", "model.name=logistic", "run.rounds=5")
    sets = [part for word in words for part in ("--set", word)]
    code, _, err = kinfolk("run", "--out", "run", *sets)
    assert (code, "--resize HxW brings all to one size" in err) == (2, True), err
    code, _, err = kinfolk(
        "run", "--out", "run", *sets, "--set", "data.resize=8x7", "--set", "data.standardize=global"
    )
    assert code == 0, err
    told = json.loads((tmp_path / "run" / "federation.json").read_text())
    assert (told["shape"], told["recipe"]["resize"]) == ([3, 8, 7], [8, 7])
    assert len(told["scaling"]["rows"][""]["mean"]) == 3  # by channel
    (tmp_path / "new").mkdir()
    Image.new("RGB", (30, 9), (10, 90, 0)).save(tmp_path / "new" / "night.png")
    Image.new("RGB", (4, 4), (230, 90, 0)).save(tmp_path / "new" / "snow.png")
    code, _, err = kinfolk("predict", "run", "new", "--out", "said.csv")
    assert code == 0, err
    assert pd.read_csv("said.csv")["prediction"].tolist() == ["dark", "light"]


def test_newcomers_may_have_raw_columns_in_any_order(kinfolk, tmp_path):
    draw = np.random.default_rng(0)

    def write(folder, who, sign, order):
        folder.mkdir(exist_ok=True)
        pay, sex = draw.normal(5e4, 9e3, 60), draw.choice(["f", "m", "x"], 60)
        y = np.where(sign * (pay - 5e4) > 0, "rich", "poor")
        pd.DataFrame({"pay": pay, "sex": sex, "more": 1, "y": y})[order].to_csv(
            folder / f"{who}.csv", index=False
        )

    for i in range(6):
        write(tmp_path / "sites", f"c{i}", 1 if i % 2 else -1, ["pay", "sex", "y"])
    write(tmp_path / "new", "up", 1, ["y", "more", "sex", "pay"])
    write(tmp_path / "new", "down", -1, ["sex", "pay", "y"])
    words = ("data.name=own", "data.path=sites", "data.categorical=sex", "model.name=logistic",
             "algorithm.name=fesem", "algorithm.k=2", "run.rounds=6")  # fmt: skip
    code, _, err = kinfolk("run", "--out", "run", *(part for word in words for part in ("--set", word)))
    assert code == 0, err
    code, out, err = kinfolk("assign", "run", "--data", "new", "--by", "loss", "--json")
    assert code == 0, err
    placed = {one["newcomer"]: one for one in json.loads(out)["newcomers"]}
    assert placed["up"]["group"] != placed["down"]["group"]
    assert min(one["centre"] for one in placed.values()) > 0.9
