"""Whether there are groups: what models of groups gain, what seeds agree on, and "one group" as an answer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from flat_runs import flat, seeds
from sklearn.metrics import adjusted_rand_score

from kinfolk.report.read import Run
from kinfolk.report.verdict import Sentence, verdict
from kinfolk.report.verdict.groups import DOUBTFUL
from kinfolk.report.verdict.stability import agreement, rand_index

FOUR = [0, 1, 2, 3] * 6
FACTS = {"federation": {"fingerprint": "one", "clients": 24}}
MANY = {"clients": 24, **FACTS}


def grouped(
    value: float = 0.8, by_seed: list[list[int]] | None = None, title: str = "fesem k=4", **more
) -> list[Run]:
    by_seed = by_seed or [FOUR] * 3
    return [flat(title, s, value, groups=groups, **MANY, **more) for s, groups in enumerate(by_seed)]


def rules(runs: list[Run], **more) -> dict[str, Sentence]:
    return {one.rule: one for one in verdict(runs, **more).sentences}


def shuffled(swaps: int, seed: int) -> list[int]:
    """The same groups with some clients exchanged."""
    draw, groups = np.random.default_rng(seed), list(FOUR)
    for _ in range(swaps):
        i, j = draw.choice(24, 2, replace=False)
        groups[i], groups[j] = groups[j], groups[i]
    return groups


def test_models_of_groups_that_gain_beyond_noise_are_groups():
    runs = seeds("fedavg", 0.7, **MANY) + grouped()
    found = rules(runs)
    assert found["groups-help"].numbers["gain"] == pytest.approx(0.1, abs=0.005)
    assert found["groups-help"].weight == "good"
    assert "There are groups" in found["groups-help"].text
    assert "there are groups, and a model for each gains 10.0 points" in verdict(runs).headline
    assert found["groups-found"].text.startswith(
        "fesem k=4 ends with 4 groups in each of 3 seeds, of 6 each: 24 clients"
    )
    assert "asked for" in found["groups-found"].text
    assert "next-choose-k" in found


def test_where_lower_is_better_groups_gain_by_a_lower_error():
    runs = seeds("fedavg", 0.7, score="mse", **MANY) + grouped(0.5, score="mse")
    assert rules(runs)["groups-help"].numbers["gain"] == pytest.approx(0.2, abs=0.005)
    worse = seeds("fedavg", 0.5, score="mse", **MANY) + grouped(0.7, score="mse")
    assert "groups-cost" in rules(worse)


def test_models_of_groups_that_lose_say_one_group():
    runs = seeds("fedavg", 0.8, **MANY) + grouped(0.7)
    found = rules(runs)
    assert found["groups-cost"].text.startswith("One group is enough: dividing the clients costs 10.")
    assert "one group is enough" in verdict(runs).headline
    assert "next-choose-k" not in found


@pytest.mark.parametrize(("noise", "answer"), [(0.003, "one-group"), (0.1, "groups-unclear")])
def test_no_gain_is_one_group_only_if_a_gain_of_a_point_can_be_ruled_out(noise, answer):
    runs = seeds("fedavg", 0.7, **MANY, noise=noise) + grouped(0.7, noise=noise)
    found = rules(runs)
    assert answer in found
    assert (found[answer].numbers["high"] < 0.01) == (answer == "one-group")
    assert not {"groups-help", "groups-cost"} & set(found)


def test_personal_models_of_a_method_with_groups_are_no_evidence_for_groups():
    runs = seeds("fedavg", 0.7, **MANY) + grouped(0.7)
    for run in runs[3:]:
        personal = run.scores.assign(
            model="personal", value=run.scores["value"] + 0.2 * (run.scores["round"] > 0)
        )
        run.__dict__["scores"] = pd.concat([run.scores, personal], ignore_index=True)
    found = rules(runs)
    assert "fesem k=4 (personal) serves best" in found["best"].text
    assert "groups-help" not in found


@pytest.mark.parametrize(
    ("runs", "rule"),
    [
        (seeds("fedavg", 0.7) + seeds("local", 0.8), "groups-not-tried"),
        (seeds("local", 0.7, **MANY) + grouped(), "groups-no-baseline"),
        (seeds("fedavg", 0.7, **MANY)[:1] + grouped()[:1], "groups-too-early"),
    ],
)
def test_without_what_it_takes_nothing_is_said(runs, rule):
    found = rules(runs)
    assert rule in found
    assert not {"groups-help", "groups-cost", "one-group", "groups-unclear"} & set(found)


def test_methods_of_peers_are_not_one_model_for_all():
    lines = [{"round": 4, "bytes": {"mix": {"across": 10}}}]
    found = rules([flat("slfed", s, 0.7, lines=lines, **MANY) for s in range(3)] + grouped())
    assert "groups-no-baseline" in found


@pytest.mark.parametrize(
    ("swaps", "rule"), [(0, "groups-stable"), (1, "groups-stable"), (4, "groups-unstable")]
)
def test_seeds_must_agree_by_four_fifths(swaps, rule):
    by_seed = [FOUR, FOUR, shuffled(swaps, 1)]
    runs = seeds("fedavg", 0.7, **MANY) + grouped(by_seed=by_seed)
    found = rules(runs)
    assert rule in found
    assert (found[rule].numbers["agreement"] >= 0.8) == (rule == "groups-stable")
    sure = found["groups-help"].weight == "good"
    assert sure == (rule == "groups-stable")
    assert ("the seeds do not agree on the groups" in verdict(runs).headline) != sure


def test_groups_on_which_seeds_agree_by_chance_mean_nothing():
    draw = np.random.default_rng(3)
    by_seed = [draw.integers(0, 4, 24).tolist() for _ in range(3)]
    found = rules(seeds("fedavg", 0.7, **MANY) + grouped(by_seed=by_seed))
    assert found["groups-by-chance"].weight == "warning"


def test_few_clients_agree_fully_by_chance():
    frame = pd.DataFrame({"group": [0, 0, 1, 1], "known": np.nan}, index=list("abcd"))
    found = agreement([frame, frame])
    assert found is not None
    assert found.index == 1.0
    assert found.by_chance
    assert not found.settled


def test_the_index_is_the_usual_one_and_its_chance_that_of_shuffles():
    draw = np.random.default_rng(0)
    for k, n in ((2, 10), (5, 40), (30, 40)):
        a, b = draw.integers(0, k, (2, n))
        assert rand_index(a, b) == pytest.approx(adjusted_rand_score(a, b))
    frames = [pd.DataFrame({"group": draw.integers(0, 3, 12), "known": np.nan}) for _ in range(3)]
    drawn = []
    for _ in range(400):
        x, y, z = (draw.permutation(frame["group"]) for frame in frames)
        drawn.append(np.mean([adjusted_rand_score(*two) for two in ((x, y), (x, z), (y, z))]))
    found = agreement(frames)
    assert found is not None
    assert found.chance == pytest.approx(np.quantile(drawn, 0.95), abs=0.04)


def test_where_seeds_deal_other_rows_disagreement_says_nothing():
    by_seed = [shuffled(20, s) for s in range(3)]
    runs = grouped(by_seed=by_seed) + seeds("fedavg", 0.7, **MANY)
    for run in runs:
        run.facts["federation"] = {"fingerprint": f"seed {run.seed}"}  # type: ignore[index]
    found = rules(runs)
    assert "groups-not-comparable" in found
    assert found["groups-help"].weight == "good"


@pytest.mark.parametrize(("used", "rule"), [(4, "groups-found"), (3, "groups-empty"), (1, "groups-empty")])
def test_groups_that_were_asked_for_and_are_empty_are_named(used, rule):
    groups = [g % used for g in FOUR]
    found = rules(seeds("fedavg", 0.7, **MANY) + grouped(0.7, [groups] * 3))
    assert found[rule].numbers["most"] == used
    assert {"groups-found", "groups-empty"} & set(found) == {rule}
    if rule == "groups-empty":
        assert (
            f"asked for 4 groups, but only {used} {'has' if used == 1 else 'have'} members"
            in found[rule].text
        )


def test_a_method_that_counts_groups_itself_was_asked_for_none():
    found = rules(seeds("fedavg", 0.7, **MANY) + grouped(title="clustered_fl"))
    assert "asked" not in found["groups-found"].text
    assert "next-choose-k" not in found


@pytest.mark.parametrize(("alone", "rule"), [(12, "groups-single"), (2, "groups-found")])
def test_mostly_single_clients_are_no_groups(alone, rule):
    groups = [*range(alone), *[99 + i % 4 for i in range(24 - alone)]]
    assert rule in rules(seeds("fedavg", 0.7, **MANY) + grouped(0.8, [groups] * 3, title="clustered_hdbscan"))


@pytest.mark.parametrize(("doubtful", "rule"), [(2, "groups-clear-cut"), (3, "groups-doubt")])
def test_one_client_in_ten_may_lie_between_groups(doubtful, rule):
    assert 2 / 24 <= DOUBTFUL < 3 / 24
    runs = seeds("fedavg", 0.7, **MANY) + grouped()
    for run in runs[3:]:
        run.scores["margin"] = np.tile([0.01] * doubtful + [0.9] * (24 - doubtful), 3)
    assert rule in rules(runs)


@pytest.mark.parametrize(
    ("ari", "verb", "weight"),
    [
        (0.96, "are the", "good"),
        (0.94, "are mostly", "plain"),
        (0.81, "are mostly", "plain"),
        (0.79, "are not", "warning"),
    ],
)
def test_known_groups_are_told_apart_from_found_ones(ari, verb, weight):
    lines = [{"round": 4, "groups": {"ari": ari, "sizes": {"0": 6}}}]
    found = rules(seeds("fedavg", 0.7, **MANY) + grouped(lines=lines))
    assert found["groups-known"].text.startswith(f"The groups {verb}")
    assert found["groups-known"].weight == weight


@pytest.mark.parametrize(("sure", "weight"), [("high", "plain"), ("low", "warning")])
def test_a_search_for_the_number_of_groups_is_quoted(sure, weight):
    found = rules(seeds("fedavg", 0.7, **MANY) + grouped(), choice={"recommended": 1, "confidence": sure})
    assert "recommends one group" in found["groups-chosen"].text
    assert found["groups-chosen"].weight == weight
    assert "next-choose-k" not in found


def test_records_from_before_groups_were_in_them_still_say_how_many():
    lines = [{"round": 4, "groups": {"sizes": {"0": 20, "1": 4, "2": 0}, "ari": 0.2}}]
    runs = seeds("fedavg", 0.7, **MANY) + [flat("ifca", s, 0.8, lines=lines, **MANY) for s in range(3)]
    found = rules(runs)
    assert "ends with 2 groups in each of 3 seeds, of 20, 4 clients" in found["groups-found"].text
    assert "groups-help" in found
