"""Whether a comparison says that its runs still move."""

from __future__ import annotations

import pytest

from kinfolk.report.convergence import convergence_note, last_quarter
from kinfolk.report.read import Run
from kinfolk.report.tables import comparison_table


def run(title, seed, curve, score="accuracy", model="centre"):
    scores = {"round": list(curve), "client": "a", "value": list(curve.values()), "rows": 9}
    return Run.of({"title": title, "seed": seed}, {**scores, "score": score, "model": model})


def test_the_change_is_that_of_the_mean_over_seeds_since_three_quarters():
    runs = [
        run("fedavg", 0, {0: 0.1, 5: 0.2, 10: 0.5, 15: 0.6, 20: 0.7}),
        run("fedavg", 1, {0: 0.1, 5: 0.2, 10: 0.5, 15: 0.8, 20: 0.82}),
    ]
    assert last_quarter(runs) == {("fedavg", "centre"): (pytest.approx(0.76), pytest.approx(0.06))}
    assert convergence_note(runs) == (
        "not converged: fedavg +6.0 points in the last quarter of the rounds; ranks may still change"
    )


@pytest.mark.parametrize(
    ("gain", "settled"), [(0.009, True), (0.011, False), (-0.009, True), (-0.011, False)]
)
def test_one_point_is_the_limit_in_both_directions(gain, settled):
    note = convergence_note([run("local", 0, {0: 0.1, 75: 0.5, 100: 0.5 + gain})])
    assert note.startswith("converged" if settled else "not converged")


@pytest.mark.parametrize(("end", "settled"), [(0.982, True), (0.979, False)])
def test_an_error_may_move_by_a_fiftieth_of_its_value_and_gains_when_it_falls(end, settled):
    note = convergence_note([run("local", 0, {0: 9.0, 75: 1.0, 100: end}, "mse")])
    assert note.startswith("converged" if settled else "not converged: local +2.1 %")


def test_too_few_evaluations_say_nothing():
    assert convergence_note([run("local", 0, {0: 0.1, 20: 0.9})]) is None
    assert convergence_note([run("local", 0, {0: 0.1, 9: 0.5, 20: 0.9})]) is None
    assert convergence_note([run("local", 0, {0: 0.1})]) is None


def test_the_note_stands_below_the_table():
    runs = [run("local", seed, {0: 0.1, 15: 0.9, 20: 0.9}) for seed in (0, 1)]
    assert comparison_table(runs)[1][0].startswith("converged")
