"""The table and the figure of pseudo rows, from made-up facts."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from kinfolk.papers.pseudo_figure import pseudo_figure, pseudo_tables
from kinfolk.report.read import read_facts


def facts_of(*samplers: str, colours: int = 1, images: bool = True, k: int = 3):
    draw = np.random.default_rng(0)
    shape = (k, 4, 2, 6, 6) if colours == 1 else (k, 4, 2, 6, 6, 3)
    one = {
        "confidence": (0.1 + 0.8 * np.eye(k)).tolist(),
        "distance": [6.0, 7.0, 8.0, 12.0],
        "correlation": [0.1, 0.3, 0.5, 0.7],
        "near": {"bound": 6.5, "share": 0.25},
        "alike": {"bound": 0.6, "share": 0.25},
        "images": draw.integers(0, 256, shape).tolist() if images else [],
    }
    test = {"rows": 3, "distance": [6.5, 7.5, 9.0], "correlation": [0.5, 0.55, 0.6]}
    told = {"title": "mdicfl k=3", "federation": "a $5 federation", "round": 7, "members": [1] * k}
    return {**told, "test": test, "training_rows": 1234, "samplers": dict.fromkeys(samplers, one)}


def test_the_tables_say_own_others_and_what_was_checked():
    tables, notes = pseudo_tables(facts_of("back_search", "generator"))
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(tables[1])
    text = console.export_text()
    assert "Probability of the class asked for, %: generator" in text
    assert [line.split()[-3:] for line in text.splitlines()[-3:]] == [
        ["90.0", "10.0", "10.0"],
        ["10.0", "90.0", "10.0"],
        ["10.0", "10.0", "90.0"],
    ]
    assert "own 90.0 %, others 10.0 %" in notes[0]
    assert "25.0 % near a training row (under 6.5; nearest 6)" in notes[0]
    assert "25.0 % alike (over 0.60; highest 0.70)" in notes[0]
    assert "1,234 training rows" in notes[2]
    assert notes[-1] == "models: mdicfl k=3, round 7"


def test_an_empty_cluster_counts_for_nothing_in_the_means():
    facts = facts_of("generator")
    facts["samplers"]["generator"]["confidence"][0] = [0.5, 0.5, 0.5]
    assert "own 90.0 %, others 10.0 %" in pseudo_tables({**facts, "members": [0, 3, 3]})[1][0]


def test_one_cluster_has_no_others():
    assert "own 90.0 %;" in pseudo_tables(facts_of("generator", k=1))[1][0]


@pytest.mark.parametrize(
    ("facts", "tall", "wide"),
    [
        (facts_of("back_search", "generator", colours=3), 2, True),
        (facts_of("generator", images=False), 1, False),
    ],
)
def test_the_figure_has_a_line_of_panels_for_each_sampler(tmp_path, facts, tall, wide):
    page = imread(pseudo_figure(facts, tmp_path / "new" / "p.png"))
    assert page.shape[0] == pytest.approx(150 * (2.9 * tall + 0.4), abs=1)
    assert page.shape[1] == pytest.approx(150 * 2.2 * (5.95 if wide else 3.45), abs=1)
    assert page[..., :3].std() > 0.05


def test_facts_are_read_from_the_folder(tmp_path):
    facts = facts_of("generator")
    (tmp_path / "pseudo.json").write_text(json.dumps(facts))
    assert read_facts(tmp_path, "pseudo") == facts
