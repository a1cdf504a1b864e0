"""The recipe for a share scheme, as it stands in docs/extend/recipes.md: a class and a line are enough."""

import re
from pathlib import Path

import pytest
from film import EASY, Film, check_pams, learner, nine, slfed

from kinfolk.shares import SCHEMES

PAGE = Path(__file__).parents[2] / "docs" / "extend" / "recipes.md"


@pytest.fixture
def recipe():
    """The page's block, executed; what it has registered is taken back."""
    section = PAGE.read_text(encoding="utf-8").split("## A share scheme")[1].split("\n## ")[0]
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1], {"__name__": "recipe"})
    yield
    del SCHEMES["half"]


@pytest.mark.usefixtures("recipe")
def test_a_scheme_is_a_class_and_a_line():
    half, plain = (
        Film(slfed(learner(), shares__scheme=scheme, shares__min_members=few, **EASY), nine(), 5)
        for scheme, few in (("half", 0), ("plain", 2))
    )
    assert check_pams(half, 4, tolerance=1e-2) == check_pams(plain, 4) > 3, "the scheme's own fewest members"
    assert half.bytes["responses"]["across"] < 0.6 * plain.bytes["responses"]["across"]
