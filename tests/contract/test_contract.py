"""Every algorithm of the table, and the two test algorithms, through every check of the contract."""

from contextlib import nullcontext

import pytest
from gossip import Gossip
from mdicfl_options import DISTINCT
from nearest import Nearest

from kinfolk.algorithms import ALGORITHMS, with_options
from kinfolk.contract import suite
from kinfolk.contract.checks import CHECKS, Skip

METHODS = {name: (kind, {}) for name, kind in ALGORITHMS.items()}
METHODS |= {"bare gossip": (Gossip, {}), "nearest": (Nearest, {})}
# Fewer steps of its search for rows: none of the checks is about how good these are.
METHODS["mdicfl"] = (
    ALGORITHMS["mdicfl"],
    {"pseudo.samples": 4, "search.iterations": 5, "start.shared_most": 1, "start.confidence": 0.0},
)
# A small GAN that makes few images: none of the checks is about how good these are.
SMALL = {"images.count": 8, "gan.epochs": 1, "gan.width": 0.0625}
METHODS["slfed"] = (ALGORITHMS["slfed"], SMALL)
FEW = {"images.count": 8, "images.search_steps": 3, "local_rounds": 2, "shares.scheme": "plain"}
METHODS["slfed_similar"] = (ALGORITHMS["slfed_similar"], FEW)
METHODS["fl_hc"] = (ALGORITHMS["fl_hc"], {"cluster_after": 1})  # within the checks' few rounds
VARIANTS = {
    "slfed pairs": (ALGORITHMS["slfed"], {**SMALL, "shares.min_members": 2, "shares.max_share": 1.0}),
    "slfed images": (
        ALGORITHMS["slfed"],
        {**SMALL, "images.kind": "means", "images.means_of": 3, "compare": "images"},
    ),
    "fedala all rows": (ALGORITHMS["fedala"], {"share": 1.0}),
    "gossip random": (Gossip, {"neighbours": "random"}),
    "bare gossip random": (Gossip, {"neighbours": "random"}),
    "nearest of 5": (Nearest, {"k": 5}),
    "mdicfl strong": (
        ALGORITHMS["mdicfl"],
        {"privacy": "strong", "epsilon": 1.0, **DISTINCT, "pseudo.samples": 4, "search.iterations": 5},
    ),
    "mdicfl generator": (
        ALGORITHMS["mdicfl"],
        {"pseudo.sampler": "generator", "generator.warm": True, "generator.iterations": 5, **DISTINCT},
    ),
}
# Engines treat the others' tasks like those of one of these; they are in processes and on larger images among
# the slow tests.
OFTEN = ("fedavg", "local", "ifca", "fesem", "mdicfl", "slfed", "bare gossip")


def case(method: str, check: str) -> object:
    late = check in ("engines_agree_on_lenet", "processes_agree") and method not in OFTEN
    return pytest.param(method, check, marks=pytest.mark.slow if late else ())


CASES = [case(method, check) for method in METHODS for check in CHECKS]
CASES += [("bare gossip random", c) for c in ("engines_agree", "same_seed_same_bits", "renamed_clients")]
CASES += [
    ("nearest of 5", c) for c in ("survives_drop_outs", "survives_cohort_of_one", "bad_replies", "resume")
]
CASES += [("fedala all rows", "renamed_clients")]
CASES += [("mdicfl strong", c) for c in ("engines_agree", "survives_drop_outs", "bad_replies", "resume")]
CASES += [("mdicfl generator", c) for c in ("engines_agree", "survives_nobody", "state_is_plain", "resume")]
CASES += [("slfed pairs", c) for c in ("engines_agree", "state_not_mutated", "survives_drop_outs", "resume")]
CASES += [("slfed images", c) for c in ("engines_agree", "survives_drop_outs", "resume")]
# What does not apply, and to whom: anything else that skips itself is a failure.
NOTHING = "no task declares what it is sent"
MAY_SKIP = {
    **{(name, "bad_requests"): NOTHING for name in ("local", "majority_label", "bare gossip", "slfed")},
    **{(name, "bad_requests"): NOTHING for name in ("gossip", "pens")},
    **{(name, "bad_replies"): "reply with nothing" for name in ("gossip", "pens")},
    ("gossip", "renamed_clients"): "a new name is a new draw",
    ("slfed_similar", "bad_requests"): NOTHING,
    ("fedfomo", "bad_requests"): NOTHING,  # as many models as there are: one, two or five
    ("local", "bad_replies"): "reply with nothing",
    ("majority_label", "bad_replies"): "reply with nothing",
    ("majority_label", "learns_something"): "it trains nothing",
    ("bare gossip", "bad_replies"): "reply with nothing",
    ("bare gossip random", "renamed_clients"): "a new name is a new draw",
    ("feddane", "renamed_clients"): "a new name is a new draw",
    ("fedala", "renamed_clients"): "a new name is a new draw",  # of the rows that W_i is learned on
    ("fedfomo", "renamed_clients"): "a new name is a new draw",
    ("mdicfl", "renamed_clients"): "a new name is a new draw",
    ("slfed", "bad_replies"): "reply with nothing",
    ("slfed", "renamed_clients"): "a new name is a new draw",
    ("slfed_similar", "bad_replies"): "reply with nothing",
    ("slfed_similar", "renamed_clients"): "a new name is a new draw",
}


@pytest.mark.parametrize(("method", "check"), CASES)
def test_contract(method, check, monkeypatch):
    if method == "mdicfl strong":  # coins that come out alike: what is secret would differ between two runs
        monkeypatch.setattr("secrets.token_bytes", lambda n: b"s" * n)
    kind, options = {**METHODS, **VARIANTS}[method]
    # By the direction of updates, of three groups, or after a short start, rounding decides who joins whom:
    # the toy's clients are all about equally far apart.
    if method.startswith("fesem"):
        agree = check.endswith(("_agree", "_on_lenet"))
        clear = {"start.on": "models", **options, "k": 2}
        options = clear if agree else {**options, "start.warm_epochs": 2}
    reason = MAY_SKIP.get((method, check))
    with pytest.raises(Skip, match=reason) if reason else nullcontext():
        CHECKS[check](lambda learner: with_options(kind, learner, options))


def test_the_suite_reports_every_check_in_order(monkeypatch):
    few = ("is_an_algorithm", "state_is_plain", "renamed_clients", "bad_replies")
    monkeypatch.setattr(suite, "CHECKS", {name: CHECKS[name] for name in few})
    lines = []
    assert suite.run_suite(Gossip, {"neighbours": "random"}, lambda *line: lines.append(line))
    assert [name for name, _, _ in lines] == list(few)
    assert [status for _, status, _ in lines] == ["passed", "passed", "skipped", "skipped"]
    assert all(detail and "\n" not in detail for _, _, detail in lines)


@pytest.mark.parametrize("check", CHECKS)
def test_every_check_says_what_it_is_about(check):
    assert CHECKS[check].__doc__.split("\n")[0].endswith(".")
    assert CHECKS[check].__name__ == f"check_{check}"


def test_the_suite_says_what_went_wrong_and_where():
    lines = []
    assert not suite.run_suite(Nearest, {"k": "two"}, lambda *line: lines.append(line))
    assert {status for _, status, _ in lines if status != "failed"} == {"passed"}
    status, detail = next((status, detail) for name, status, detail in lines if name == "state_is_plain")
    assert status == "failed"
    assert detail.startswith("TypeError: ")
    assert "(nearest.py, line " in detail
