"""Advice in words and as a table, from its facts alone."""

from __future__ import annotations

import pytest
from rich.console import Console

from kinfolk.report.advice import advice_table, headline, next_lines, plan_lines

PLAN = {"search": 216, "count": 144, "trials": 1200, "cost": 1560, "seeds": 5, "rounds": 60}
LOOK = {"clients": 24, "of": 24, "training rows": [12, 48.0, 300], "validation rows": 1288, "classes": 0}


def row(answer, mean, chosen=False, gain=None, apart=True, **more):
    duel = None if gain is None else {"gain": gain, "low": gain - 0.01, "high": gain + 0.01, "apart": apart}
    return {
        "answer": answer, "method": f"{answer} with a long title", "model": "fine-tuned", "chosen": chosen,
        "mean": mean, "std": 0.012, "rise": 0.004, "diverged": 0, "against": duel,
        "bytes_per_client_round": 30080.0, **more,
    }  # fmt: skip


def facts(rows, score="accuracy", **advice):
    told = {"answer": "fedavg", "confidence": "low", "reason": "why", "doubts": ["so"], "longer": False}
    return {
        "advice": told | advice, "score": score, "evidence": rows, "plan": PLAN, "seconds": 65.0,
        "groups": {"reason": "One group."}, "spent": {"search": 116.0, "trials": 600.0},
    }  # fmt: skip


def printed(told):
    table, notes = advice_table(told)
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table)
    return captured.get(), notes


def test_the_table_has_the_best_first_and_fits_80_columns():
    text, notes = printed(
        facts(
            [
                row("local", 0.7, gain=-0.1),
                row("fedavg", 0.8, True),
                row("ifca", 0.81, gain=0.005, apart=False),
            ]
        )
    )
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    places = [
        next(i for i, line in enumerate(lines) if word in line) for word in ("ifca", "* fedavg", "local")
    ]
    assert places == sorted(places)
    assert "= +0.5±1.0" in text
    assert "-10.0±1.0" in text
    assert "80.0 ± 1.2" in text
    assert "because why" in notes
    assert "doubt: so" in notes
    assert "groups, as choose-k counts them: One group." in notes
    assert "spent: 716 of 1,560 rounds' worth of training, 60 s" in notes


def test_errors_are_told_in_their_own_sign():
    """Scores are compared with larger better; a smaller error is shown as a minus."""
    text, _ = printed(facts([row("local", 2.5, gain=-0.5), row("fedavg", 2.0, True)], "mse"))
    assert "+0.5±0.01" in text
    assert text.index("fedavg") < text.index("local"), "the smaller error first"
    assert "-0.004" in text, "an error that became better fell"


def test_what_diverged_comes_last_without_a_score():
    text, _ = printed(facts([row("fedavg", 0.9, diverged=2), row("local", 0.5, True)]))
    assert text.index("local") < text.index("fedavg")
    assert "diverged" in text


@pytest.mark.parametrize(
    ("advice", "line"),
    [
        ({"answer": "local"}, "Advice: let every client train alone (local). Confidence: low."),
        ({"answer": "fine-tuned"}, "Advice: one model for all, fine-tuned by every client (fedavg_tuned)."),
        (
            {"answer": "groups", "k": 3, "method": "fesem_shared k=3", "model": "fine-tuned"},
            "Advice: a model for each of 3 groups, fine-tuned by every client (fesem_shared).",
        ),
        ({"answer": "unclear", "reason": "Cannot say: no."}, "Cannot say: no."),
    ],
)
def test_the_advice_is_one_sentence(advice, line):
    assert headline(facts([], **advice)).startswith(line)


def test_what_comes_next_depends_on_the_answer():
    run = next_lines(facts([]), "runs/a", "mine")
    assert run[0] == "kinfolk run runs/a/advice.toml --out runs/advised"
    assert next_lines(facts([], longer=True), "runs/a", "mine")[-1] == "kinfolk advise mine --budget 3120"
    assert next_lines(facts([], answer="unclear", longer=True), "a", "mine") == [
        "kinfolk advise mine --budget 3120"
    ]
    assert "--seeds 10" in next_lines(facts([], answer="unclear"), "a", "mine")[0]


def test_the_plan_is_told_before_anything_is_spent():
    told = {"look": LOOK | {"notes": ["odd"], "too_little": ""}, "validation": "held out", "plan": PLAN}
    lines = plan_lines(told | {"estimate": 120.0})
    assert (
        lines[0]
        == "24 clients, 12 to 300 training rows, median 48, 1,288 validation rows, numbers to predict"
    )
    assert lines[1:3] == ["note: held out", "note: odd"]
    assert lines[3].startswith(
        "plan: at most 1,560 rounds' worth of training (settings 216, groups 144, trials 1,200"
    )
    assert lines[3].endswith("5 seeds of 60 rounds), about 2 minutes")
    assert not plan_lines(told | {"estimate": 0})[3].endswith("s")
