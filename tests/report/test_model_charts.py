"""Charts of clients' models: their numbers against other computations from the records."""

from __future__ import annotations

import json
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from pictured import HOSTILE, NAMES, compiled, every_chart, made_up, played, rows_of
from sklearn.decomposition import PCA

from kinfolk.experiment.picture_files import read_sketches, write_sketches
from kinfolk.experiment.record import read_scores
from kinfolk.report.page.charts import distances, members, projection
from kinfolk.report.read import Run, load_run

IFCA = ("algorithm.name=ifca", "algorithm.k=3", "run.rounds=5")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return played(tmp_path_factory.mktemp("ifca") / "r", *IFCA)


def sketch_table(run, round):
    frame = read_sketches(run.path)
    return frame[frame["round"] == round].set_index("client")["sketch"].map(np.asarray)


def test_the_plane_is_that_of_a_principal_component_analysis_of_all_rounds(run):
    (chart,) = projection.projection([run])
    frame = read_sketches(run.path)
    rows = np.stack(list(frame["sketch"])).astype(float)
    for number in set(frame["round"]):
        here = (frame["round"] == number).to_numpy()
        rows[here] -= rows[here].mean(0)
    known = PCA(2, svd_solver="full").fit(rows)
    wanted = known.transform(rows)
    drawn = rows_of(chart)
    assert [(row["round"], row["client"]) for row in drawn] == list(
        zip(frame["round"], frame["client"], strict=True)
    )
    for axis, name in enumerate("xy"):
        got = np.array([row[name] for row in drawn])
        sign = np.sign(got @ wanted[:, axis])
        np.testing.assert_allclose(sign * got, wanted[:, axis], atol=2e-3 * np.abs(wanted).max())
        share = f"({100 * known.explained_variance_ratio_[axis]:.0f} %)"
        assert share in chart.spec["layer"][0]["encoding"][name]["title"]
        low, high = chart.spec["layer"][0]["encoding"][name]["scale"]["domain"]
        assert low < got.min() < got.max() < high, "the same axes at every round"


def test_points_have_the_group_of_their_round_and_the_known_group(run):
    (chart,) = projection.projection([run])
    scores = (
        read_scores(run.path).drop_duplicates(["round", "client"]).set_index(["round", "client"])["group"]
    )
    for row in rows_of(chart):
        assert row["group"] == str(int(scores[row["round"], row["client"]]))
        assert row["known"] == f"known {NAMES.index(row['client']) % 3}"
    assert chart.rounds == (1, 2, 3, 4, 5)
    assert chart.spec["params"][1] == {"name": "round", "value": 5}
    assert "datum.round == round" in json.dumps(chart.spec["transform"])
    assert chart.spec["layer"][0]["encoding"]["color"]["scale"] == {"domain": ["0", "1", "2"]}


def test_the_table_says_how_far_each_client_is_from_its_group(run):
    (chart,) = projection.projection([run])
    sketches, groups = sketch_table(run, 5), run.groups["group"]
    means = {g: np.mean([sketches[c] for c in groups.index[groups == g]], axis=0) for g in set(groups)}
    for row in chart.table.to_dict("records"):
        apart = {str(g): np.linalg.norm(sketches[row["client"]] - mean) for g, mean in means.items()}
        own = apart.pop(row["group"])
        assert row["from own group's mean"] == pytest.approx(own, rel=1e-3)
        assert row["from nearest other"] == pytest.approx(min(apart.values()), rel=1e-3)
        assert row["nearest other"] == min(apart, key=apart.get)
    assert "0 of 9 are nearer to another group" in chart.says


def test_cells_are_distances_ordered_by_group(run):
    (chart,) = distances.distances([run])
    sketches, groups = sketch_table(run, 5), run.groups["group"]
    order = [c for g in range(3) for c in sorted(groups.index[groups == g])]
    cells = rows_of(chart, 0)
    assert len(cells) == 81
    for cell in cells:
        assert (cell["client"], cell["other"]) == (order[cell["y"]], order[cell["x"]])
        wanted = np.linalg.norm(sketches[cell["client"]] - sketches[cell["other"]])
        assert cell["distance"] == pytest.approx(wanted, rel=2e-3, abs=1e-3)
    strips = rows_of(chart, 1)
    spans = [(row["group"], row["x"], row["x2"]) for row in strips if row["y"] < 0]
    cuts = np.cumsum([0, *(int((groups == g).sum()) for g in range(3))])
    assert spans == [(str(g), cuts[g], cuts[g + 1]) for g in range(3)]


def test_of_many_clients_mean_distances_between_groups_are_drawn(run, monkeypatch):
    monkeypatch.setattr(distances, "MOST_PAIRED", 8)
    (chart,) = distances.distances([run])
    sketches, groups = sketch_table(run, 5), run.groups["group"]
    assert any("9 clients: means over the pairs of groups" in note for note in chart.notes)
    assert len(rows_of(chart)) == 9
    for row in rows_of(chart):
        pairs = [
            np.linalg.norm(sketches[a] - sketches[b])
            for a in groups.index[groups == int(row["group"])]
            for b in groups.index[groups == int(row["other"])]
            if a != b
        ]
        assert row["distance"] == pytest.approx(np.mean(pairs), rel=2e-3)


