"""A method that lost clients does not gain by it: it is marked, and not ranked."""

from __future__ import annotations

import math

import pytest
from rich.console import Console
from small_runs import go, rounds_of

from kinfolk.contract.spoil import Passing
from kinfolk.experiment import run
from kinfolk.experiment.best import Best
from kinfolk.experiment.score import reached
from kinfolk.report.diverged import lost_clients, scored_clients
from kinfolk.report.figures import all_series, comparison_figure
from kinfolk.report.read import Run, load_run
from kinfolk.report.tables import comparison_frame, comparison_table, run_table
from kinfolk.types import Stack

NAMES = [f"c{i:02}" for i in range(12)]


def recorded(title: str, end: dict[str, float], seed: int = 0) -> Run:
    """A run whose clients all scored 10 % at first, and some of them so at the end."""
    scores = [(0, who, 0.1) for who in NAMES] + [(5, who, value) for who, value in end.items()]
    rounds, clients, values = zip(*scores, strict=True)
    return Run.of(
        {"title": title, "seed": seed},
        {"round": list(rounds), "client": list(clients), "value": list(values), "rows": 10},
        [{"round": 0, "summary": {"centre": {}}}, {"round": 5, "summary": {"centre": {}}}],
    )


SOUND = recorded("fedavg", dict.fromkeys(NAMES, 0.6))
FIVE = recorded("fesem_ma", dict.fromkeys(NAMES[:5], 0.809))
NOBODY = recorded("feddc", {})


def text_of(thing: object) -> str:
    console = Console(width=80)
    with console.capture() as text:
        console.print(thing)
    return text.get()


def test_the_fewest_clients_of_all_do_not_top_the_comparison():
    frame = comparison_frame([FIVE, SOUND, NOBODY])
    assert list(frame["algorithm"]) == ["fedavg", "fesem_ma", "feddc"]
    assert frame["lost"].tolist() == [0, 1, 1]
    assert frame["clients"].tolist() == [12, 5, 0]
    assert frame["everyone"].tolist() == [12, 12, 12]
    assert frame["apart"].tolist()[1:] == [None, None], "they are not compared"
    assert math.isnan(frame["macro"].tolist()[2]), "scores of rounds ago are none"


def test_the_table_says_over_how_many_clients_a_mean_is():
    table, notes = comparison_table([FIVE, SOUND, NOBODY])
    text = text_of(table)
    assert "5 of 12" in text
    assert "0 of 12" in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.index("fedavg") < text.index("fesem_ma")
    lost = [note for note in notes if "no centre score" in note]
    assert lost[0] == (
        "fesem_ma seed 0: no centre score of 7 clients, whose models are no use: c05, c06, c07 and 4 others"
    )


def test_one_seed_that_lost_clients_is_enough():
    other = recorded("fesem_ma", dict.fromkeys(NAMES, 0.9), seed=1)
    row = comparison_frame([FIVE, other, SOUND]).iloc[1]
    assert (row["algorithm"], row["lost"], row["runs"], row["clients"]) == ("fesem_ma", 1, 2, 5)


def test_a_run_on_show_says_it_as_well():
    text = text_of(run_table(FIVE))
    assert "5 of 12" in text
    assert "models are no use" in " ".join(text.split())
    assert " of 12" not in text_of(run_table(SOUND)).replace("Scores of 12", "")


def test_the_figure_puts_it_last_and_says_why(tmp_path):
    series = {one.label: one.failure for one in all_series([FIVE, SOUND, NOBODY], "accuracy")}
    assert series == {"fesem_ma": "5 of 12 clients", "fedavg": "", "feddc": "0 of 12 clients"}
    assert comparison_figure([FIVE, SOUND], tmp_path / "c.png").is_file()


def test_clients_that_were_never_scored_are_not_lost():
    some = Run.of(
        {"title": "a", "seed": 0},
        {"round": [0, 5], "client": "ann", "value": 0.5},
        [{"round": 5, "summary": {}}],
    )
    assert lost_clients(some, "centre") == []
    told = Run.of(
        {"title": "a", "seed": 0},
        {"round": [0, 5], "client": "ann", "value": 0.5},
        [{"round": 5, "summary": {}, "lost": {"centre": ["bob"]}}],
    )
    assert lost_clients(told, "centre") == ["bob"]
    assert scored_clients(told, "centre", "accuracy") == (1, 2)


def test_no_round_is_the_best_and_no_target_is_reached_by_losing_clients():
    def rated(value: float, **more: int) -> dict[str, dict[str, dict[str, float]]]:
        return {"centre": {"accuracy": {"macro": value, **more}}}

    assert Best().after(0, rated(0.5)).after(1, rated(0.9, lost=7)).round == 0
    assert not reached(rated(0.9, lost=1), "accuracy", 0.8)
    assert reached(rated(0.9, clients=12), "accuracy", 0.8)


@pytest.fixture
def unscored(monkeypatch):
    """From round 2 on, two clients' scores are no numbers."""
    usual = run.make

    class Broken(Passing):
        def replies(self, request, context):
            for reply in super().replies(request, context):
                bad = request.task.startswith("score.") and context.round >= 2
                if bad and reply.clients[0] in ("client-01", "client-03"):
                    loss = reply.body["loss"] * math.nan
                    reply = Stack(reply.clients, reply.size, {**reply.body, "loss": loss})
                yield reply

    monkeypatch.setattr(run, "make", lambda *given: Broken(usual(*given), lambda request, reply: reply))


def test_records_name_who_was_lost(tmp_path, unscored):
    result = go(tmp_path / "r", "data.test=local", "run.rounds=3")
    by = result.summary["centre"]["accuracy"]
    assert (by["clients"], by["lost"]) == (2, 2)
    assert "2 of 4 clients" in repr(result)
    assert "2 of 4 clients" in result._repr_html_()
    lines = rounds_of(tmp_path / "r")
    assert ["lost" in line for line in lines] == [False, False, True, True]
    assert lines[-1]["lost"] == {"centre": ["client-01", "client-03"]}
    assert lost_clients(load_run(tmp_path / "r"), "centre") == ["client-01", "client-03"]
