"""A score that is written down in two places, as docs/extend/recipes.md shows, is everywhere."""

import re
from pathlib import Path

import pytest
from rich.console import Console
from small_runs import go

from kinfolk.experiment.record import read_rounds, read_scores
from kinfolk.learning.metrics import RULES
from kinfolk.report.figures import comparison_figure
from kinfolk.report.read import load_runs
from kinfolk.report.tables import comparison_table, run_table
from kinfolk.scores import SCORES

PAGE = Path(__file__).parents[2] / "docs" / "extend" / "recipes.md"


@pytest.fixture
def recipe():
    """The page's block, executed; what it has registered is taken back."""
    section = PAGE.read_text().split("## A score")[1].split("\n## ")[0]
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1], {})
    yield
    for registry in (RULES, SCORES):
        del registry["brier"]


def printed(table):
    console = Console(width=80)
    with console.capture() as text:
        console.print(table)
    return text.get()


@pytest.mark.usefixtures("recipe")
@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_new_score_is_in_the_records_the_tables_and_the_figure(tmp_path, engine):
    folder = tmp_path / "run"
    result = go(folder, f"engine.name={engine}", "run.rounds=2")
    frame = read_scores(folder)
    brier = frame[(frame["score"] == "brier") & (frame["round"] == 2)]
    assert list(brier["client"]) == sorted(set(frame["client"]))
    assert brier["value"].between(0, 2).all()
    assert result.summary["centre"]["brier"]["macro"] == pytest.approx(brier["value"].mean())
    assert result.summary["centre"]["brier"]["worst"] == brier["value"].max(), "lower is better"
    assert "brier" in read_rounds(folder)[-1]["summary"]["centre"]
    runs = load_runs(folder)
    assert "brier" in printed(run_table(runs[0]))
    assert "Brier score, lower is better" in printed(comparison_table(runs, "brier")[0])
    assert comparison_figure(runs, tmp_path / "figure.png", "brier").stat().st_size > 10_000


@pytest.mark.usefixtures("recipe")
def test_a_run_may_stop_at_a_target_of_the_new_score(tmp_path):
    reason = go(tmp_path / "run", "run.target_score=brier", "run.target=0.89", "run.rounds=9").reason
    assert reason == "brier reached 0.89"


def test_the_page_and_the_registries_are_left_as_they_were():
    assert "brier" not in RULES
    assert "brier" not in SCORES
