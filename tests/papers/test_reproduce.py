"""A paper's tables: read, run, shown next to what was reported, and gone on with."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

from kinfolk.configs import CONFIGS
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.record import read_rounds
from kinfolk.experiment.sections import Experiment
from kinfolk.learning.models import build_model
from kinfolk.papers import local_models
from kinfolk.papers import reproduce as room
from kinfolk.papers.local_models import first_picture, principal
from kinfolk.papers.paper import load_paper
from kinfolk.papers.reproduce import reproduce, rounds_of, row_spec, trust_specs
from kinfolk.papers.reproduction import (
    cells,
    load_tables,
    markdown,
    models_figure,
    notes,
    table_figure,
    terminal_table,
)

PAPERS = sorted(CONFIGS.glob("*/reproduce.toml"))

TINY = """
title = "A paper"
[[tables]]
name = "digits"
title = "Table 1"
spec = "tiny.toml"
columns = [["accuracy", "micro"], ["macro_f1", "pooled"], ["ari", ""]]
picture = "Theirs"
[[tables.rows]]
label = "Theirs"
run = "fesem,k=2"
model = "personal"
reported = ["90.1 ± 1.0", "88.0", "-"]
why = "another network"
[[tables.rows]]
label = "Slower"
run = "fedavg"
set = ["local.lr=0.01"]
"""
ROW = """
[[tables.rows]]
label = "After"
run = "local"
"""
SPEC = """
[data]
clients = 8
[model]
hidden = [8]
[local]
epochs = 5
[run]
rounds = 3
"""  # FeSEM's start is as long as a round
SHORT = SPEC.replace("[local]\nepochs = 5\n", "").replace("rounds = 3", "rounds = 2")


@pytest.fixture
def paper(tmp_path):
    (tmp_path / "reproduce.toml").write_text(TINY)
    (tmp_path / "tiny.toml").write_text(SPEC)
    return load_paper(tmp_path / "reproduce.toml")


@pytest.mark.parametrize("path", PAPERS, ids=lambda p: p.parent.name)
@pytest.mark.parametrize("small", [False, True])
def test_every_row_of_every_paper_has_a_sound_spec(path, small):
    for table in load_paper(path).tables:
        labels = [row.label for row in table.rows]
        assert len(set(labels)) == len(labels)
        assert set(table.curves) <= set(labels)
        assert table.picture in ["", *labels]
        assert table.pseudo in ["", *(row.label for row in table.rows if row.run.startswith("mdicfl"))]
        for row in table.rows:
            spec = row_spec(table, row, path.parent, small, [])
            # It would stop at its first split.
            assert spec.algorithm.name != "clustered_fl" or spec.run.participation == 1
    for one in load_paper(path).trust:
        specs = trust_specs(one, path.parent, small, [])
        assert {spec.algorithm.options["direct"] for spec in specs.values()} == set(one.direct)


@pytest.mark.parametrize("path", PAPERS, ids=lambda p: p.parent.name)
@pytest.mark.parametrize("small", [False, True])
def test_every_row_of_every_paper_has_options_that_its_network_knows(path, small):
    seen = set()
    for table in load_paper(path).tables:
        for row in table.rows:
            model = row_spec(table, row, path.parent, small, []).model
            if repr(model) not in seen:
                seen.add(repr(model))
                build_model(model.name, (3, 32, 32), 10, model.options)
    assert seen


def test_fesems_tables_have_every_row_and_a_reason_for_every_difference():
    """All rows of others, FeSEM with 2, 3 and 4 centres and matched; centres, personal, fine-tuned."""
    others = ["NoFed", "FedSGD", "FedAvg", "FedDist", "FedDist+WS", "Robust(TKM)", "FedCluster"]
    others += ["HypoCluster(3)", "FedDANE", "FedProx"]
    ours = ["FeSEM(2)", "FeSEM(3)", "FeSEM(4)", "FeSEM-MA(3)"]
    tables = {table.name: table for table in load_paper(CONFIGS / "fesem/reproduce.toml").tables}
    for name in ("femnist", "celeba"):
        table = tables[name]
        rows = {row.label: row for row in table.rows}
        assert [label for label, row in rows.items() if row.reported] == [*others, *ours]
        assert rows["IFCA(3)"].run == "ifca,k=3", "the eleventh, without figures"
        assert table.why
        assert all(row.why for row in rows.values() if row.reported)
        for label in ours:
            for model in ("personal", "fine-tuned"):
                row = rows[f"{label}, {model}"]
                assert (row.run, row.model) == (rows[label].run, model), "the same run, another model"
        assert rows["FedAvg, fine-tuned"].run == rows["FedAvg"].run
        assert {tuple(column) for column in table.columns} == {
            (score, over) for score in ("accuracy", "macro_f1") for over in ("micro", "macro")
        }
        assert {"FeSEM(2)", "FeSEM(3)", "FeSEM(4)"} <= set(table.curves)
        assert table.picture
        assert table.pictured == 400
    assert {"rotated-mnist-alpha100", "rotated-mnist-alpha3", "digits"} <= set(tables)


def test_reasons_and_times_are_told_below_the_table(paper, tmp_path):
    reproduce(paper, tmp_path / "runs", tmp_path, seeds=2)
    (held,) = load_tables(tmp_path / "runs")
    theirs, slower = held.facts["rows"]
    twice = {**theirs, "label": "Theirs, centre", "model": "centre", "why": ""}
    rows = [{**slower, "label": "FedAvg"}, theirs, twice]
    table = replace(held, facts={**held.facts, "rows": rows, "why": "fewer rounds"})

    def median(row):
        facts = [fact for name in row["runs"] for fact in read_rounds(held.folder / name) if fact["round"]]
        phases = [{k: v for k, v in fact["seconds"].items() if "score" not in k} for fact in facts]
        apart = ("checkpoint", "pictures")
        return np.median([sum(v for k, v in one.items() if k not in apart) for one in phases])

    base, other = median(slower), median(theirs)
    first, second, start, third = told = notes(table, cells(table))
    assert (first, second) == ("all rows: fewer rounds", "Theirs: another network")
    assert start == "rounds and what a start was worth: Theirs 2+1; Theirs, centre 2+1"
    wanted = f"FedAvg {base:.3g}; Theirs {other:.3g} ({other / base:.2f} x)"
    assert third == f"seconds a round, training only (median): {wanted}", "one run is told once"
    assert all(f"- {line}" in markdown(table).splitlines() for line in told)
    alone = ["Theirs: another network", "rounds and what a start was worth: Theirs 2+1"]
    assert notes(held, cells(held)) == alone, "without FedAvg there is nothing beside it"


def test_a_paper_is_run_shown_and_gone_on_with(paper, tmp_path):
    out = tmp_path / "runs"
    reproduce(paper, out, tmp_path, seeds=2)
    table = load_tables(out)[0]
    first, second = cells(table)
    assert first["reported"] == ["90.1 ± 1.0", "88.0", "-"]
    assert first["model"] == "personal"
    assert [n["seeds"] for n in first["numbers"]] == [2, 2, 2]
    assert second["model"] == "centre"
    assert second["obtained"][2] == "-", "one model has no groups"
    lines = (out / "digits" / "fesem-k=2-seed0" / "rounds.jsonl").read_text().splitlines()
    told = json.loads(lines[-1])
    by_hand = [
        json.loads((out / "digits" / f"fesem-k=2-seed{k}" / "rounds.jsonl").read_text().splitlines()[-1])
        for k in (0, 1)
    ]
    mean = np.mean([one["summary"]["personal"]["accuracy"]["micro"] for one in by_hand])
    assert first["numbers"][0]["mean"] == pytest.approx(mean)
    assert told["summary"]["centre"] != told["summary"]["personal"]
    assert "another network" in markdown(table)
    assert terminal_table(table).row_count == 3
    assert table_figure(table, out / "digits" / "figure.png").stat().st_size > 10_000
    held = json.loads((out / "digits" / "picture.json").read_text())
    assert len(held["client"]) == len(held["x"]) == len(held["group"]) == 8
    reproduce(paper, out, tmp_path, seeds=2)
    again = (out / "digits" / "fesem-k=2-seed0" / "rounds.jsonl").read_text().splitlines()
    assert again == lines, "seconds and all: nothing was run twice"


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('run = "fedavg"', 'runs = "fedavg"', "no such key; did you mean 'run'"),
        ('"88.0", "-"', '"88.0"', "one for each column"),
        ('label = "Slower"', "", "label"),
    ],
)
def test_a_faulty_paper_is_one_line(old, new, match, tmp_path):
    (tmp_path / "reproduce.toml").write_text(TINY.replace(old, new))
    with pytest.raises(KinfolkError, match=match):
        load_paper(tmp_path / "reproduce.toml")


CLUSTERS = """
title = "Another paper"
[[tables]]
name = "digits"
title = "Table 1"
spec = "tiny.toml"
columns = [["accuracy", "macro"]]
costs = ["down", "up", "server", "effective"]
pseudo = "Ours"
[[tables.rows]]
label = "Ours"
run = "mdicfl,k=2,start.name=random_partition,pseudo.samples=2,search.iterations=2,generator.iterations=2"
[[tables.rows]]
label = "IFCA"
run = "ifca,k=2"
reported = ["1.0"]
[[tables.rows]]
label = "Later"
run = "local"
"""


def test_costs_and_pseudo_rows_stand_beside_what_was_obtained(tmp_path, monkeypatch):
    (tmp_path / "reproduce.toml").write_text(CLUSTERS)
    (tmp_path / "tiny.toml").write_text(SHORT)
    paper, built = load_paper(tmp_path / "reproduce.toml"), []
    make = room.build
    monkeypatch.setattr(room, "build", lambda data, seed: built.append(seed) or make(data, seed))
    some = ["Ours", "IFCA"]
    assert rounds_of(paper, 2, tmp_path, False, [], some) == 2 * 2 * 2
    reproduce(paper, tmp_path / "out", tmp_path, seeds=1, only=some)
    assert len(built) == 1, "for all rows of a seed"
    (table,) = load_tables(tmp_path / "out")
    ours, ifca, later = cells(table)
    facts = [
        [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
        for row in table.facts["rows"][:2]
        for run in table.runs(row)
    ]
    model = 4 * (64 * 8 + 8 + 8 * 10 + 10) / 1e6
    assert ours["costs"]["down"] == pytest.approx(model)
    assert ifca["costs"]["down"] == pytest.approx(2 * model), "all K models"
    # Six numbers for the shape of rows and ten for the label distribution, once in two rounds.
    assert ours["costs"]["up"] == pytest.approx(model + 4 * (6 + 10) / 2 / 1e6)
    seconds = [fact["seconds"]["server"] for fact in facts[0] if "cohort" in fact]
    assert ours["costs"]["server"] == pytest.approx(np.median(seconds))
    assert ours["costs"]["effective"] in (1, 2)
    assert np.isnan(ifca["costs"]["effective"])
    assert later["obtained"] == ["-"], "was not asked for"
    lines = markdown(table).splitlines()
    assert lines[2].endswith("| MB down | MB up | server s | differ |")
    assert len({line.count("|") for line in lines[2:7]}) == 1
    assert terminal_table(table).row_count == 4
    pseudo = json.loads((tmp_path / "out" / "digits" / "pseudo" / "pseudo.json").read_text())
    assert list(pseudo["samplers"]) == ["back_search", "generator"]
    assert pseudo["round"] == 2


def test_a_cost_or_a_row_that_nobody_knows_is_one_line(tmp_path):
    (tmp_path / "reproduce.toml").write_text(CLUSTERS.replace('"effective"]', '"efective"]'))
    with pytest.raises(KinfolkError, match="digits: costs = 'efective': did you mean 'effective'"):
        load_paper(tmp_path / "reproduce.toml")
    (tmp_path / "reproduce.toml").write_text(CLUSTERS)
    with pytest.raises(KinfolkError, match="--row = 'IFKA': did you mean 'IFCA'"):
        reproduce(load_paper(tmp_path / "reproduce.toml"), tmp_path / "out", tmp_path, only=["IFKA"])


def test_settings_of_algorithms_belong_to_the_rows(paper, tmp_path):
    with pytest.raises(KinfolkError, match="a row names its own algorithm"):
        reproduce(paper, tmp_path / "runs", tmp_path, changes=["algorithm.k=3"])


def test_a_table_that_is_not_there(paper):
    with pytest.raises(KinfolkError, match="did you mean 'digits'"):
        paper.only(["digit"])


def test_principal_axes_are_those_of_the_covariance():
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 5)) * [5, 3, 1, 1, 1])
    place, share = principal(points)
    here = points.numpy() - points.numpy().mean(0)
    values, vectors = np.linalg.eigh(here.T @ here)
    wanted = here @ vectors[:, ::-1][:, :2]
    np.testing.assert_allclose(np.abs(place.numpy()), np.abs(wanted), atol=1e-9)
    np.testing.assert_allclose(share.numpy(), values[::-1][:2] / values.sum(), atol=1e-12)


def test_principal_axes_are_the_same_in_blocks_of_columns(monkeypatch):
    points = torch.from_numpy(np.random.default_rng(5).normal(size=(7, 40)) + 9).float()
    whole, share = principal(points)
    monkeypatch.setattr(local_models, "BLOCK", 9)
    place, again = principal(points)
    left, size, _ = np.linalg.svd(points.numpy().astype("float64") - points.double().mean(0).numpy())
    assert np.allclose(place.abs().numpy(), np.abs(left[:, :2] * size[:2]), atol=1e-5)
    assert np.allclose(share.numpy(), size[:2] ** 2 / (size**2).sum())
    torch.testing.assert_close(again, share)
    torch.testing.assert_close(place.abs(), whole.abs())


def test_models_from_one_start_are_grouped_and_drawn(tmp_path):
    (tmp_path / "spec.toml").touch()
    parts = build_parts(Experiment())
    held = first_picture(tmp_path / "spec.toml", [], 5, 4)
    assert held["client"] == list(parts.federation.clients)
    assert held["truth"] == parts.federation.truth.tolist()
    pairs = set(zip(held["group"], held["truth"], strict=True))
    assert len(pairs) == 4, "four turns, four groups, one for each"
    assert models_figure(held, tmp_path / "models.png").stat().st_size > 10_000


def test_worst_mean_and_best_clients_are_drawn_over_the_rounds(tmp_path):
    ends = TINY.replace('["accuracy", "micro"], ["macro_f1", "pooled"], ["ari", ""]',
                        '["accuracy", "worst"], ["accuracy", "best"], ["accuracy", "macro"]')  # fmt: skip
    (tmp_path / "reproduce.toml").write_text(ends)
    (tmp_path / "tiny.toml").write_text(SPEC)
    reproduce(load_paper(tmp_path / "reproduce.toml"), tmp_path / "out", tmp_path, seeds=1)
    (table,) = load_tables(tmp_path / "out")
    text = table_figure(table, tmp_path / "figure.svg").read_text()
    assert [f"{over} accuracy, %" in text for over in ("worst", "macro", "best")] == [True] * 3


def test_two_rows_of_one_run_are_run_once(tmp_path):
    twice = TINY.replace('run = "fedavg"\nset = ["local.lr=0.01"]', 'run = "fesem,k=2"').replace(
        "Theirs", "A"
    )
    (tmp_path / "reproduce.toml").write_text(twice)
    (tmp_path / "tiny.toml").write_text(SPEC)
    told = []
    reproduce(
        load_paper(tmp_path / "reproduce.toml"), tmp_path / "out", tmp_path, seeds=1,
        watch=lambda name, seed: lambda event, facts: told.append(event),
    )  # fmt: skip
    assert (told.count("round"), told.count("resume")) == (3, 0)
    (table,) = load_tables(tmp_path / "out")
    assert [row["model"] for row in cells(table)] == ["personal", "centre"]


def test_data_that_are_missing_are_missed_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path / "none"))
    late = TINY.replace('set = ["local.lr=0.01"]', 'set = ["data.name=usps", "data.shift=none"]')
    (tmp_path / "reproduce.toml").write_text(late)
    (tmp_path / "tiny.toml").write_text(SPEC)
    with pytest.raises(KinfolkError, match=r"data\.name = 'usps': not in"):
        reproduce(load_paper(tmp_path / "reproduce.toml"), tmp_path / "out", tmp_path, seeds=1)
    assert not (tmp_path / "out").exists()


TRUST = """
[[trust]]
name = "opinions"
title = "Figure 3"
spec = "tiny.toml"
run = "slfed,images.kind=noise,images.count=20,shares.scheme=plain"
reported = "lists below half"
"""


def test_opinions_are_traced_shown_and_gone_on_with(tmp_path, kinfolk):
    (tmp_path / "reproduce.toml").write_text(TINY + TRUST)
    (tmp_path / "tiny.toml").write_text(SHORT)
    paper = load_paper(tmp_path / "reproduce.toml")
    assert rounds_of(paper, 3, tmp_path, False, []) == 3 * 2 * 2 + 2 * 2
    only = paper.only(["opinions"])
    assert (only.tables, [one.direct for one in only.trust]) == ([], [[1, 2]])
    command = ("reproduce", str(tmp_path / "reproduce.toml"), "--table", "opinions", "--out", tmp_path / "r")
    code, out, err = kinfolk(*command)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[:2] == ["Figure 3 (1 seed)", "reported: lists below half"]
    assert [line.split()[:2] for line in lines[3:7]] == [["1", "1"], ["1", "2"], ["2", "1"], ["2", "2"]]
    assert (tmp_path / "r/opinions/figure.png").stat().st_size > 10_000
    held = [json.loads((tmp_path / f"r/opinions/direct{d}/trust.json").read_text()) for d in (1, 2)]
    assert [(one["direct"], len(one["rounds"])) for one in held] == [(1, 2), (2, 2)]
    code, text, err = kinfolk(*command, "--json")
    assert (code, json.loads(text)) == (0, {"opinions": held}), err


def test_a_row_that_breaks_down_is_told_and_the_others_go_on(tmp_path):
    broken = TINY.replace('set = ["local.lr=0.01"]', 'set = ["local.lr=1e30", "run.rounds=5"]')
    (tmp_path / "reproduce.toml").write_text(broken.replace("[[tables.rows]]", ROW + "[[tables.rows]]", 1))
    (tmp_path / "tiny.toml").write_text(SPEC)
    reproduce(load_paper(tmp_path / "reproduce.toml"), tmp_path / "out", tmp_path, seeds=1)
    (table,) = load_tables(tmp_path / "out")
    rows = {row["label"]: row for row in cells(table)}
    assert rows["Slower"]["obtained"][0] == "-"
    assert rows["Slower"]["why"] == "broke down in 1 of 1 seeds"
    assert rows["Theirs"]["why"] == "another network"
    assert all(rows[label]["obtained"][0] != "-" for label in ("Theirs", "After"))


def test_a_run_that_has_not_finished_does_not_count(paper, tmp_path, monkeypatch):
    """What was scored before the first round is no result."""
    reproduce(paper, tmp_path / "out", tmp_path, seeds=2)
    (table,) = load_tables(tmp_path / "out")
    before = {row["label"]: row for row in cells(table)}
    cut = table.folder / table.facts["rows"][0]["runs"][1] / "run.json"
    facts = json.loads(cut.read_text())
    cut.write_text(json.dumps({**facts, "status": "running"}))
    label = table.facts["rows"][0]["label"]
    row = {row["label"]: row for row in cells(table)}[label]
    assert (row["some"], before[label]["some"]) == ("1 of 2 seeds", "")
    assert [n["seeds"] for n in row["numbers"]] == [1] * len(table.columns)
    assert f"| {label} (1 of 2 seeds) |" in markdown(table)
    # Nor does it cut short the curve of the seed that has.
    drawn, plot = [], Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda a, x, *b, **c: drawn.append(len(x)) or plot(a, x, *b, **c))
    for late in [None, *sorted(cut.with_name("records").iterdir())[1:]]:
        if late:
            late.unlink()
        table_figure(load_tables(tmp_path / "out")[0], tmp_path / "figure.svg")
    rows = len(table.facts["rows"])
    assert drawn[-rows:] == drawn[:rows] == [3, 4], "two rounds after a start, and three"