def test_of_many_clients_and_rounds_some_are_drawn(run):
    few = projection.sketched(run, clients=4, rounds=2)
    assert (few.rounds, few.frame["client"].nunique(), few.clients) == ([1, 5], 4, 9)
    one = projection.sketched(run, rounds=1)
    assert one.rounds == [5], "the last, if only one"


def test_methods_without_groups_are_coloured_by_known_groups(tmp_path):
    alone = played(tmp_path / "r", "algorithm.name=local", "run.rounds=2")
    (chart,) = projection.projection([alone])
    assert chart.spec["layer"][0]["encoding"]["color"]["field"] == "known"
    assert "from the mean of all" in chart.table
    (square,) = distances.distances([alone])
    assert "one known group" in square.says
    assert [cell["client"] for cell in rows_of(square, 0)[::9]] == [
        f"c0{i}" for i in (0, 3, 6, 1, 4, 7, 2, 5, 8)
    ]


def test_attackers_stand_apart(tmp_path):
    bad = played(tmp_path / "r", "run.attack=scaled", "run.attackers=0.3", "run.rounds=1")
    (chart,) = projection.projection([bad])
    named = {row["client"] for row in rows_of(chart) if row["group"] == members.ATTACKER}
    assert named == set(bad.facts["attackers"])
    assert {row["group"] for row in rows_of(chart)} == {members.ATTACKER, members.HONEST}


def test_models_that_are_not_finite_are_left_out(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "r")
    rows = np.ones((3, 61)) * np.arange(3)[:, None]
    rows[1, 7] = np.nan
    rows[2, 0] = np.inf
    write_sketches(tmp_path / "r", 5, NAMES[:3], "update", rows)
    broken = load_run(tmp_path / "r")
    (chart,) = projection.projection([broken])
    assert "2 models that are not finite are left out." in chart.notes
    assert distances.distances([broken]) == [], "nobody to compare with"
    json.dumps(rows_of(chart), allow_nan=False)


def test_one_client_has_no_chart_of_models(tmp_path):
    alone = played(tmp_path / "r", "run.rounds=2", federation=made_up(("ann",), groups=1))
    assert projection.projection([alone]) == []
    assert distances.distances([alone]) == []
    assert all(compiled(chart) for chart in every_chart([alone]))


def test_a_run_without_pictures_has_no_charts_of_them(tmp_path):
    none = played(tmp_path / "r", *IFCA[:2], "run.rounds=2", "run.pictures=none")
    assert {chart.name.split("-")[0] for chart in every_chart([none])} == {"labels", "profiles"}
    assert every_chart([Run.of({"title": "x", "seed": 0}, {"value": []})]) == []
    assert every_chart([]) == []


def test_names_are_data_and_nothing_else(tmp_path):
    held = made_up(HOSTILE)
    hostile = played(tmp_path / "r", *IFCA, federation=held)
    charts = every_chart([hostile])
    assert len(charts) == 5
    (plane,) = projection.projection([hostile])
    assert {row["client"] for row in rows_of(plane)} == set(HOSTILE)
    assert "alert" not in json.dumps({key: value for key, value in plane.spec.items() if key != "data"})
    for chart in charts:
        assert compiled(chart, picked=[HOSTILE[0], HOSTILE[1]], round=1), chart.name


def test_forty_groups_are_told_by_numbers(tmp_path):
    held = made_up(tuple(f"c{i:03d}" for i in range(80)), groups=40, classes=8, rows=6)
    many = played(tmp_path / "r", "algorithm.name=ifca", "algorithm.k=40", "run.rounds=2", federation=held)
    (chart,) = projection.projection([many])
    assert chart.spec["layer"][0]["encoding"]["color"]["legend"] is None
    assert "shape" not in chart.spec["layer"][0]["encoding"]
    assert any("Colours repeat" in note for note in chart.notes)
    assert all(compiled(one) for one in every_chart([many]))


def test_every_method_has_a_chart_of_its_first_seed(run, tmp_path):
    other = played(tmp_path / "fedavg", "run.rounds=2")
    again = played(tmp_path / "again", "run.rounds=2", "run.seed=1")
    names = [chart.name for chart in projection.projection([again, run, other])]
    assert names == ["projection-fedavg", "projection-ifca"]


def test_umap_is_drawn_where_it_is_installed(run, monkeypatch):
    monkeypatch.setattr(projection, "find_spec", lambda name: None)
    assert projection.umap_projection([run]) == []

    class Fake:
        def __init__(self, n_neighbors, random_state, n_jobs):
            assert (n_neighbors, random_state) == (8, 0)

        def fit_transform(self, rows):
            return rows[:, :2]

    monkeypatch.setattr(projection, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=Fake))
    (chart,) = projection.umap_projection([run])
    assert (chart.rounds, chart.name) == ((5,), "umap-ifca")
    sketches = sketch_table(run, 5)
    for row in rows_of(chart):
        assert row["x"] == pytest.approx(sketches[row["client"]][0], rel=1e-3)
    assert compiled(chart)
