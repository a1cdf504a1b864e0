"""Algorithms with one thing wrong each: the check that is named must catch it, so checks can fail."""

import pytest
from faulty import Faulty

from kinfolk.contract import toy
from kinfolk.contract.checks import CHECKS
from kinfolk.contract.suite import run_one
from kinfolk.engines import coordinator

CAUGHT = {
    "takes the i-th reply for the i-th client asked": ("renamed_clients", "where its name sorts"),
    "takes the i-th reply for client i": ("renamed_clients", "where its name sorts"),
    "looks for a reply of everybody asked": ("survives_drop_outs", "faulty.py, line"),
    "writes into its state": ("state_not_mutated", "changed the state"),
    "writes into its message": ("state_not_mutated", "wrote into the message"),
    "writes into its memory": ("state_not_mutated", "wrote into the memory"),
    "draws from torch": ("same_seed_same_bits", "other bits"),
    "draws from numpy": ("same_seed_same_bits", "other bits"),
    "draws from random": ("same_seed_same_bits", "other bits"),
    "does not declare its reply": ("replies_as_declared", "does not reply what it declares"),
    "keeps a list": ("state_is_plain", "state.extra is a list"),
    "hides a state": ("resume", "ends elsewhere"),
    "counts padding": ("engines_agree", "'batched' does not agree"),
    "counts on somebody": ("survives_nobody", "after rounds that nobody answered"),
    "needs two replies": (
        "survives_cohort_of_one",
        "with one client a round, the state: own/conv1.weight is not finite",
    ),
    "never learns": ("learns_something", "on an easy task"),
    "serves by position": ("serves_any_subset", "depends on who else is served"),
    "knows only whom it asked": ("scores_everyone", "faulty.py, line"),
    "names its models freely": ("is_an_algorithm", "use one of centre, personal, fine-tuned"),
}


@pytest.mark.parametrize("check", CHECKS)
def test_without_a_fault_nothing_is_found(check):
    assert run_one(check, Faulty, {})[0] == "passed"


@pytest.mark.parametrize("fault", CAUGHT)
def test_the_check_that_is_named_catches_the_fault(fault):
    check, words = CAUGHT[fault]
    status, detail = run_one(check, Faulty, {"fault": fault})
    assert status == "failed", detail
    assert words in detail


def test_padding_shows_on_lenet_too():
    assert run_one("engines_agree_on_lenet", Faulty, {"fault": "counts padding"})[0] == "failed"


def test_a_guard_that_lets_everything_through_is_caught(monkeypatch):
    monkeypatch.setattr(coordinator, "inspect", lambda chunk, expected: (chunk, {}))
    assert run_one("bad_replies", Faulty, {})[0] == "failed"


def test_a_guard_that_misses_one_kind_of_harm_is_caught(monkeypatch):
    inspect = coordinator.inspect

    def lenient(chunk, expected):
        good, bad = inspect(chunk, expected)
        return (good, bad) if not any("is not finite" in reason for reason in bad.values()) else (chunk, {})

    monkeypatch.setattr(coordinator, "inspect", lenient)
    status, detail = run_one("bad_replies", Faulty, {})
    assert status == "failed"
    assert detail.endswith("was not refused")


def test_data_that_depend_on_the_order_of_clients_are_caught(monkeypatch):
    def mixed_up(names=toy.NAMES, backwards=False):
        return toy.grouped(toy.ROWS[::-1] if backwards else toy.ROWS, side=8, noise=1.0, names=names)

    monkeypatch.setattr(toy, "ragged", mixed_up)
    status, detail = run_one("order_of_clients", Faulty, {})
    assert status == "failed"
    assert "handed over matters" in detail
