"""The page on what clients send says what tasks declare, no less."""

from pathlib import Path

import message_table as messages

from kinfolk.algorithms import ALGORITHMS
from kinfolk.contract import toy
from kinfolk.task import FloatSpec, IntSpec

PAGE = Path(__file__).parents[2] / "docs" / "privacy" / "messages.md"


def test_the_page_has_the_table_that_the_tasks_declare():
    held = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert held == messages.table().splitlines(), (
        "put what `python tests/helpers/message_table.py` prints there"
    )
    assert len(held) == len(ALGORITHMS) + 2


def test_what_tells_of_labels_is_listed():
    lines = {line.split("`")[1]: line for line in messages.table().splitlines()[2:]}
    assert "`count`: labels (C numbers)" in lines["fesem_ma"]
    assert "`labels`: labels (C numbers)" in lines["mdicfl"]
    assert "labels" not in lines["fesem"]
    assert "labels" not in lines["ifca"]


def test_replies_in_words():
    learner = toy.learner("mlp", toy.ragged())
    part = {"head.weight": learner.first["head.weight"]}
    words = messages.reply_words({"model": part, "apart": FloatSpec((3, 4)), "n": IntSpec(0, 2)}, learner)
    assert words == "model (a part), apart (3 x C numbers), n (a whole number)"
