"""`kinfolk predict` and `kinfolk export`: what they print and write, and what they refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys

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
    (tmp_path / "head.csv").write_text("age,size\n")
    for data, told in (
        ("nowhere.csv", "DATA = 'nowhere.csv': there is no such file or folder"),
        ("wide.npz", "x = [2, 5]: give rows of shape [rows, 2]"),
        ("empty", "DATA = 'empty': is a folder; name one table (.csv, .parquet) or .npz file"),
        ("run/spec.toml", "is of no known kind"),
        ("head.csv", "DATA = 'head.csv': has no rows"),
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
    card = (tmp_path / "mine" / "README.md").read_text()
    assert "Linear(in_features=2, out_features=2" in card, "what to build, for who has PyTorch alone"
    assert "--format torch" in card
    code, _, err = table_run("export", "run", "--all", "--client", "ann", "--out", "more")
    assert (code, "leave --client and --group out" in err) == (2, True)
    code, _, err = table_run("export", "run", "--group", "1", "--out", "more")
    assert (code, "fedavg has no groups; name a client" in err) == (2, True)


def test_a_comparison_is_no_run_but_names_its_runs(kinfolk, tmp_path):
    write_table(tmp_path / "all.csv")
    words = (
        "all.csv",
        "--set",
        "data.client_column=who",
        "--set",
        "model.name=logistic",
        "--set",
        "run.rounds=1",
    )
    code, _, err = kinfolk("compare", *words, "-a", "local", "-a", "fedavg", "--seeds", "1", "--out", "both")
    assert code == 0, err
    for command in (("export", "both", "--out", "m"), ("predict", "both", "all.csv")):
        code, out, err = kinfolk(*command)
        assert (code, out) == (2, "")
        told = "error: run = 'both': holds several runs; name one of them: fedavg-seed0, local-seed0"
        assert err.strip() == told
    for command in (("export", "both/local-seed0", "--out", "m"), ("predict", "both/local-seed0", "all.csv")):
        code, out, err = kinfolk(*command)
        assert (code, out) == (2, "")
        assert (
            err.strip()
            == "error: --client: clients of local have models of their own; say whose: --client NAME"
        )
    assert not (tmp_path / "m").exists()
    code, _, err = kinfolk("predict", "both/local-seed0", "all.csv", "--client", "an")
    assert (code, err.strip()) == (2, "error: --client = 'an': no such client; did you mean 'ann'?")


ODD = """
from torch import nn

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else self.b(x)
"""


def test_a_network_that_cannot_be_traced_is_one_line_whatever_torch_says(kinfolk, tmp_path):
    """In a process of its own: what torch logs goes past whatever a test catches."""
    write_table(tmp_path / "all.csv")
    (tmp_path / "odd.py").write_text(ODD)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, "."])}

    def typed(*words):
        command = [sys.executable, "-m", "kinfolk", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, cwd=tmp_path)

    own = ("--allow-import", "odd")
    sets = ("data.client_column=who", "model.name=odd:Odd", "engine.name=loop", "run.rounds=1")
    done = typed("run", "all.csv", "--out", "run", *own, *(w for word in sets for w in ("--set", word)))
    assert done.returncode == 0, done.stderr
    done = typed("export", "run", "--format", "torch", "--out", "mine", *own)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "cannot be traced" in done.stderr
    assert "torch.where" in done.stderr
    # What can be had is there, whole.
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == [
        "README.md", "model.json", "model.safetensors"
    ]  # fmt: skip


def test_a_run_of_a_newer_version_is_refused_everywhere(table_run, tmp_path):
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(
        json.dumps({**facts, "format": 99, "versions": {"kinfolk": "9.1"}})
    )
    spec = ("run/spec.toml", "--out", "run", "--resume")
    for words in (
        ("show", "run"), ("groups", "run"), ("export", "run", "--out", "m"), ("predict", "run", "all.csv"),
        ("score", "run"), ("assign", "run", "--data", "all.csv"), ("run", *spec),
    ):  # fmt: skip
        code, out, err = table_run(*words)
        assert (code, out) == (2, ""), words
        told = "error: run = 'run': is of format 99, this version reads 1; use kinfolk 9.1"
        assert err.strip() == told, words
    assert not (tmp_path / "m").exists()


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
