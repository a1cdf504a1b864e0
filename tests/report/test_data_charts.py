"""Charts of what groups have: labels, differences and images, against the rows themselves."""

from __future__ import annotations

import io
import shutil
from base64 import b64decode

import numpy as np
import pytest
from pictured import compiled, made_up, played, rows_of
from PIL import Image

from kinfolk.experiment.picture_files import read_arrays, read_samples, write_arrays
from kinfolk.experiment.record import read_client_facts
from kinfolk.report.page.charts import data, images, pseudo
from kinfolk.report.read import load_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ifca") / "r"
    return played(folder, "algorithm.name=ifca", "algorithm.k=3", "run.rounds=4")


@pytest.fixture(scope="module")
def mdicfl(tmp_path_factory):
    change = [
        "algorithm.name=mdicfl",
        "algorithm.k=3",
        "algorithm.start.name=random_partition",
        "run.rounds=4",
    ]
    return played(tmp_path_factory.mktemp("mdicfl") / "r", *change, "algorithm.search.iterations=5")


def pixels(url):
    head, _, text = url.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(b64decode(text))))


def test_shares_of_labels_are_those_of_the_rows(run):
    (chart,) = data.labels([run])
    held, groups = made_up(), run.groups["group"]
    train = held.splits["train"]
    for row in rows_of(chart):
        mine = groups.index[groups == int(row["group"])]
        y = np.concatenate([held.y[train.rows(held.place(c))].numpy() for c in mine])
        assert row["share"] == pytest.approx((y == int(row["label"])).mean(), abs=1e-4)
    assert chart.table.shape == (3, 5)
    assert compiled(chart)


def test_differences_are_in_standard_deviations_over_clients(run):
    (chart,) = data.differences([run])
    facts, groups = read_client_facts(run.path), run.groups["group"]
    seen = set()
    for row in rows_of(chart):
        values = facts[row["fact"]].to_numpy()
        mine = (groups.reindex(facts.index) == int(row["group"])).to_numpy()
        wanted = (values[mine].mean() - values[~mine].mean()) / values.std(ddof=1)
        assert row["sd"] == pytest.approx(wanted, abs=2e-3)
        seen.add(row["fact"])
    assert "known group" not in seen
    assert "rows" in seen
    assert chart.table["clients"].sum() == 9
    assert compiled(chart)


def test_classes_and_columns_have_the_names_that_the_data_give_them(run, tmp_path, monkeypatch):
    names = {"class_names": ["cat", "<dog>", "gnu", "ant"], "feature_names": []}
    monkeypatch.setattr(data, "names_of", lambda run, what: names[what])
    (chart,) = data.labels([run])
    assert {row["label"] for row in rows_of(chart)} == {"cat", "<dog>", "gnu", "ant"}
    (other,) = data.differences([run])
    assert "label <dog>" in {row["fact"] for row in rows_of(other)}


def test_numbers_to_predict_have_no_labels(tmp_path):
    table = played(tmp_path / "r", "run.rounds=1", federation=made_up(shape=(5,)))
    assert [chart.name for chart in data.labels([table])] == ["labels-fedavg"]
    assert images.samples([table]) is None
    (chart,) = data.differences([table])
    assert "column 0" in {row["fact"] for row in rows_of(chart)}
    assert "known groups" in chart.title


def test_images_are_rows_of_the_groups_clients(run):
    chart = images.samples([run])
    groups, kept = run.groups["group"], read_samples(run.path)
    values = rows_of(chart)
    assert {row["group"] for row in values} == {"0", "1", "2"}
    for row in values:
        assert str(groups[row["client"]]) == row["group"]
        here = [image for who, label, image in kept if (who, str(label)) == (row["client"], row["label"])]
        assert any(np.array_equal(pixels(row["url"]), image) for image in here)
    of_one = [(row["client"], row["label"]) for row in values if row["group"] == "0"]
    assert len(of_one) == len(set(of_one)) == images.PER_GROUP
    assert len({label for _, label in of_one}) > 2, "rows of different labels"
    assert compiled(chart, picked=["c00"])


def test_a_page_holds_so_many_images_and_no_more(run, monkeypatch):
    monkeypatch.setattr(images, "MOST_LETTERS", 1500)
    values = rows_of(images.samples([run]))
    assert 3 <= len(values) < 12


def test_samples_are_of_the_first_method_with_groups(run, tmp_path):
    plain = played(tmp_path / "r", "run.rounds=1")
    assert images.samples([plain, run]).title == "Rows of the groups of ifca"
    assert images.samples([plain]).title == "Rows of the known groups"


def test_pseudo_images_and_confidences_are_those_that_were_kept(mdicfl):
    kept = read_arrays(mdicfl.path)
    (chart,) = pseudo.pseudo_images([mdicfl])
    assert list(chart.rounds) == sorted(kept)
    for row in rows_of(chart):
        image = kept[row["round"]]["images"][int(row["group"]), int(row["class"])]
        np.testing.assert_array_equal(pixels(row["url"]), image)
    assert len(rows_of(chart)) == len(kept) * 3 * 4
    (matrix,) = pseudo.confidences([mdicfl])
    for row in rows_of(matrix):
        wanted = kept[row["round"]]["confidence"][int(row["model"]), int(row["cluster"])].mean()
        assert row["confidence"] == pytest.approx(wanted, rel=1e-3)
    last = kept[max(kept)]["confidence"].mean(2)
    assert f"{100 * np.diagonal(last).mean():.0f} % sure of their own" in matrix.says
    assert all(compiled(one, round=min(kept)) for one in (chart, matrix))


def test_pseudo_images_of_few_rounds_are_drawn_where_they_are_large(mdicfl, monkeypatch):
    monkeypatch.setattr(pseudo, "MOST_LETTERS", 1)
    (chart,) = pseudo.pseudo_images([mdicfl])
    assert list(chart.rounds) == [4]


def test_odd_arrays_do_no_harm(mdicfl, tmp_path):
    shutil.copytree(mdicfl.path, tmp_path / "r")
    nan = np.full((3, 3, 4), np.nan, dtype=np.float32)
    write_arrays(tmp_path / "r", 4, {"confidence": nan, "images": np.zeros(3, dtype=np.uint8)})
    odd = load_run(tmp_path / "r")
    (matrix,) = pseudo.confidences([odd])
    assert "not known" in matrix.says
    assert compiled(matrix)
    (chart,) = pseudo.pseudo_images([odd])
    assert chart.rounds[-1] < 4
