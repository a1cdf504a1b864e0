"""Run folders read back: folders that are none, clients without rows, rounds that are missing, no torch."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import make_comparison, make_run

from kinfolk.errors import KinfolkError
from kinfolk.report.read import (
    Run,
    by_title,
    check_score,
    default_score,
    final,
    history,
    load_run,
    load_runs,
    mean_history,
    sample_std,
    shown,
)
from kinfolk.scores import _OURS, SCORES, summary

NAN, INF = math.nan, math.inf


def test_reports_need_no_torch_and_no_pyplot() -> None:
    code = (
        "import sys, kinfolk.report.tables, kinfolk.report.figures; "
        "assert 'torch' not in sys.modules; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_is_read_with_its_facts_and_its_rounds(tmp_path: Path) -> None:
    path = make_run(
        tmp_path / "r", {"centre": {"accuracy": {0: [0.5]}}}, "fedprox mu=0.5", 7, rounds=[{"round": 1}]
    )
    run = load_run(path)
    assert (run.title, run.seed, run.path, run.rounds) == ("fedprox mu=0.5", 7, path, [{"round": 1}])
    assert run.spec == {}
    assert run.audit == []


def test_records_are_read_only_when_needed(tmp_path: Path) -> None:
    path = make_run(tmp_path, {"centre": {"accuracy": {0: [0.5]}}})
    (path / "records" / "round-000000.parquet").write_bytes(b"torn")
    (path / "spec.toml").write_text("= broken")
    run = load_run(path)
    with pytest.raises(KinfolkError, match="cannot be read"):
        _ = run.scores
    with pytest.raises(KinfolkError, match=r"spec\.toml"):
        _ = run.spec


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "cannot be read"),
        ("[1]", "must hold a JSON object"),
        ('{"seed": 0}', "does not name its algorithm"),
        ('{"algorithm": "fedavg", "seed": "0"}', "does not name its seed"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_a_broken_run_json_is_named(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(KinfolkError, match=match):
        load_run(tmp_path)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(KinfolkError, match="is not a run folder"):
            load_run(path)
        with pytest.raises(KinfolkError, match="holds no run"):
            load_runs(path)


def test_a_comparison_keeps_its_order_and_skips_what_has_not_begun(tmp_path: Path) -> None:
    for title in ("local", "fedavg"):
        make_run(tmp_path / f"{title}-seed0", {"centre": {"accuracy": {0: [0.5]}}}, title)
    names = ["local-seed0", "fesem-seed0", "fedavg-seed0"]
    (tmp_path / "compare.json").write_text(json.dumps({"runs": names}))
    assert [run.title for run in load_runs(tmp_path)] == ["local", "fedavg"]
    (tmp_path / "compare.json").unlink()
    assert [run.title for run in load_runs(tmp_path)] == ["fedavg", "local"]
    assert [run.title for run in load_runs(tmp_path / "local-seed0")] == ["local"]


@pytest.mark.parametrize("names", [["../other"], [".."], [""], [3], "local-seed0", None, ["a/b"]])
def test_a_comparison_names_only_its_own_folders(tmp_path: Path, names: object) -> None:
    make_run(tmp_path / "other", {"centre": {"accuracy": {0: [0.5]}}})
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "compare.json").write_text(json.dumps({"runs": names}))
    with pytest.raises(KinfolkError, match="must list the names of run folders"):
        load_runs(tmp_path / "here")


def test_a_seed_counts_once(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, {"centre": {"accuracy": {0: [0.5]}}}))
    with pytest.raises(KinfolkError, match="occurs twice"):
        by_title([run, run])


def test_the_main_model_is_the_first_of_the_summary(tmp_path: Path) -> None:
    by = {"accuracy": {1: [0.5]}}
    values = {"centre": by, "fine-tuned": by, "personal": by}
    summary = {"personal": {}, "centre": {}, "gone": {}}
    run = load_run(make_run(tmp_path, values, rounds=[{"round": 1, "summary": summary}]))
    assert run.models == ("personal", "centre", "fine-tuned")


def test_the_most_telling_score_is_the_default(tmp_path: Path) -> None:
    scores = {name: {0: [0.5]} for name in ("loss", "macro_f1", "strange", "accuracy")}
    run = load_run(make_run(tmp_path / "a", {"centre": scores}))
    empty = load_run(make_run(tmp_path / "b", {}))
    assert run.metrics == ("accuracy", "macro_f1", "strange", "loss")
    assert default_score([empty, run]) == "accuracy"
    assert check_score([empty, run], "loss") == "loss"
    with pytest.raises(KinfolkError, match="did you mean 'accuracy'"):
        check_score([run], "acuracy")
    for score in (None, "accuracy"):
        with pytest.raises(KinfolkError, match="has no scores yet"):
            check_score([empty], score)


def test_the_final_score_is_that_of_the_last_evaluated_round(tmp_path: Path) -> None:
    values = {
        "centre": {"accuracy": {0: [0.1, 0.2], 4: [0.5, NAN]}, "loss": {0: [3.0, 2.0], 6: [1.0, INF]}},
        "personal": {"accuracy": {2: [0.9, 0.8, 0.7]}},
    }
    run = load_run(make_run(tmp_path, values, rows=[5, 0, 1]))
    pd.testing.assert_series_equal(
        final(run, "centre", "accuracy"),
        pd.Series([0.5, NAN], index=["c00", "c01"], name="accuracy"),
        check_index_type=False,
        check_names=False,
    )
    assert final(run, "centre", "loss").tolist() == [1.0, INF]
    assert final(run, "personal", "accuracy").to_dict() == {"c00": 0.9, "c01": 0.8, "c02": 0.7}
    assert final(run, "personal", "loss").empty
    with pytest.raises(KinfolkError, match="did you mean 'centre'"):
        final(run, "center", "accuracy")
    with pytest.raises(KinfolkError, match="known: accuracy, loss"):
        final(run, "centre", "mse")


clients = st.lists(
    st.tuples(st.one_of(st.floats(0, 10), st.just(NAN)), st.integers(1, 50)), min_size=1, max_size=12
)


@settings(deadline=None)
@given(clients, st.booleans())
def test_a_summary_is_the_arithmetic_it_says(drawn: list[tuple[float, int]], lower: bool) -> None:
    got = summary([v for v, _ in drawn], [n for _, n in drawn], lower)
    kept = sorted((v, n) for v, n in drawn if v == v)
    if not kept:
        assert all(math.isnan(number) for number in got.values())
        return
    values = [v for v, _ in kept]
    mean = sum(values) / len(values)
    assert got["macro"] == pytest.approx(mean)
    assert got["micro"] == pytest.approx(sum(v * n for v, n in kept) / sum(n for _, n in kept))
    assert (got["worst"], got["best"]) == ((values[-1], values[0]) if lower else (values[0], values[-1]))
    if len(values) > 1:
        squares = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
        assert got["spread"] == pytest.approx(math.sqrt(squares), abs=1e-9)
    at = (0.9 if lower else 0.1) * (len(values) - 1)
    low = values[math.floor(at)]
    assert got["p10"] == pytest.approx(low + (at - math.floor(at)) * (values[math.ceil(at)] - low))


def test_every_score_has_a_rule_and_the_other_way_round() -> None:
    metrics = pytest.importorskip("kinfolk.learning.row_metrics")
    assert {*metrics.RULES, *metrics.POSITIONS, *metrics.METRICS} == _OURS <= set(SCORES)
    assert not [name for name, score in SCORES.items() if score.percent and score.lower_is_better]


def test_clients_without_rows_or_all_weights_zero() -> None:
    assert math.isnan(summary([], [])["macro"])
    assert math.isnan(summary([0.5], [0])["macro"])
    assert summary([0.5, NAN], [4, 0])["macro"] == 0.5
    assert summary([0.5], [4])["spread"] == 0.0


def test_sample_std_divides_by_one_less() -> None:
    values = [0.2, 0.5, 0.9, 0.4]
    assert sample_std(values) == pytest.approx(np.sqrt(np.var(values) * 4 / 3))
    assert all(math.isnan(sample_std(v)) for v in ([], [1.0], [1.0, NAN], [1.0, INF]))


def test_history_follows_the_rounds(tmp_path: Path) -> None:
    by = {0: [0.0, 0.5], 10: [0.5, NAN], 3: [0.25, 0.75]}
    run = load_run(make_run(tmp_path, {"centre": {"accuracy": by}}, rows=[1, 3]))
    assert history(run, "centre", "accuracy").to_dict() == {0: 0.25, 3: 0.5, 10: 0.5}
    assert history(run, "centre", "accuracy", "micro").to_dict() == {0: 0.375, 3: 0.625, 10: 0.5}
    assert history(run, "centre", "accuracy", "worst").to_dict() == {0: 0.0, 3: 0.25, 10: 0.5}


def test_mean_history_keeps_only_rounds_that_every_seed_has(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    values = rng.random((3, 6, 5))  # seed, round, client
    kept = [[0, 2, 4, 5], [0, 1, 2, 4], [0, 2, 3, 4]]
    runs = [
        load_run(
            make_run(tmp_path / str(s), {"centre": {"accuracy": {r: values[s, r] for r in kept[s]}}}, seed=s)
        )
        for s in range(3)
    ]
    got = mean_history(runs, "centre", "accuracy")
    assert got.index.tolist() == [0, 2, 4]
    macro = values[:, [0, 2, 4]].mean(axis=2)
    np.testing.assert_allclose(got["mean"], macro.mean(axis=0))
    np.testing.assert_allclose(got["std"], np.sqrt(((macro - macro.mean(0)) ** 2).sum(0) / 2))
    assert mean_history(runs[:1], "centre", "accuracy")["std"].isna().all()


def test_a_run_of_many_rounds_and_seeds_is_found_whole(tmp_path: Path) -> None:
    runs = load_runs(make_comparison(tmp_path, {"local": 0.5, "fedavg": 0.8}, seeds=2, clients=4, rounds=3))
    assert [(run.title, run.seed) for run in runs] == [
        ("local", 0),
        ("local", 1),
        ("fedavg", 0),
        ("fedavg", 1),
    ]
    assert runs[0].scores.shape == (4 * 4, 9)
    assert [fact["round"] for fact in runs[0].rounds] == [1, 2, 3]


@pytest.mark.parametrize(
    ("value", "score", "deviation", "text"),
    [
        (0.87125, "accuracy", 0.00449, "87.1 ± 0.4"),
        (1.0, "top5", NAN, "100.0"),
        (NAN, "accuracy", NAN, "-"),
        (INF, "loss", NAN, "inf"),
        (0.0, "mse", 0.0, "0.00 ± 0.00"),
        (123.4, "mse", 6.7, "123 ± 7"),
        (0.01234, "mae", 0.00056, "0.0123 ± 0.0006"),
        (1.5e9, "mse", 2e8, "1.50e+09 ± 2e+08"),
        (1.5e-7, "mse", NAN, "1.50e-07"),
    ],
)
def test_numbers_are_shown_short(value: float, score: str, deviation: float, text: str) -> None:
    assert shown(value, score, deviation) == text


def test_a_run_in_memory_is_a_run() -> None:
    run = Run.of({"title": "local", "seed": 2}, {"client": ["b", "a"], "value": [1.0, 2.0], "score": "mse"})
    assert final(run, "centre", "mse").to_dict() == {"a": 2.0, "b": 1.0}
