"""The tables: means, deviations and marks against NumPy; what is said when seeds or rounds are missing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import make_comparison, make_run
from rich.console import Console, RenderableType
from scipy import stats

from kinfolk.errors import KinfolkError
from kinfolk.report.read import Run, load_run, load_runs
from kinfolk.report.tables import (
    comparison_frame,
    comparison_rows,
    comparison_table,
    human_bytes,
    run_table,
)

NAN, INF = math.nan, math.inf


def printed(thing: RenderableType, width: int = 100) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as text:
        console.print(thing)
    return text.get().splitlines()


def memory(title: str, seed: int, value: Sequence[float], score: str = "accuracy", **facts: Any) -> Run:
    names = [f"c{i:02d}" for i in range(len(value))]
    rows = np.arange(1, len(value) + 1)
    return Run.of(
        {"title": title, "seed": seed, **facts},
        {"client": names, "value": value, "rows": rows, "score": score},
    )


def seeds(title: str, macros: Sequence[float], score: str = "accuracy") -> list[Run]:
    """Runs of one client each, so that the mean over clients is the number given."""
    return [memory(title, seed, [value], score) for seed, value in enumerate(macros)]


def marks(runs: Sequence[Run]) -> dict[str, str]:
    """What stands under `vs best`, by algorithm."""
    columns = {
        " ".join(str(c.header).split()): [str(cell) for cell in c.cells]
        for c in comparison_table(runs)[0].columns
    }
    return dict(zip(columns["algorithm"], columns["vs best"], strict=True))


def test_numbers_are_those_of_numpy(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    values = {title: rng.random((3, 7)) for title in ("fedavg", "local")}
    rows = rng.integers(1, 30, 7)
    runs = [
        load_run(
            make_run(
                tmp_path / f"{t}{s}", {"centre": {"accuracy": {0: [0.0] * 7, 8: by[s]}}}, t, s, rows.tolist()
            )
        )
        for t, by in values.items()
        for s in range(3)
    ]
    frame = comparison_frame(runs).set_index("algorithm")
    for title, by in values.items():
        row = frame.loc[title]
        for name, each in {
            "macro": by.mean(1),
            "micro": (by * rows).sum(1) / rows.sum(),
            "worst": by.min(1),
            "p10": np.percentile(by, 10, axis=1),
        }.items():
            assert row[name] == pytest.approx(each.mean())
            assert row[f"{name}_std"] == pytest.approx(np.std(each, ddof=1))
        assert (row["seeds"], row["rounds"], row["rounds_most"]) == (3, 8, 8)
    best, other = sorted(values, key=lambda title: -values[title].mean())
    assert frame.index.tolist() == [best, other]
    difference = values[other].mean() - values[best].mean()
    spread = [values[t].mean(1).std(ddof=1) for t in (best, other)]
    pooled = np.sqrt((spread[0] ** 2 + spread[1] ** 2) / 2)
    assert frame.loc[other, "difference"] == pytest.approx(difference)
    assert frame.loc[other, "pooled_std"] == pytest.approx(pooled)
    each = (values[other] - values[best]).mean(0)
    assert frame.loc[other, "p"] == pytest.approx(stats.wilcoxon(each).pvalue)
    assert (frame.loc[other, "unit"], frame.loc[other, "n"]) == ("client", 7)


three = st.lists(st.floats(0, 1), min_size=2, max_size=4)


@settings(max_examples=40, deadline=None)
@given(three, three)
def test_with_few_clients_a_mark_needs_a_paired_t_over_the_seeds(
    first: list[float], second: list[float]
) -> None:
    rows = comparison_rows(seeds("a", first) + seeds("b", second))
    many = min(len(first), len(second))
    apart = np.subtract(first[:many], second[:many])
    spread = float(np.std(apart, ddof=1))
    if spread > 1e-6:
        p = stats.ttest_1samp(apart, 0).pvalue
        assert rows[1]["p"] == pytest.approx(p, rel=1e-6)
        if abs(p - 0.05) > 1e-6:
            assert rows[1]["apart"] is bool(p < 0.05)
    assert (rows[0]["apart"], rows[1]["unit"], rows[1]["n"]) == (False, "seed", many)
    assert rows[0]["macro"] >= rows[1]["macro"]


def test_marks_of_ties_and_of_differences_in_every_seed() -> None:
    side = 0.0625
    runs = seeds("best", [0.75 - side, 0.75 + side]) + seeds("below", [0.625 - side, 0.624 + side])
    assert marks(runs) == {"best": "best", "below": "-12.6±0.6"}
    runs += seeds("tie", [0.75 + side, 0.75 - side])
    assert marks(runs) == {"best": "best", "tie": "=", "below": "-12.6±0.6"}


def test_equal_scores_without_any_deviation_are_a_tie() -> None:
    # Three tenths do not add up to the same mean as two: rounding must set nothing apart.
    runs = seeds("a", [0.1, 0.1, 0.1]) + seeds("b", [0.1, 0.1]) + seeds("c", [0.09, 0.09])
    assert set(marks(runs).values()) == {"best", "=", "-1.0±0.0"}
    assert marks(runs)["c"] == "-1.0±0.0"


def test_one_seed_allows_no_comparison() -> None:
    runs = seeds("a", [0.9]) + seeds("b", [0.1])
    table, notes = comparison_table(runs)
    assert notes == ["one seed: no comparison"]
    assert marks(runs) == {"a": "", "b": ""}
    text = "\n".join(printed(table))
    assert "±" not in text
    assert [row["apart"] for row in comparison_rows(runs)] == [None, None]


def test_one_seed_beside_several_is_named() -> None:
    runs = seeds("a", [0.9, 0.8]) + seeds("b", [0.1]) + seeds("c", [0.2, 0.101])
    notes = comparison_table(runs)[1]
    assert notes == ["rank 1 holds: it is distinguishable from all others", "one seed for b: no comparison"]
    assert marks(runs) == {"a": "best", "b": "", "c": "-70.0±0.6"}
    uneven = seeds("a", [0.9, 0.8]) + seeds("b", [0.1, 0.2, 0.3])
    assert comparison_table(uneven)[1][1:] == ["not all algorithms have the same number of seeds"]


def test_of_errors_the_smallest_is_best() -> None:
    runs = seeds("big", [4.0, 3.76], "mse") + seeds("small", [0.5, 0.25], "mse")
    frame = comparison_frame(runs)
    assert frame["algorithm"].tolist() == ["small", "big"]
    assert marks(runs) == {"small": "best", "big": "+3.5±0.1"}
    worst = comparison_frame([memory("a", 0, [1.0, 3.0, 2.0], "mse")])["worst"]
    assert worst.tolist() == [3.0]


def test_nan_clients_are_left_out_and_nan_seeds_are_no_seeds() -> None:
    runs = [memory("a", 0, [0.5, NAN, 1.0]), memory("a", 1, [0.25, 0.75, NAN]), memory("a", 2, [NAN] * 3)]
    row = comparison_rows([*runs, memory("b", 0, [NAN] * 3)])[0]
    assert (row["algorithm"], row["seeds"]) == ("a", 2)
    assert row["macro"] == pytest.approx((0.75 + 0.5) / 2)
    assert row["micro"] == pytest.approx(((0.5 + 3 * 1.0) / 4 + (0.25 + 2 * 0.75) / 3) / 2)
    assert row["macro_std"] == pytest.approx(np.std([0.75, 0.5], ddof=1))
    last = comparison_rows([memory("b", 0, [NAN] * 3), *runs])[1]
    assert (last["algorithm"], last["macro"], last["difference"], last["seeds"]) == ("b", None, None, 0)


def test_a_diverged_run_comes_last_and_gets_no_mark() -> None:
    runs = seeds("fine", [1.0, 2.0], "loss") + seeds("gone", [1.0, INF], "loss")
    frame = comparison_frame(runs)
    assert frame["algorithm"].tolist() == ["fine", "gone"]
    assert frame["macro"].tolist() == [1.5, INF]
    assert marks(runs) == {"fine": "", "gone": ""}
    everyone = comparison_frame(seeds("gone", [INF, INF], "loss"))
    assert everyone["apart"].tolist() == [None]


def test_every_scored_model_has_a_row_and_only_those_with_the_score() -> None:
    scores = {
        "client": ["x"] * 3,
        "model": ["centre", "personal", "fine-tuned"],
        "score": ["accuracy", "accuracy", "loss"],
        "value": [0.5, 0.75, 1.0],
        "rows": 4,
    }
    frame = comparison_frame([Run.of({"title": "a", "seed": 0}, scores)])
    assert frame["model"].tolist() == ["personal", "centre"]


def test_cost_is_that_of_training(tmp_path: Path) -> None:
    runs = load_runs(make_comparison(tmp_path, {"fedavg": 0.7}, seeds=2, clients=6, rounds=4))
    row = comparison_rows(runs)[0]
    assert row["bytes_per_client_round"] == 3000
    assert row["seconds_per_round"] == 1.5
    bare = comparison_rows([memory("a", 0, [0.5])])[0]
    assert (bare["bytes_per_client_round"], bare["seconds_per_round"]) == (None, None)


def test_cost_counts_the_clients_that_were_asked() -> None:
    facts = [
        {"round": 1, "cohort": 2, "seconds": {"update": 1.0}, "bytes": {"update": {"down": 40, "up": 20}}},
        {"round": 2, "cohort": 4, "seconds": {"gossip": 2.0}, "bytes": {"gossip": {"across": 120}}},
        {"round": 3, "cohort": 0},
    ]
    run = Run.of({"title": "a", "seed": 0}, {"client": ["x"], "value": [0.5], "rows": 1}, facts)
    row = comparison_rows([run])[0]
    assert row["bytes_per_client_round"] == 180 / 6
    assert row["seconds_per_round"] == 1.0


def test_rows_are_json() -> None:
    rows = comparison_rows([memory("a", 0, [0.5, NAN]), memory("b", 0, [NAN, NAN])])
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows


def test_what_to_order_by_and_what_to_score_can_be_chosen() -> None:
    runs = [memory("fair", 0, [0.6, 0.6]), memory("steep", 0, [0.4, 1.0])]
    assert comparison_frame(runs)["algorithm"].tolist() == ["steep", "fair"]
    assert comparison_frame(runs, over="worst")["algorithm"].tolist() == ["fair", "steep"]
    with pytest.raises(KinfolkError, match="did you mean 'worst'"):
        comparison_frame(runs, over="wurst")
    with pytest.raises(KinfolkError, match="score = 'mse'"):
        comparison_frame(runs, "mse")
    for over in ("macro", "micro", "worst", "p10"):
        assert max(map(len, printed(comparison_table(runs, over=over)[0]))) <= 80


def test_the_table_of_the_demo_takes_eighty_columns(tmp_path: Path) -> None:
    titles = {"fesem k=4": 0.9, "fedavg_tuned": 0.8}
    models = ("centre", "fine-tuned")
    folder = make_comparison(tmp_path, titles, clients=8, rounds=2, models=models)
    lines = printed(comparison_table(load_runs(folder))[0])
    assert max(map(len, lines)) <= 80
    assert "seeds" in lines[0], "said once, where all have as many"


@pytest.mark.parametrize("score", ["accuracy", "mse"])
def test_the_table_fits_a_hundred_columns_and_keeps_every_word(tmp_path: Path, score: str) -> None:
    titles = {"fesem groups=4 init=kmeans weights=uniform": 0.9, "fedavg_tuned": 0.8, "local [bold]": 0.7}
    folder = make_comparison(
        tmp_path, titles, clients=8, rounds=2, score=score, models=("centre", "fine-tuned")
    )
    lines = printed(comparison_table(load_runs(folder))[0])
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    for word in ("weights=uniform", "fedavg_tuned", "[bold]", "fine-tuned", "±", "best", "0.003"):
        assert word in text
    assert "…" not in text


def test_notes_tell_what_a_reader_must_know(tmp_path: Path) -> None:
    def made(title: str, seed: int, last: int, spec: str, **facts: Any) -> Run:
        values = {"centre": {"accuracy": {r: [0.5, 0.6] for r in range(last + 1)}}} if last else {}
        path = tmp_path / f"{title}{seed}"
        return load_run(
            make_run(path, values, title, seed, spec=spec, federation={"fingerprint": "x"}, **facts)
        )

    base = '[run]\nseed = {}\nrounds = 4\n[local]\nlr = {}\n[algorithm]\nname = "{}"\n'
    runs = [made("fedavg", s, 4, base.format(s, 0.1, "fedavg")) for s in (0, 1)]

    def told() -> list[str]:
        return [note for note in comparison_table(runs)[1] if not note.startswith("converged")]

    assert told() == []
    runs.append(made("local", 0, 2, base.format(0, 0.2, "local"), status="stopped", reason="below quorum"))
    runs.append(made("local", 1, 4, base.format(1, 0.1, "local")))
    runs.append(made("ifca", 0, 0, base.format(0, 0.1, "ifca"), status="running"))
    (tmp_path / "local1" / "run.json").write_text(
        json.dumps({"algorithm": "local", "title": "local", "seed": 1, "federation": {"fingerprint": "y"}})
    )
    runs[3] = load_run(tmp_path / "local1")
    assert told() == [
        "ranks 1 and 2 are not distinguishable",
        "the last evaluated round differs between runs: 2 to 4",
        "local seed 0 is stopped: below quorum",
        "ifca seed 0 has no accuracy and is left out",
        "the runs also differ in local.lr",
        "not the same clients and rows for everyone: seed 1",
    ]
    assert "2-4" in "\n".join(printed(comparison_table(runs)[0]))


def facts_of(round: int, **more: Any) -> Mapping[str, Any]:
    sent = {"update": {"down": 1_000_000, "up": 250}, "gossip": {"across": 3}}
    return {"round": round, "cohort": 3, "seconds": {"update": 1.25, "server": 0.5}, "bytes": sent, **more}


FULL = (
    "algorithm fedprox mu=0.5, seed 0",
    "data digits: 4 clients, 1,440 rows, 10 classes",
    "model mlp, 4,810 parameters",
    "engine loop",
    "status finished, 3 rounds done",
    "Scores of 3 of 4 clients after round 2",
    "centre accuracy 50.0% 50.0% 25.0% c01 30.0% 25.0%",
    "centre loss 1.12 1.17 2.00 c01 1.80 0.764",
    "message down up across",
    "update 3 MB 750 B",
    "gossip 9 B",
    "update 3.75",
    "server 1.50",
    "Groups after round 2: ARI 0.50; purity 0.75; switched 0.25; clients per group 0: 2, 1: 1",
    "Audit: rejected 1 times (1 clients); absent 3 times (2 clients)",
)


def test_one_run_in_full(tmp_path: Path) -> None:
    groups = {"ari": 0.5, "nmi": None, "purity": 0.75, "switch": 0.25, "sizes": {"0": 2, "1": 1}}
    audit = [
        {"event": "rejected", "client": "c01", "reason": "nan"},
        {"event": "absent", "client": "c00"},
        {"event": "absent", "client": "c00"},
        {"event": "absent", "client": "c02"},
        {"event": "begun"},
    ]
    values = {
        "centre": {
            "accuracy": {0: [0.0] * 4, 2: [0.5, 0.25, NAN, 0.75]},
            "loss": {0: [9.0] * 4, 2: [1.0, 2.0, NAN, 0.5]},
        },
    }
    path = make_run(
        tmp_path / "run",
        values,
        "fedprox mu=0.5",
        rows=[2, 1, 0, 1],
        rounds=[facts_of(1, groups={"ari": 0.1}), facts_of(2, groups=groups), facts_of(3)],
        audit=audit,
        engine="loop",
        reason="3 rounds done",
        federation={"name": "digits", "clients": 4, "rows": 1440, "classes": 10, "groups": None},
        model={"name": "mlp", "parameters": 4810},
    )
    lines = [" ".join(line.split()) for line in printed(run_table(load_run(path)))]
    for line in FULL:
        assert line in lines, line
    assert max(map(len, lines)) <= 100


def test_a_run_that_has_just_begun_is_shown_too(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, {}, "local", 3, status="running"))
    text = "\n".join(printed(run_table(run)))
    for words in ("local, seed 3", "running", "no scores yet", "nobody rejected or absent"):
        assert words in text


def test_nobody_to_score_on_is_shown_as_such(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, {"centre": {"accuracy": {1: [NAN, NAN]}}}, rows=[0, 0]))
    lines = [line.split() for line in printed(run_table(run))]
    assert ["centre", "accuracy", "-", "-", "-", "-", "-"] in lines


def test_bytes_have_the_unit_that_suits_them() -> None:
    counts = [0, 999, 1000, 12_345, 999_499, 999_600, 5e9, 7e12, 2e15]
    shown = ["0 B", "999 B", "1 kB", "12.3 kB", "999 kB", "1 MB", "5 GB", "7 TB", "2 PB"]
    assert [human_bytes(count) for count in counts] == shown
