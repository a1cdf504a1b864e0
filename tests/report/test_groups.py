from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from kinfolk.cli.commands import app
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import read_client_facts, read_scores
from kinfolk.experiment.run import run
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import override
from kinfolk.report.groups import between_seeds, doubtful, members, profiles
from kinfolk.report.groups_table import groups_table, seeds_agree
from kinfolk.report.read import Run, load_run

SPEC = override(
    Experiment(),
    [
        "data.clients=8",
        "data.groups=2",
        "data.rows=30",
        "run.rounds=6",
        "run.models=first",
        "engine.name=batched",
    ],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = override(SPEC, ["algorithm.name=fesem", "algorithm.k=2"])
    return run(spec, tmp_path_factory.mktemp("groups") / "run").folder


def in_memory(groups: list[list[int]], moved: dict[int, dict[str, list[int]]], **more: object) -> Run:
    """A run of as many rounds as there are lists of groups."""
    many = len(groups[0])
    names = [f"c{i}" for i in range(many)]
    scores = {
        "round": np.repeat(np.arange(1, len(groups) + 1), many),
        "client": names * len(groups),
        "value": 0.5,
        "group": [g for row in groups for g in row],
    }
    lines = [{"round": r, "groups": {"moved": m}} for r, m in moved.items()]
    return Run.of({"title": "ifca", "seed": 0, **more}, scores, lines)


def test_groups_in_the_records_are_those_of_the_state(folder: Path) -> None:
    done = run(override(SPEC, ["algorithm.name=ifca", "algorithm.k=2"]), folder.parent / "ifca")
    frame = load_run(done.folder).groups
    assert frame["group"].tolist() == done.state.member.tolist()
    assert list(frame.index) == list(done.state.clients)
    assert frame["margin"].isna().all()  # clients choose by losses that the server never sees


def test_a_method_without_groups_says_so_and_leaves_the_column_empty(folder: Path) -> None:
    done = run(SPEC, folder.parent / "fedavg")
    assert read_scores(done.folder)["group"].isna().all()
    with pytest.raises(KinfolkError, match="fedavg has no groups"):
        members(load_run(done.folder))
    answer = CliRunner().invoke(app, ["groups", str(done.folder)])
    assert isinstance(answer.exception, KinfolkError)
    assert "has no groups" in str(answer.exception)


def test_known_groups_and_labels_of_clients_are_what_the_federation_holds(folder: Path) -> None:
    from kinfolk.federation.sources import build
    from kinfolk.streams import Seed

    federation, facts = build(SPEC.data, Seed(0)), read_client_facts(folder)
    assert facts["known group"].tolist() == federation.truth.tolist()
    for i, client in enumerate(federation.clients):
        y = federation.y[federation.splits["train"].rows(i)].numpy()
        shares = [facts.loc[client, f"label {c}"] for c in range(federation.classes)]
        assert shares == pytest.approx([(y == c).mean() for c in range(federation.classes)])
        assert facts.loc[client, "rows"] == len(y)


def test_the_split_is_no_change_of_mind_and_a_later_move_is() -> None:
    start = {f"c{i}": [0, 1] for i in (1, 3)}
    found = members(in_memory([[0, 1, 0, 1], [0, 1, 1, 1]], {1: start, 2: {"c2": [0, 1]}}))
    assert found["switches"].tolist() == [0, 0, 1, 0]
    assert found["since"].tolist() == [0, 1, 2, 1]
    assert found["steady"].tolist() == [1, 1, 0.5, 1]


def test_rounds_in_which_all_share_one_group_count_for_nobody() -> None:
    found = members(in_memory([[0, 0], [0, 0], [0, 1]], {3: {"c1": [0, 1]}}))
    assert found["steady"].tolist() == [1, 1]


def test_a_planted_difference_is_told_and_noise_is_not() -> None:
    draw = np.random.default_rng(0)
    made = in_memory([[0] * 20 + [1] * 20], {})
    facts = pd.DataFrame(draw.normal(size=(40, 30)), index=[f"c{i}" for i in range(40)])
    facts.columns = [f"column {j}" for j in range(30)]
    facts.iloc[:20, 7] += 3.0
    made.__dict__["client_facts"] = facts
    found = {one.group: one for one in profiles(made)}
    size = (facts["column 7"][:20].mean() - facts["column 7"][20:].mean()) / facts["column 7"].std(ddof=1)
    assert found[0].shares == (f"column 7 {size:+.1f} sd",)
    assert found[1].shares == (f"column 7 {-size:+.1f} sd",)


def test_the_known_group_is_not_given_as_what_members_share() -> None:
    made = in_memory([[0] * 9 + [1] * 9], {})
    made.__dict__["client_facts"] = pd.DataFrame(
        {"known group": [0.0] * 9 + [1.0] * 9}, index=[f"c{i}" for i in range(18)]
    )
    assert all(not one.shares for one in profiles(made))


def test_seeds_that_deal_other_rows_to_a_client_are_not_compared() -> None:
    runs = [in_memory([[0, 0, 1, 1]], {}, seed=seed) for seed in (0, 1)]
    assert between_seeds(runs) == {"ifca": [1.0]}
    for seed, one in enumerate(runs):
        known = [0.0, 0.0, 1.0, 1.0] if seed else [0.0, 1.0, 0.0, 1.0]
        one.__dict__["client_facts"] = pd.DataFrame({"known group": known}, index=["c0", "c1", "c2", "c3"])
    assert between_seeds(runs) == {}
    assert "other rows in each seed" in seeds_agree(runs)[0]


def test_three_seeds_make_three_pairs() -> None:
    runs = [
        in_memory([groups], {}, seed=i) for i, groups in enumerate(([0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]))
    ]
    assert len(between_seeds(runs)["ifca"]) == 3
    assert seeds_agree(runs) == ["ifca: groups of 3 seeds agree with ARI -0.50 to 1.00"]


def test_clients_near_another_group_or_often_elsewhere_are_in_doubt() -> None:
    frame = pd.DataFrame(
        {"margin": [0.9, 0.04, -0.2, np.nan], "steady": [1.0, 1.0, 1.0, 0.4]}, index=list("abcd")
    )
    assert doubtful(frame) == ["b", "c", "d"]


def test_the_table_fits_and_names_every_group(folder: Path) -> None:
    console = Console(width=80)
    with console.capture() as text:
        console.print(groups_table(load_run(folder), clients=True))
    lines = text.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text.get()
    assert sum("client-0" in line for line in lines) >= 8


def test_the_command_prints_a_table_and_json(folder: Path) -> None:
    runner = CliRunner()
    assert "Groups of fesem" in runner.invoke(app, ["groups", str(folder)]).output
    told = json.loads(runner.invoke(app, ["groups", str(folder), "--json"]).output)[0]
    frame = load_run(folder).groups
    assert {row["client"]: row["group"] for row in told["clients"]} == frame["group"].to_dict()
    assert sum(len(one["clients"]) for one in told["groups"]) == len(frame)


def test_records_of_before_are_read_with_empty_groups(folder: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    old = pq.read_table(next((folder / "records").glob("*.parquet"))).drop_columns(["group", "margin"])
    (tmp_path / "records").mkdir()
    pq.write_table(old, tmp_path / "records" / "round-000000.parquet")
    frame = read_scores(tmp_path)
    assert len(frame) == len(old)
    assert frame[["group", "margin"]].isna().all(axis=None)
