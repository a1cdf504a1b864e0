"""Every break that `make mutants` tries still fits the code, so that the list does not rot unseen."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LISTED = tomllib.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", LISTED, ids=lambda mutant: mutant["name"])
def test_a_mutant_fits_the_code_and_names_tests_that_exist(mutant):
    text = (ROOT / "src/kinfolk" / mutant["file"]).read_text()
    assert text.count(mutant["old"]) == 1
    assert mutant["old"] != mutant["new"]
    assert mutant["tests"]
    assert all((ROOT / test.split("::")[0]).exists() for test in mutant["tests"])
