"""Charts of trust in SLFed: against what was kept of its clients' memories."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pictured import HOSTILE, NAMES, compiled, made_up, played, rows_of

from kinfolk.experiment.picture_files import read_arrays
from kinfolk.report.page.charts import asking, trust

SLFED = (
    "algorithm.name=slfed",
    "algorithm.images.kind=noise",
    "algorithm.shares.scheme=plain",
    "run.rounds=4",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return played(tmp_path_factory.mktemp("slfed") / "r", *SLFED)


def test_curves_are_means_and_ranges_over_clients(run):
    kept = read_arrays(run.path)
    for family, name in ((trust.uncertainty, "uncertainty"), (trust.lists, "asked")):
        (chart,) = family([run])
        assert chart.table["round"].tolist() == sorted(kept)
        for row in chart.table.to_dict("records"):
            values = kept[row["round"]][name].astype(float)
            wanted = values.mean(), values.min(), values.max()
            np.testing.assert_allclose([row["mean"], row["lowest"], row["highest"]], wanted, rtol=1e-3)
        single = rows_of(chart, 2)
        assert len(single) == 9 * len(kept)
        for row in single:
            value = kept[row["round"]][name][NAMES.index(row["client"])]
            assert row["value"] == pytest.approx(value, rel=1e-3)
        assert compiled(chart, picked=["c03"])


def test_similarity_is_told_apart_by_known_group(run):
    (chart,) = trust.similarity([run])
    kept = read_arrays(run.path)
    for row in rows_of(chart):
        one = kept[row["round"]]
        pairs = [
            one["similarity"][i, j]
            for i in range(9)
            for j in range(9)
            if i != j and one["similarity"][i, j] > 0 and (i % 3 == j % 3) == (row["of"] == "own known group")
        ]
        assert row["similarity"] == pytest.approx(np.mean(pairs), rel=1e-3)
    last = kept[max(kept)]["asks"]
    same = np.array([[i % 3 == j % 3 for j in range(9)] for i in range(9)])
    assert f"{100 * last[same].sum() / last.sum():.0f} % of those on lists" in chart.says
    assert compiled(chart)


def test_lines_are_the_lists_of_each_round(run):
    (chart,) = asking.graph([run])
    kept = read_arrays(run.path)
    assert list(chart.rounds) == sorted(kept)
    for number in chart.rounds:
        drawn = {(row["client"], row["other"]) for row in rows_of(chart, 0) if row["round"] == number}
        asks = kept[number]["asks"]
        assert drawn == {(NAMES[i], NAMES[j]) for i, j in zip(*np.nonzero(asks), strict=True)}
    for row in rows_of(chart, 0):
        same = NAMES.index(row["client"]) % 3 == NAMES.index(row["other"]) % 3
        assert row["kind"] == ("asks one of its known group" if same else "asks one of another")
    places = {row["client"]: (row["x"], row["y"]) for row in rows_of(chart, 1)}
    assert len(set(places.values())) == 9
    for row in rows_of(chart, 0):
        assert (row["x"], row["y"]) == pytest.approx(places[row["client"]]), "a line begins at who asks"
        end = np.hypot(*(np.array([row["x2"], row["y2"]]) - places[row["other"]]))
        assert end == pytest.approx(0.07, abs=5e-3), "and ends before who is asked"
    asks = kept[max(kept)]["asks"]
    assert chart.table["asks"].tolist() == asks.sum(1).tolist()
    assert chart.table["is asked by"].tolist() == asks.sum(0).tolist()
    assert compiled(chart, picked=["c03"], round=1)


def test_of_many_clients_a_matrix_is_drawn(run, monkeypatch):
    monkeypatch.setattr(asking, "MOST_NODES", 5)
    (chart,) = asking.graph([run])
    kept, order = read_arrays(run.path), [0, 3, 6, 1, 4, 7, 2, 5, 8]
    for row in rows_of(chart):
        i, j = NAMES.index(row["client"]), NAMES.index(row["other"])
        assert (order[row["y"]], order[row["x"]]) == (i, j)
        one = kept[row["round"]]
        assert row["similarity"] == pytest.approx(one["similarity"][i, j], abs=1e-3)
        assert row["asks"] == one["asks"][i, j]
    assert compiled(chart)


def test_where_no_groups_are_known_similar_clients_are_neighbours():
    alike = np.kron(np.eye(2), np.ones((3, 3)))
    mixed = np.array([0, 3, 1, 4, 2, 5])
    order = asking.seriated(list("abcdef"), alike[np.ix_(mixed, mixed)], pd.Series(dtype=object))
    assert sorted(order) == list(range(6))
    assert {frozenset(mixed[order[:3]]), frozenset(mixed[order[3:]])} == {
        frozenset({0, 1, 2}),
        frozenset({3, 4, 5}),
    }


def test_names_are_data(tmp_path):
    hostile = played(tmp_path / "r", *SLFED, federation=made_up(HOSTILE, groups=1))
    (chart,) = asking.graph([hostile])
    assert {row["client"] for row in rows_of(chart, 1)} == set(HOSTILE)
    assert trust.similarity([hostile]) == [], "no groups are known"
    for one in (chart, *trust.uncertainty([hostile]), *trust.lists([hostile])):
        assert compiled(one, picked=[HOSTILE[0]])
