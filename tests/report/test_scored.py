"""Scores read round by round say what all of them say, and no more is read than is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kinfolk.errors import KinfolkError
from kinfolk.experiment import record
from kinfolk.experiment.conduct_files import _SCHEMA, write_conduct
from kinfolk.experiment.record import OPTIONAL, Records, read_scores, write_json, write_text
from kinfolk.report import conduct, read, scored
from kinfolk.report.diverged import lost_clients
from kinfolk.report.groups import members
from kinfolk.report.read import Run, final, history, load_run

ROUNDS = (0, 3, 4, 11)
SCORES = ("loss", "accuracy")
NAMES = ("ann", "bob\x1b[2J", "bea", "cyd", "dan", "eve")


def rows_of(draw: np.random.Generator, number: int, grouped: bool) -> pd.DataFrame:
    """One round: clients in any order, some of whom lack a model or a number; validation rows beside them."""
    lines = []
    for model, split in (("centre", "test"), ("personal", "test"), ("centre", "valid")):
        there = [i for i in draw.permutation(len(NAMES)) if draw.random() < 0.8]
        if number == ROUNDS[-1] and model == "personal":
            there = []
        for score in SCORES:
            for i in there:
                value = math.nan if draw.random() < 0.2 else draw.random()
                lines.append((number, NAMES[i], model, split, score, value, int(draw.integers(1, 9)), i))
    frame = pd.DataFrame(lines, columns=[*record.SCHEMA.names[:7], "group"])
    moved = {i: int(draw.integers(3)) for i in range(len(NAMES))}
    return frame.assign(group=frame["group"].map(moved)) if grouped else frame.drop(columns="group")


def folder_of(path: Path, seed: int = 0, grouped: bool = True, split: str = "test") -> Path:
    records, draw = Records(path), np.random.default_rng(seed)
    for number in ROUNDS:
        records.write_scores(number, rows_of(draw, number, grouped))
        records.append_round(number, {"summary": {"centre": {}, "personal": {}}})
    write_json(path / "run.json", {"algorithm": "ifca", "title": "ifca", "seed": seed})
    write_text(path / "spec.toml", f'[run]\nsplit = "{split}"')
    return path


def both(path: Path, score: str | None) -> Iterator[tuple[Run, pd.DataFrame]]:
    """A run from its files, and one in memory, each with the rows that count, found in another way."""
    frame = read_scores(path)
    if "test" in (split := load_run(path).spec["run"]["split"]):
        frame = frame[frame["split"] == split]
    frame = frame if score is None else frame[frame["score"] == score]
    for whole in (False, True):
        run = load_run(path)
        _ = run.scores if whole else None
        yield (run if score is None else run.only(score)), frame


@pytest.mark.parametrize("score", [None, "loss"])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_read_by_parts_is_what_all_scores_say(tmp_path: Path, seed: int, score: str | None) -> None:
    for run, frame in both(folder_of(tmp_path, seed), score):
        assert set(run.models) == set(frame["model"])
        assert set(run.metrics) == set(frame["score"])
        assert run.scored.seen.rounds == ROUNDS
        ever = run.scored.seen.rows
        assert set(ever["client"]) == set(frame["client"])
        assert not ever.duplicated().any()
        known = frame[frame["value"].notna()]
        for (model, name), part in frame.groupby(["model", "score"]):
            here = ever[(ever["model"] == model) & (ever["score"] == name)]
            assert set(here["client"]) == set(part["client"])
            good = known[(known["model"] == model) & (known["score"] == name)]
            assert set(here.loc[here["known"].astype(bool), "client"]) == set(good["client"])
            means = {n: one["value"].mean() for n, one in part.groupby("round")}
            assert history(run, model, name).to_dict() == pytest.approx(means, nan_ok=True)
            weighed = {
                n: (one["value"] * one["rows"]).sum() / one.loc[one["value"].notna(), "rows"].sum()
                for n, one in part.groupby("round")
            }
            assert history(run, model, name, "micro").to_dict() == pytest.approx(weighed, nan_ok=True)
            end = part[part["round"] == part["round"].max()]
            expected = dict(zip(end["client"], end["value"], strict=True))
            found = final(run, model, name)
            assert found.to_dict() == pytest.approx(expected, nan_ok=True)
            assert list(found.index) == sorted(expected)
        was = set(frame.loc[frame["model"] == "personal", "client"])
        assert lost_clients(run, "personal") == sorted(was)  # nobody was scored in the last round


@pytest.mark.parametrize("seed", range(4))
def test_groups_by_round_are_those_of_the_records(tmp_path: Path, seed: int) -> None:
    for run, frame in both(folder_of(tmp_path, seed), None):
        once = frame.drop_duplicates(["round", "client"])
        table = run.scored.groups
        assert table.index.tolist() == sorted(set(frame["round"]))
        assert table.columns.tolist() == sorted(set(frame["client"]))
        told = {(n, who): g for n, who, g in once[["round", "client", "group"]].itertuples(index=False)}
        for number in table.index:
            for who in table.columns:
                group = table.at[number, who]
                assert told.get((number, who)) == (None if math.isnan(group) else group)
        assert run.has_groups


def test_a_run_without_groups_is_known_without_reading_the_column(tmp_path: Path, monkeypatch) -> None:
    path = folder_of(tmp_path, grouped=False)
    monkeypatch.setattr(scored, "score_table", None)
    assert not load_run(path).has_groups
    monkeypatch.undo()
    assert not load_run(path).scored.grouped
    with pytest.raises(KinfolkError, match="has no groups"):
        members(load_run(path))
    for file in (path / "records").iterdir():  # as older versions wrote them
        pq.write_table(pq.read_table(file).drop_columns(list(OPTIONAL)), file)
    assert not load_run(path).has_groups
    assert load_run(path).scored.groups.isna().all(axis=None)


def test_no_more_is_read_than_is_asked_for(tmp_path: Path, monkeypatch) -> None:
    read_so: list[tuple[str, set[str]]] = []
    real = scored.score_table

    def watched(file: Path, columns: Any, coded: bool) -> pa.Table:
        read_so.append((file.stem, set(columns)))
        return real(file, columns, coded)

    path = folder_of(tmp_path)
    monkeypatch.setattr(scored, "score_table", watched)
    run = load_run(path)
    run.scored.end(("group",))
    assert {name for name, _ in read_so} == {"round-000011"}
    read_so.clear()
    list(run.scored.parts(("value",), {3, 4}))
    assert read_so == [(f"round-00000{n}", {"round", "split", "value"}) for n in (3, 4)]
    read_so.clear()
    for _ in range(3):
        history(run, "centre", "loss")
        history(run, "personal", "loss", "worst")
    assert len(read_so) == 2 * len(ROUNDS)  # who was ever scored, and the means; both are kept


def test_show_and_report_never_hold_all_scores(tmp_path: Path, monkeypatch, kinfolk) -> None:
    path = folder_of(tmp_path / "run")

    def all_of_them(*_: object) -> None:
        raise AssertionError("all scores were read at once")

    monkeypatch.setattr(read, "read_scores", all_of_them)
    for line in (["show", str(path)], ["show", str(path), "--json"], ["report", str(path)]):
        code, _, err = kinfolk(*line)
        assert (code, err) == (0, "")


def test_another_split_than_the_own_counts_where_the_own_is_nowhere(tmp_path: Path) -> None:
    run = load_run(folder_of(tmp_path, split="other"))
    frame = read_scores(tmp_path)
    assert len(run.scored.end(("value",))) == (frame["round"] == ROUNDS[-1]).sum()


def test_a_round_with_rows_of_another_split_only_has_none(tmp_path: Path) -> None:
    path = folder_of(tmp_path)
    last = rows_of(np.random.default_rng(1), 12, True)
    Records(path).write_scores(12, last[last["split"] == "valid"])
    assert load_run(path).scored.seen.rounds == ROUNDS


def test_rows_of_another_round_are_refused(tmp_path: Path) -> None:
    path = folder_of(tmp_path)
    (path / "records/round-000004.parquet").rename(path / "records/round-000005.parquet")
    with pytest.raises(KinfolkError, match=r"round-000005\.parquet.* rows of another round"):
        _ = load_run(path).models


def test_names_that_a_terminal_shows_alike_are_one(tmp_path: Path) -> None:
    one = {
        "client": ["a\x1b", "a\\x1b"],
        "model": ["centre"] * 2,
        "split": ["test"] * 2,
        "score": ["loss"] * 2,
    }
    Records(tmp_path).write_scores(1, {**one, "value": [0.5, 0.25], "rows": [1, 1]})
    stored = scored.Stored(tmp_path, "test")
    assert stored.seen.rows["client"].tolist() == [r"a\x1b"]
    assert stored.last("centre", "loss")["value"].tolist() == read_scores(tmp_path)["value"].tolist()


def test_a_torn_file_of_any_round_is_named(tmp_path: Path) -> None:
    path = folder_of(tmp_path)
    file = path / "records/round-000003.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(KinfolkError, match=r"round-000003\.parquet.* cannot be read"):
        _ = load_run(path).metrics


def test_conduct_looks_at_fewer_rounds_where_each_has_many_updates(tmp_path: Path, monkeypatch) -> None:
    one = dict.fromkeys(_SCHEMA.names, [0.0] * 4)
    one |= {"task": ["train"] * 4, "client": list("abcd"), "group": [0] * 4, "rows": [9] * 4}
    for number in range(1, 31):
        write_conduct(tmp_path, number, one)
    run = Run(tmp_path, {})
    for most, rounds in ((10**6, range(1, 31)), (100, range(6, 31)), (1, range(11, 31))):
        monkeypatch.setattr(conduct, "MOST_UPDATES", most)
        assert [number for number, _ in conduct.looked_at(run)] == list(rounds)
