"""Tables at 80 and at 200 columns, with long names and large numbers: nothing is cut, no line is too long."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter

import numpy as np
import pytest
from made_up import make_run
from rich.console import Console

from kinfolk.errors import KinfolkError
from kinfolk.markup import as_html, as_latex, as_markdown
from kinfolk.report.formats import FORMATS, written
from kinfolk.report.newcomers import newcomers_table
from kinfolk.report.read import Run, load_run, load_runs
from kinfolk.report.tables import comparison_table, run_table
from kinfolk.report.tune import tune_table

LONG = "a_method_of_our_own_with_a_name_of_sixty_letters_and_an_option"[:60]
CLIENT = "hospital-of-the-holy-spirit-in-the-old-town-by-the-river-no-7"[:60]
LARGE = [1.234567e9, 2.5e9, 8.123456789e12]


def printed(parts, width):
    console = Console(width=width, color_system=None)
    with console.capture() as text:
        for part in parts:
            console.print(part, markup=False)
    return text.get()


@pytest.fixture
def comparison(tmp_path):
    """Two methods, two seeds: accuracies near one half, errors in the billions."""
    names = []
    for title in (LONG, "local"):
        for seed in (0, 1):
            where = tmp_path / f"{title[:9]}-seed{seed}"
            values = {"accuracy": {9999999: [0.5, 0.4 + seed / 10, 0.7]}, "mse": {9999999: LARGE}}
            make_run(where, {"fine-tuned": values, "centre": values}, title, seed, [10**9, 5, 5])
            names.append(where.name)
    (tmp_path / "compare.json").write_text(json.dumps({"runs": names}))
    return tmp_path


def letters(text):
    return re.sub(r"[\s─━]", "", text)


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("score", ["accuracy", "mse"])
def test_a_comparison_is_whole(comparison, score, width):
    table, notes = comparison_table(load_runs(comparison), score)
    cells = [str(cell) for column in table.columns for cell in column.cells]
    text = printed([table, *notes], width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert LONG in (text if width == 200 else rejoined(text, LONG))
    for cell in cells:
        assert all(word in text for word in cell.split() if word != LONG), cell
    if score == "mse":
        assert re.search(r"\d\.\d\de9", text)


TUNED = "fedavg lr=0.3 clip=1 tune_lr=0.09 tune_epochs=3"


def tuned_run(title, seed, level, score, rounds):
    """Twelve clients, two kinds of model, a start of 2.5 rounds; seeds may end at different rounds."""
    values = level * (1 + np.random.default_rng([seed, len(title)]).random(12) / 10)
    kinds = ["centre"] * 12 + ["fine-tuned"] * 12
    scores = {"client": [f"c{i}" for i in range(12)] * 2, "model": kinds, "score": score, "round": rounds}
    facts = {"round": 1, "bytes": {"update": {"up": 38400, "down": 39000}}, "cohort": 2, "extra": 2.5}
    facts |= {"seconds": {"update": 0.0037}}
    return Run.of(
        {"title": title, "seed": seed}, {**scores, "value": [*values, *1.01 * values], "rows": 9}, [facts]
    )


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("unlike", [False, True])
@pytest.mark.parametrize(
    ("score", "level"), [("mse", 1e8), ("mse", 3e-7), ("mse", 12345.0), ("accuracy", 0.8)]
)
def test_titles_of_tuned_methods_wrap_between_words_and_numbers_never_break(score, level, unlike, width):
    """The case of `compare --tune` on targets that were not scaled; `unlike` adds the column of seeds."""
    titles = [TUNED, "ifca k=4 lr=0.1 clip=10", "fedavg_tuned", "local"]
    runs = [
        tuned_run(title, seed, level / (1 + place / 10), score, 400 - 3 * seed * unlike)
        for place, title in enumerate(titles)
        for seed in range(3 - (unlike and title == "local"))
    ]
    table, _ = comparison_table(runs)
    text = printed([table], width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    pieces = text.split()
    for column in table.columns[1:]:
        for cell in map(str, [column.header, *column.cells]):
            assert all(word in pieces for word in cell.split()), cell
    if unlike and width == 80:  # words that are longer than the column fold
        assert letters(TUNED) == rejoined(text, letters(TUNED))
    else:
        assert all(word in pieces for title in titles for word in title.split())
    if width == 200:
        rows = [line.strip() for line in text.splitlines()]
        assert sum(row.startswith(TUNED) for row in rows) == 2, "on one line where there is room"


def test_a_table_that_cannot_fit_keeps_every_column():
    runs = [tuned_run(title, seed, 1e8, "mse", 400) for title in (TUNED, "local") for seed in (0, 1)]
    table, _ = comparison_table(runs)
    text = printed([table], 50)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 50
    assert re.search(r"^ ?loc", text, re.MULTILINE), "the first column is still there"
    every = letters("".join(str(cell) for column in table.columns for cell in column.cells))
    assert not Counter(every) - Counter(letters(text))


@pytest.mark.parametrize("width", [80, 200])
def test_what_tuning_found_is_whole(width):
    settings = {"local.lr": 0.0003, "local.clip": 10.0, "algorithm.tune_lr": 0.09, "algorithm.tune_epochs": 3}
    one = {"algorithm": LONG, "tried": 27, "spent": 123456, "settings": settings, "model": "fine-tuned"}
    one |= {"score": 1.2e8, "default": 9.8e12, "left_out": [], "chosen": LONG, "failed": 0}
    facts = {"methods": [one], "score": "mse", "budget": 60, "rounds": 10, "rungs": [3, 10]}
    table, _ = tune_table({**facts, "seeds": [0], "notes": [], "backend": "halving"})
    text = printed([table], width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for word in ("1.20e8", "9.80e12", "tune_epochs=3", "lr=0.0003,", "fine-tuned"):
        assert word in text.split(), word
    assert LONG in (text if width == 200 else rejoined(text, LONG))


def rejoined(text, name):
    """The text with a folded name put together again: its pieces are what the first columns hold."""
    pieces, left = [], name
    for line in text.splitlines():
        piece = line.split()[0] if line.split() else ""
        if piece and left.startswith(piece):
            pieces.append(piece)
            left = left[len(piece) :]
    return "".join(pieces)


@pytest.mark.parametrize("width", [80, 200])
def test_a_run_is_whole(comparison, width):
    run = load_run(comparison / f"{LONG[:9]}-seed0")
    text = printed([run_table(run)], width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert letters(LONG) in letters(text)
    assert "percentile" in text
    assert "8.12e12" in text
    if width == 200:
        assert str(run.path) in text


def test_a_table_that_was_narrow_once_is_wide_again(comparison):
    table, _ = comparison_table(load_runs(comparison), "mse")
    wide = printed([table], 200)
    assert printed([table], 80) != wide
    assert printed([table], 200) == wide
    assert "…" not in printed([table], 40)


@pytest.mark.parametrize("width", [80, 200])
def test_newcomers_with_long_names_are_whole(width):
    row = {"newcomer": CLIENT, "rows": 10**9, "group": 1, "one_model": 1.5e9, "worst_centre": 2e12}
    row["centre"] = 1e9
    facts = {"newcomers": [{**row, "fine_tuned": 1e9, "fit": []}] * 2, "score": "mse", "by": "loss"}
    table, notes = newcomers_table({**facts, "run": "runs/a", "round": 5})
    text = printed([table, *notes], width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert "1,000,000,000" in text
    assert "2.00e12" in text


def test_other_formats_say_the_same(comparison):
    markdown, latex, numbers = (written(comparison, form, "mse") for form in FORMATS)
    table, notes = comparison_table(load_runs(comparison), "mse")
    heads = [" ".join(str(column.header).split()) for column in table.columns]
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == heads
    cells = list(zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True))
    assert [tuple(cell.strip() for cell in line[1:-1].split("|")) for line in lines[2:]] == cells
    assert notes == ["ranks 1 to 4 are not distinguishable"]
    assert notes[0] in markdown
    assert any(line.startswith("macro: mean over clients") for line in markdown.splitlines())
    body = latex[latex.index(r"\midrule") : latex.index(r"\bottomrule")].splitlines()[1:]
    assert len(body) == len(cells)
    for line, row in zip(body, cells, strict=True):
        assert line.endswith(r" \\")
        plain = line.removesuffix(r" \\").replace(r"\_", "_").replace(r"$\pm$", "±")
        assert tuple(cell.strip() for cell in plain.split(" & ")) == tuple(cell.strip() for cell in row)
    rows = list(csv.DictReader(io.StringIO(numbers)))
    assert sorted({row["algorithm"] for row in rows}) == [LONG, "local"]
    assert float(rows[0]["macro"]) == pytest.approx(sum(LARGE) / 3, rel=1e-12)


def test_a_run_has_every_format_too(comparison):
    run = comparison / "local-seed1"
    assert "| fine-tuned | accuracy |" in written(run, "md")
    assert written(run, "latex").count(r"\begin{tabular}") >= 2
    assert len(written(run, "csv").splitlines()) == 3, "a head and two models"
    with pytest.raises(KinfolkError, match="holds no run"):
        written(comparison / "nowhere", "md")


@pytest.mark.parametrize(
    ("form", "cell", "text"),
    [
        (as_html, "<script>&", "&lt;script&gt;&amp;"),
        (as_markdown, "a|b *c* `d` [e]", r"a\|b \*c\* \`d\` \[e]"),
        (as_latex, "50% & a_b #1 {x} \\y ~ ^ $", "50\\% \\& a\\_b \\#1 \\{x\\} \\textbackslash{}y"),
    ],
)
def test_names_are_text_everywhere(form, cell, text):
    from rich.table import Table
    from rich.text import Text

    table = Table("name")
    table.add_row(Text(cell))
    assert text in form(table)
