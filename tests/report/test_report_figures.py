"""The figure: what is drawn is what NumPy finds, and odd runs are drawn too."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from made_up import make_comparison, make_run
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from kinfolk.errors import KinfolkError
from kinfolk.report import figures
from kinfolk.report.figures import COLOURS, all_series, comparison_figure
from kinfolk.report.read import Run, load_run, load_runs

NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return np.random.default_rng(3).uniform(0.2, 0.9, (2, 3, 4, 6))  # title, seed, round, client


@pytest.fixture(scope="module")
def runs(values: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        load_run(
            make_run(folder / f"{t}{s}", {"centre": {"accuracy": dict(enumerate(values[t, s]))}}, f"a{t}", s)
        )
        for t in range(2)
        for s in range(3)
    ]


def has_colour(picture: np.ndarray, colour: str) -> bool:
    return bool((np.abs(picture[..., :3] - to_rgb(colour)).max(axis=-1) < 0.01).any())


def test_lines_and_bands_are_means_and_deviations_over_seeds(runs: list[Run], values: np.ndarray) -> None:
    axes = Figure().add_subplot()
    figures._curves(axes, all_series(runs, "accuracy"), "accuracy")
    macro = values.mean(axis=3)
    for t, (line, band) in enumerate(zip(axes.lines, axes.collections, strict=True)):
        np.testing.assert_allclose(line.get_xdata(), range(4))
        np.testing.assert_allclose(line.get_ydata(), macro[t].mean(axis=0))
        corners = band.get_paths()[0].vertices
        for r in range(4):
            ends = corners[corners[:, 0] == r, 1]
            mean, std = macro[t, :, r].mean(), macro[t, :, r].std(ddof=1)
            assert (ends.min(), ends.max()) == pytest.approx((mean - std, mean + std))


def test_dots_are_clients_and_the_worst_is_named(runs: list[Run], values: np.ndarray) -> None:
    axes = Figure().add_subplot()
    drawn = all_series(runs, "accuracy")
    figures._strips(axes, drawn, "accuracy")
    names = {text.get_text() for text in axes.texts}
    for t, dots in enumerate(axes.collections):
        ends = values[t, :, -1].mean(axis=0)
        np.testing.assert_allclose(np.asarray(dots.get_offsets())[:, 0], ends)
        assert f"c{ends.argmin():02d}" not in names  # the worst is another client in each seed
        assert drawn[t].worst == pytest.approx(values[t, :, -1].min(axis=1).mean())
        assert f"{100 * ends.mean():.1f}%" in names
        assert drawn[t].end == pytest.approx(ends.mean())


def test_of_errors_the_largest_is_the_worst(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, {"centre": {"mse": {0: [0.5, 4.0, 1.0]}}}))
    axes = Figure().add_subplot()
    figures._strips(axes, all_series([run], "mse"), "mse")
    assert {text.get_text() for text in axes.texts} >= {"c01", "1.83"}


def test_a_client_is_the_mean_of_the_seeds_that_scored_it(tmp_path: Path) -> None:
    ends = [[0.5, NAN, NAN], [1.0, 0.25, NAN]]
    runs = [
        load_run(make_run(tmp_path / str(s), {"centre": {"accuracy": {0: end}}}, seed=s))
        for s, end in enumerate(ends)
    ]
    assert all_series(runs, "accuracy")[0].clients.to_dict() == {"c00": 0.75, "c01": 0.25}


def test_one_algorithm_shows_its_models_and_several_their_main_one(tmp_path: Path) -> None:
    by = {"accuracy": {1: [0.5, 0.7]}}
    a = load_run(make_run(tmp_path / "a", {"centre": by, "personal": by}, "fedavg"))
    b = load_run(make_run(tmp_path / "b", {"personal": by}, "local"))
    c = load_run(make_run(tmp_path / "c", {"centre": by}, "ifca"))
    none = load_run(make_run(tmp_path / "d", {}, "late"))
    assert [s.label for s in all_series([a], "accuracy")] == ["centre", "personal"]
    assert [s.label for s in all_series([a, b, none], "accuracy")] == ["fedavg (centre)", "local (personal)"]
    assert [s.label for s in all_series([a, c], "accuracy")] == ["fedavg", "ifca"]


def test_the_picture_has_its_size_and_every_colour(tmp_path: Path) -> None:
    titles = {f"algorithm {i}": 0.5 + 0.05 * i for i in range(7)}
    runs = load_runs(make_comparison(tmp_path / "runs", titles, seeds=1, clients=8, rounds=1))
    path = comparison_figure(runs, tmp_path / "new" / "figure.png")
    picture = matplotlib.image.imread(path)
    assert picture.shape[1] == 1500
    assert 640 <= picture.shape[0] <= 660
    assert all(has_colour(picture, colour) for colour in COLOURS)


def test_a_method_has_its_colour_in_every_figure(tmp_path: Path) -> None:
    by = {"centre": {"accuracy": {1: [0.5, 0.7]}}}
    runs = {name: load_run(make_run(tmp_path / name, by, name)) for name in ("local", "ifca", "fesem")}
    alone = {name: all_series([run], "accuracy")[0].colour for name, run in runs.items()}
    together = all_series(list(runs.values()), "accuracy")
    assert {one.label: one.colour for one in together} == alone
    assert len(set(alone.values())) == 3


def test_names_never_overlap_and_stay_in_the_picture() -> None:
    def run(i: int) -> Run:
        return Run.of(
            {"title": f"algorithm_number {i} option=value more=words", "seed": 0},
            {"client": ["a", "b"], "value": [0.8, 0.8 + i / 1e4], "rows": 5},
        )

    figure = Figure(figsize=(10, 4.9), dpi=150)
    left, right = figure.add_axes((0.065, 0.125, 0.355, 0.66)), figure.add_axes((0.615, 0.125, 0.32, 0.66))
    drawn = figures._ordered(all_series([run(i) for i in range(12)], "accuracy"))
    figures._curves(left, drawn, "accuracy")
    figures._strips(right, drawn, "accuracy")
    figures._leaders(figure, left, right, drawn)
    boxes = sorted((text.get_window_extent() for text in figure.texts), key=lambda box: box.y0)
    assert len(boxes) == 12
    assert all(below.y1 <= above.y0 for below, above in itertools.pairwise(boxes))
    assert all(box.x1 < right.get_window_extent().x0 for box in boxes)


@pytest.mark.parametrize(
    ("title", "score", "by"),
    [
        ("one round", "accuracy", {0: [0.1, 0.2]}),
        ("all equal", "accuracy", {0: [1.0, 1.0], 1: [1.0, 1.0]}),
        ("all zero", "mse", {0: [0.0, 0.0], 1: [0.0, 0.0]}),
        ("diverged", "loss", {0: [1.0, 2.0], 1: [INF, 0.001], 2: [INF, INF]}),
        ("nobody to score on", "accuracy", {0: [NAN, NAN]}),
        ("costs $6^{ and $", "mse", {0: [100.0, 0.1], 5: [10.0, 0.01]}),
        ("strange", "elo", {0: [-3.0, 1200.0]}),
    ],
)
def test_odd_runs_are_drawn_too(tmp_path: Path, title: str, score: str, by: dict[int, list[float]]) -> None:
    run = load_run(make_run(tmp_path / "run", {"centre": {score: by}}, title))
    assert comparison_figure([run], tmp_path / "figure.png").stat().st_size > 10_000


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path / "run", {"centre": {"accuracy": {0: [0.5]}}}))
    with pytest.raises(KinfolkError, match=r"ends in \.png, \.svg, \.pdf"):
        comparison_figure([run], tmp_path / "figure.docx")
    with pytest.raises(KinfolkError, match="did you mean 'accuracy'"):
        comparison_figure([run], tmp_path / "figure.png", "acuracy")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(KinfolkError, match="cannot be written"):
        comparison_figure([run], tmp_path / "file" / "figure.png")
    late = load_run(make_run(tmp_path / "late", {}))
    with pytest.raises(KinfolkError, match="has no scores yet"):
        comparison_figure([late], tmp_path / "figure.png")


def ended(title: str, seed: int, values: dict[int, float], diverged: int | None = None) -> Run:
    """A run of two clients; its centre models diverged at a round, if at all."""
    facts: dict[str, object] = {"title": title, "algorithm": title.split()[0], "seed": seed}
    if diverged is not None:
        facts["diverged"] = {"text": "diverged", "models": {"centre": {"round": diverged}}}
    rounds = [r for r in values for _ in "ab"]
    return Run.of(
        facts, {"round": rounds, "client": ["a", "b"] * len(values), "value": [values[r] for r in rounds]}
    )


CLIMB = {0: 0.1, 10: 0.5, 20: 0.8, 30: 0.82}
FALL = {0: 0.1, 10: 0.6, 20: 0.07, 30: 0.069}


def test_a_method_that_diverged_is_dashed_to_a_cross_and_says_when() -> None:
    runs = [ended("fedavg", 0, CLIMB), ended("ifca k=4", 0, FALL, diverged=14)]
    gone, fine = sorted(all_series(runs, "accuracy"), key=lambda one: one.end)
    assert (gone.failure, fine.failure) == ("diverged at round 14", "")
    axes = Figure().add_subplot()
    figures._curves(axes, [gone, fine], "accuracy")
    before, after, whole = axes.lines
    assert before.get_linestyle() == whole.get_linestyle() == "-"
    np.testing.assert_allclose(before.get_xdata(), [0, 10])
    assert after.get_linestyle() == "--"
    np.testing.assert_allclose(after.get_xdata(), [10, 20, 30])
    np.testing.assert_allclose(after.get_ydata(), [0.6, 0.07, 0.069])
    assert (after.get_marker(), after.get_markevery()) == ("X", [2])
    assert after.get_color() == before.get_color()
    assert "diverged" in axes.texts[1].get_text(), "what the cross means"


@pytest.mark.parametrize(
    ("rounds", "told"),
    [((14, 14, 14), "diverged at round 14"), ((14, 25, 9), "diverged at 9-25"),
     ((None, 14, None), "1 of 3 diverged"), ((None, None, None), "")],
)  # fmt: skip
def test_seeds_that_diverged_are_counted(rounds: tuple[int | None, ...], told: str) -> None:
    runs = [ended("ifca", seed, FALL, diverged) for seed, diverged in enumerate(rounds)]
    (series,) = all_series(runs, "accuracy")
    assert series.failure == told
    assert series.since == (min((r for r in rounds if r is not None), default=None))


def test_a_mark_of_divergence_stands_in_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure) or path)
    runs = [ended("fedavg", 0, CLIMB), ended("ifca k=4", 0, {0: 0.1, 10: 0.6}, diverged=10)]
    comparison_figure(runs, tmp_path / "f.png")
    texts = [text.get_text() for text in drawn[0].texts]
    assert "ifca k=4\ndiverged at round 10" in texts
    assert "fedavg" in texts
    crosses = [line for line in drawn[0].axes[0].lines if line.get_marker() == "X"]
    assert len(crosses) == 1, "also where the run ended at once"
