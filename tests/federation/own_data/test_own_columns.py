"""Columns by explicit options: which, in which order; categories, dates, gaps; sizes of images."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import kinfolk
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.own_data.columns import MOST_CATEGORIES, Columns, Recipe, Source
from kinfolk.federation.own_data.folder import read_folder
from kinfolk.federation.own_data.load import load_own
from kinfolk.federation.own_data.loaded import federate
from kinfolk.federation.own_data.store import read_store, write_store
from kinfolk.federation.own_data.tables import read_frame, read_table
from kinfolk.streams import Seed

ANN = """id,age,sex,seen,smokes,y
1,30,f,2024-01-31,true,0
2,41,m,2024-02-01,false,1
3,50,f,1969-12-31,true,1
"""
BOB = "sex,y,age,seen,smokes,extra\nx,1,22,2024-03-01T12:00,false,9\nm,0,35,2024-03-02T00:00,true,8\n"
ALL = Columns(["age", "sex", "seen", "smokes"], categorical=["sex"], dates=["seen:month:weekday"])


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def test_columns_categories_dates_and_booleans(tmp_path):
    found = read_folder(write(tmp_path / "sites", ann=ANN, bob=BOB), "y", columns=ALL)
    wanted = ("age", "sex=f", "sex=m", "sex=x", "seen", "seen.month", "seen.weekday", "smokes")
    assert found.feature_names == wanted
    # 2024-01-31 was a Wednesday, 19753 days after 1970-01-01, which was a Thursday.
    assert found.clients["ann"][0].tolist() == [
        [30, 1, 0, 0, 19753, 1, 2, 1],
        [41, 0, 1, 0, 19754, 2, 3, 0],
        [50, 1, 0, 0, -1, 12, 2, 1],
    ]
    assert found.clients["bob"][0].tolist() == [
        [22, 0, 0, 1, 19783.5, 3, 4, 0],
        [35, 0, 1, 0, 19784, 3, 5, 1],
    ]
    assert any("not used: extra, id" in note for note in found.notes)
    assert any("'sex' is one-hot by the 3 sorted values" in note for note in found.notes)
    assert any("days since 1970-01-01" in note for note in found.notes)


def test_the_order_is_the_one_asked_for(tmp_path):
    folder = write(tmp_path / "sites", ann="a,b,y\n1,2,0\n3,4,1\n", bob="y,b,a\n1,6,5\n")
    found = read_folder(folder, "y", columns=Columns(["b", "a"]))
    assert found.clients["ann"][0].tolist() == [[2, 1], [4, 3]]
    assert found.clients["bob"][0].tolist() == [[6, 5]]
    assert found.recipe is None  # names tell all


def test_one_table_and_a_frame_give_the_same(tmp_path):
    rows = pd.DataFrame({"who": ["a", "a", "b"], "sex": ["m", "f", None], "n": [1, 2, 3], "y": [0, 1, 1]})
    rows.to_csv(tmp_path / "all.csv", index=False)
    how = Columns(categorical="sex", fill=0)
    one, two = (
        read_frame(rows, "who", "y", columns=how),
        read_table(tmp_path / "all.csv", "who", "y", columns=how),
    )
    assert one.feature_names == two.feature_names == ("sex=f", "sex=m", "n")
    for who in ("a", "b"):
        np.testing.assert_array_equal(one.clients[who][0], two.clients[who][0])
    assert federate(one).x[2].tolist() == [0, 0, 3]  # a missing category is none of them


def test_numbers_may_be_categories_and_keep_their_zeros(tmp_path):
    folder = write(tmp_path / "sites", ann="zip,y\n007,0\n7,1\n", bob="zip,y\n12,0\nA1,1\n")
    found = read_folder(folder, "y", columns=Columns(categorical="zip"))
    assert found.feature_names == ("zip=007", "zip=12", "zip=7", "zip=A1")
    frame = pd.DataFrame({"who": ["a", "b"] * 2, "k": [1, 2, 1, 2], "y": [0, 1, 1, 0]})
    assert read_frame(frame, "who", "y", columns=Columns(categorical="k")).feature_names == ("k=1", "k=2")


GAPS = {
    "ann": "a,b,y\n1,,0\n3,10,1\n,20,1\n4,,0\n",
    "bob": "a,b,y\n100,,0\n,,1\n300,,0\n200,,1\n",
}


@pytest.mark.parametrize("rule", ["mean", "median", "7.5"])
def test_gaps_are_filled_by_training_rows_alone(tmp_path, rule):
    loaded = read_folder(write(tmp_path / "sites", **GAPS), "y", columns=Columns.parse(fill=rule))
    f = federate(loaded, test_fraction=0.3, seed=Seed(1))
    x = np.concatenate([loaded.clients[who][0] for who in ("ann", "bob")]).astype(np.float64)
    own = [x[f.splits["train"].rows(i).numpy()] for i in (0, 1)]
    with np.errstate(all="ignore"):
        wanted = {
            "mean": lambda: np.nanmean(np.concatenate(own), axis=0),
            "median": lambda: np.array([
                np.median([np.median(v) for v in (o[~np.isnan(o[:, c]), c] for o in own) if len(v)])
                for c in (0, 1)
            ]),
            "7.5": lambda: np.array([7.5, 7.5]),
        }[rule]()  # fmt: skip
    np.testing.assert_allclose(f.recipe.fill, wanted, rtol=1e-9)
    np.testing.assert_allclose(f.x.numpy(), np.where(np.isnan(x), wanted, x), rtol=1e-6)
    assert any("missing values are filled" in note for note in loaded.notes)


def test_test_rows_do_not_say_what_fills_gaps(tmp_path):
    loaded = read_folder(write(tmp_path / "sites", **GAPS), "y", columns=Columns(fill="mean"))
    f = federate(loaded, test_fraction=0.3, seed=Seed(1))
    test = f.splits["test"].rows(1)[0].item() - 4
    changed = {**loaded.clients, "bob": (loaded.clients["bob"][0].copy(), loaded.clients["bob"][1])}
    changed["bob"][0][test, 0] = 1e6
    again = federate(replace(loaded, clients=changed), test_fraction=0.3, seed=Seed(1))
    assert again.recipe == f.recipe


def test_rows_without_a_label_are_still_refused_or_dropped(tmp_path):
    folder = write(tmp_path / "sites", ann="a,y\n1,0\n,1\n3,\n")
    with pytest.raises(KinfolkError, match=r"data\.ann\.y.*row 3 has no label, which nothing can fill"):
        read_folder(folder, "y", columns=Columns(fill="mean"))
    found = read_folder(folder, "y", missing="drop", columns=Columns(fill="mean"))
    assert found.left_out == {"rows without a label": 1}
    assert len(found.clients["ann"][1]) == 2


def test_npz_files_are_filled_too(tmp_path):
    np.savez(tmp_path / "ann.npz", x=np.array([[1.0], [np.nan], [3.0]]), y=np.array([0, 1, 1]))
    found, _ = load_own(tmp_path, columns=Columns(fill=2.0))
    assert found.x.tolist() == [[1.0], [2.0], [3.0]]


def test_a_store_keeps_the_recipe(tmp_path):
    f, report = load_own(write(tmp_path / "sites", ann=ANN * 1, bob=BOB), label="y", columns=ALL)
    write_store(f, tmp_path / "store", report)
    again = read_store(tmp_path / "store", verify=True)
    assert again.recipe == f.recipe
    assert again.recipe.features == again.feature_names
    with pytest.raises(KinfolkError, match="a store is settled"):
        load_own(tmp_path / "store", columns=Columns(["age"]))


def test_a_recipe_makes_the_same_rows_of_other_files(tmp_path):
    f, _ = load_own(write(tmp_path / "sites", ann=ANN, bob=BOB), label="y", columns=ALL)
    again, _ = load_own(
        write(tmp_path / "new", zoe=BOB.replace("x,1", "never,1")), label="y", columns=f.recipe
    )
    assert again.feature_names == f.feature_names
    assert again.x[0].tolist() == [22, 0, 0, 0, 19783.5, 3, 4, 0]
    assert Recipe.from_dict(asdict(f.recipe)) == f.recipe


def sized(folder: Path, sizes) -> Path:
    for i, (wide, high) in enumerate(sizes):
        path = folder / f"c{i % 2}" / "ab"[i // 2 % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(i).integers(0, 256, (high, wide)).astype(np.uint8)
        Image.fromarray(noise).save(path)
    return folder


def test_images_are_brought_to_one_size(tmp_path):
    folder = sized(tmp_path / "photos", [(8, 6), (5, 9), (4, 3), (4, 3)])
    found = read_folder(folder, columns=Columns(resize=(3, 4)))
    assert found.shape == (1, 3, 4)
    assert federate(found).recipe == Recipe(resize=(3, 4))
    with Image.open(folder / "c0" / "a" / "0.png") as image:
        wanted = np.asarray(image.resize((4, 3), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(found.clients["c0"][0][0, 0], wanted)
    assert any("2 of 4 images are resized to 4 x 3" in note for note in found.notes)


MANY = "k,y\n" + "".join(f"v{i},{i % 2}\n" for i in range(MOST_CATEGORIES + 1))
FAULTS = {
    "absent": (
        Columns(["age", "sexx"]),
        {},
        r"data\.ann\.columns = 'sexx': no such column; did you mean 'sex'",
    ),
    "absent at one": (Columns(["age", "id"]), {}, r"data\.bob\.columns = 'id': no such column"),
    "label": (Columns(["age", "y"]), {}, r"columns = 'y': is the label, no feature"),
    "not chosen": (Columns(["age"], categorical="sex"), {}, r"columns = 'sex': .* not among --columns"),
    "both": (Columns(["sex"], "sex", "sex"), {}, r"columns = 'sex': .*cannot be both"),
    "resize": (Columns(["age"], resize=(3, 3)), {}, r"resize = '3x3': only images have a size"),
    "text": (Columns(["sex"]), {}, r"data\.ann\.sex = 'f': row 1 is text; .*--categorical sex"),
    "date": (Columns(["seen"]), {}, r"data\.ann\.seen = .*: row 1 is a date; --date seen"),
    "no date": (
        Columns(["age"], dates="age"),
        {},
        r"data\.ann\.age = 30: row 1 is no date; write dates as 2024",
    ),
    "bad date": (
        Columns(["d"], dates="d"),
        {"ann": "d,y\n2024-01-31,0\n31.1.2024,1\n", "bob": "d,y\n2024-01-31,0\n"},
        r"data\.ann\.d = '31\.1\.2024': row 2 is no date",
    ),
    "many": (
        Columns(["k"], "k"),
        {"ann": MANY, "bob": MANY},
        r"data\.k = '101 categories': .*leave the column out",
    ),
    "empty": (Columns(["k"], "k"), {"ann": "k,y\n,0\n", "bob": "k,y\n,1\n"}, r"data\.k = 'no category'"),
    "no fill": (
        Columns(fill="mean"),
        {"ann": "a,k,y\n1,,0\n2,,1\n", "bob": "a,k,y\n2,,1\n"},
        r"fill = 'mean': column 'k' has no value in any training row",
    ),
    "same columns": (Columns(), {}, r"data\.bob\.columns = .*unlike 'ann'.*--columns"),
    "no label": (
        Columns(["a"]),
        {"ann": "a,y\n1,0\n", "bob": "a,z\n1,0\n"},
        r"data\.bob\.columns = 'y': the label is not there",
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_one_line(tmp_path, what):
    columns, files, line = FAULTS[what]
    folder = write(tmp_path / "sites", **(files or {"ann": ANN, "bob": BOB}))
    with pytest.raises(KinfolkError, match=line):
        federate(read_folder(folder, None if what == "same columns" else "y", columns=columns))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"fill": "avg"}, "fill = 'avg': give 'mean', 'median' or a number"),
        ({"fill": "inf"}, "fill = inf: give a finite number"),
        ({"resize": "28"}, "resize = '28': give HEIGHTxWIDTH"),
        ({"resize": "0x9"}, "resize = '0x9': give a height and a width"),
        ({"columns": "a,b,a"}, "a column occurs twice"),
    ],
)
def test_a_word_that_means_nothing_is_refused(given, line):
    with pytest.raises(KinfolkError, match=line):
        Columns.parse(**given)


def test_names_mean_nothing_to_images_and_arrays(tmp_path):
    folder = sized(tmp_path / "photos", [(4, 3)] * 4)
    with pytest.raises(KinfolkError, match="images have no named columns"):
        read_folder(folder, columns=Columns(["a"]))
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 1)), y=np.array([0, 1]))
    (tmp_path / "npz").mkdir()
    (tmp_path / "a.npz").rename(tmp_path / "npz" / "a.npz")
    with pytest.raises(KinfolkError, match="arrays have no named columns"):
        read_folder(tmp_path / "npz", columns=Columns(dates=["a"]))
    with pytest.raises(KinfolkError, match="only images have a size"):
        read_folder(tmp_path / "npz", columns=Columns(resize=(2, 2)))


def test_a_colon_may_be_part_of_a_name():
    frame = pd.DataFrame({"who": ["a", "b"] * 2, "at:day": ["2024-01-31"] * 4, "y": [0, 1, 1, 0]})
    found = read_frame(frame, "who", "y", columns=Columns(dates="at:day:month"))
    assert found.feature_names == ("at:day", "at:day.month")
    assert torch.equal(federate(found).x[0], torch.tensor([19753.0, 1.0]))


def test_time_zones_are_brought_to_utc():
    seen = pd.Series(["2024-01-31T00:30+01:00", pd.Timestamp("2024-01-31", tz="Asia/Tokyo")])
    days = Source("seen", "date").encode(seen, "data.seen", np.arange(2))[:, 0]
    np.testing.assert_allclose(days, [19752 + 23.5 / 24, 19752 + 15 / 24], rtol=1e-12)


def test_arrays_in_python_are_filled_and_have_no_names(tmp_path):
    x = np.array([[1.0, np.nan], [3.0, 4.0], [np.nan, 6.0], [5.0, 8.0]] * 3)
    f = from_arrays({"ann": (x, np.arange(12) % 2)}, fill="mean")
    own = x[f.splits["train"].rows(0).numpy()]
    np.testing.assert_allclose(f.recipe.fill, np.nanmean(own, axis=0), rtol=1e-9)
    given = {"progress": False, "rounds": 1, "folder": tmp_path / "r"}
    kinfolk.run(nn.Linear(2, 2), {"ann": (x, np.arange(12) % 2)}, settings={"data.fill": "median"}, **given)
    said = kinfolk.load(tmp_path / "r", network=nn.Linear(2, 2)).predict(np.array([[np.nan, 1.0]]))
    assert said.shape == (1,)
    with pytest.raises(KinfolkError, match=r"data\.categorical = 'a': arrays have no names"):
        kinfolk.run(nn.Linear(2, 2), {"ann": (x, np.arange(12))}, settings={"data.categorical": "a"}, **given)
    with pytest.raises(KinfolkError, match="rows of several arrays are not filled"):
        from_arrays({"ann": ({"a": x, "b": x}, np.arange(12))}, fill=0)
