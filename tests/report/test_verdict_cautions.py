"""What a reader must know first, each on both sides of its limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from flat_runs import flat, seeds

from kinfolk.report.read import Run
from kinfolk.report.verdict import Sentence, verdict
from kinfolk.report.verdict.cost import seconds

TWO = ("fedavg", "local")


def rules(runs: list[Run]) -> dict[str, Sentence]:
    return {one.rule: one for one in verdict(runs).sentences}


def both(**more) -> list[Run]:
    return [run for title in TWO for run in seeds(title, 0.8, **more)]


def test_a_healthy_comparison_has_no_warnings():
    assert [one.rule for one in verdict(both()).sentences if one.weight == "warning"] == []


@pytest.mark.parametrize(
    "more",
    [
        {"events": [{"round": 3, "text": "diverged at round 3", "did": "recovered"}]},
        {"exploded": {"c00": "norm 1e9"}},
        {"audit": [{"event": "recovered", "round": 3}]},
    ],
)
def test_runs_that_came_close_to_diverging_are_named(more):
    runs = [
        flat("fedavg", 0, 0.8, **more, spec={"local": {"lr": 0.3}}),
        *seeds("fedavg", 0.8)[1:],
        *seeds("local", 0.8),
    ]
    found = rules(runs)
    assert found["edge"].text.startswith("fedavg came close to diverging in 1 of 6 runs")
    assert "fedavg with a learning rate of 0.1 instead of 0.3" in found["next-rate"].text


def test_clients_that_were_left_out_are_counted():
    runs = [flat("fedavg", s, 0.8, excluded=["c00", "c01"], events=[]) for s in range(3)] + seeds(
        "local", 0.8
    )
    assert "without 2 clients in 3 of 6 runs" in rules(runs)["excluded"].text


def test_other_settings_are_named_and_own_ones_are_by_intention():
    def run(title: str, seed: int, lr: float, **more) -> Run:
        return flat(title, seed, 0.8, spec={"local": {"lr": lr}, "run": {"seed": seed}}, **more)

    unlike = [run(title, s, lr) for title, lr in zip(TWO, (0.1, 0.3), strict=True) for s in range(3)]
    assert "local.lr" in rules(unlike)["settings"].text
    own = [run("fedavg", s, 0.1) for s in range(3)] + [
        run("local", s, 0.3, own={"local.lr": 0.3}) for s in range(3)
    ]
    assert "settings" not in rules(own)
    assert "local.lr" in rules(own)["own-settings"].text


@pytest.mark.parametrize(("rows", "differ"), [(1040, False), (1060, True)])
def test_budgets_that_differ_by_more_than_a_twentieth_are_named(rows, differ):
    facts = {"federation": {"rows": 100, "fingerprint": "a"}}
    runs = seeds("fedavg", 0.8, lines=[{"round": 4, "trained": {"update": rows}}], **facts)
    runs += seeds("local", 0.8, lines=[{"round": 4, "trained": {"update": 1000}}], **facts)
    assert ("epochs" in rules(runs)) == differ


@pytest.mark.parametrize(("extra", "differ"), [(0.0, True), (1.0, False)])
def test_other_rounds_are_named_unless_a_start_was_paid_for(extra, differ):
    longer = seeds("fedavg", 0.8)
    for run in longer:
        run.scores["round"] = run.scores["round"].map({0: 0, 3: 4, 4: 5})
    runs = longer + seeds("local", 0.8, lines=[{"round": 4, "extra": extra}])
    assert ("rounds" in rules(runs)) == differ


def test_uneven_seeds_are_named():
    assert rules(seeds("fedavg", 0.8, 4) + seeds("local", 0.8))["uneven-seeds"].numbers["fewest"] == 3


def test_attackers_are_named_and_scores_are_of_the_others():
    found = rules(both(attackers=["c20", "c21"], federation={"clients": 14, "fingerprint": "a"}))
    assert "In 6 of 6 runs 2 of 14 clients attacked" in found["attackers"].text


def test_clients_nobody_asked_and_replies_nobody_took_are_counted():
    audit = [{"event": "rejected", "client": "c00"}, {"event": "rejected", "client": "c01"}]
    found = rules(both(lines=[{"round": 4, "unheard": 5}], audit=audit))
    assert found["unheard"].numbers["clients"] == 5
    assert "12 replies were rejected (2 clients)" in found["rejected"].text


@pytest.mark.parametrize(("rows", "rough"), [(50, True), (80, False)])
def test_few_test_rows_make_single_clients_uncertain(rows, rough):
    found = rules(both(rows=rows))
    assert ("few-test-rows" in found) == rough
    if rough:
        assert 0.1 < found["few-test-rows"].numbers["reach"] < 0.12


def test_runs_without_the_score_are_left_out_and_counted():
    found = rules([*both(), Run.of({"title": "fedprox", "seed": 0}, {"value": []})])
    assert found["no-scores"].text.startswith("1 of 7 runs has no such scores")


@pytest.mark.parametrize(("many", "few"), [(2, True), (3, False)])
def test_one_method_with_few_seeds_is_cautioned(many, few):
    assert ("few-seeds" in rules(seeds("fedavg", 0.8, many))) == few


def costly(title: str, sent: float, spent: float, value: float = 0.8) -> list[Run]:
    line = {"round": 4, "cohort": 12, "bytes": {"update": {"up": 12 * sent}}, "seconds": {"update": spent}}
    return seeds(title, value, lines=[line])


def test_costs_are_told_beside_those_of_fedavg():
    found = rules(costly("fedavg", 1000, 1.0) + costly("mine", 2500, 3.0, 0.9) + costly("dear", 9000, 1.0))
    assert found["bytes"].text == (
        "mine sends 2.5 kB per client and round, 2.5 times as much as fedavg (1 kB); dear sends most, 9 kB."
    )
    assert "A round of mine takes 3 s, 3 times as long as one of fedavg (1 s)" in found["seconds"].text
    assert "without any network" in found["seconds"].text


@pytest.mark.parametrize(("sent", "words"), [(1090, "about as much as"), (1150, "1.1 times as much as")])
def test_a_tenth_more_is_about_as_much(sent, words):
    assert words in rules(costly("fedavg", 1000, 1.0, 0.7) + costly("mine", sent, 1.0))["bytes"].text


def test_sending_nothing_is_said_so():
    found = rules(costly("fedavg", 1000, 1.0, 0.7) + costly("local", 0, 1.0))
    assert found["bytes"].text == "local sends nothing; fedavg sends 1 kB per client and round."


def test_times_are_in_a_unit_that_suits_them():
    assert [seconds(t) for t in (0.0, 99.0, 7200.0)] == ["0 ms", "99 s", "2 h"]


def test_nothing_is_written_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    verdict(both())
    assert not list(tmp_path.iterdir())
