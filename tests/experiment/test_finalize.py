"""What an algorithm does once the rounds are over: MD-ICFL's last assignment, for scores only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mdicfl_options import DRAWN, mdicfl
from small_runs import assert_same_end, digits, equal, go, rounds_of, saved

from kinfolk.algorithms.mdicfl.mdicfl import MDICFL
from kinfolk.clustering.agreement import agreement
from kinfolk.contract import checks, toy
from kinfolk.engines.coordinator import drop_outs
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.finalize import without_final
from kinfolk.experiment.record import read_rounds, read_scores
from kinfolk.experiment.spec import parse
from kinfolk.experiment.state import to_message
from kinfolk.script import Ask, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.trained import load
from kinfolk.types import nbytes

METHOD = (
    "algorithm.name=mdicfl", "algorithm.k=2", "algorithm.pseudo.samples=3",
    "algorithm.search.iterations=8", "algorithm.start.name=random_partition",
    "data.clients=8", "data.rows=20", "data.alpha=1", "run.participation=0.5",
)  # fmt: skip
FEW = {"pseudo.samples": 2, **DRAWN}
FINAL = "algorithm.final_reassign=true"
STRONG = "algorithm.privacy=strong"


def spec_in(folder: Path):
    return parse((folder / "spec.toml").read_text())


def by_hand(folder: Path, state, k: int = 2, samples: int = 3) -> list[int]:
    """The assignment, client by client, in float64 but for training and pseudo rows."""
    spec = spec_in(folder)
    parts = build_parts(spec, digits(spec.data, spec.run.seed))
    method, federation = parts.algorithm, parts.federation
    assert isinstance(method, MDICFL)
    context = RoundContext(parts.seed, spec.run.rounds, federation.clients)
    x = method.probe(state, context)[1].x
    network, found = method.learner.module.eval(), []

    def says(model, rows):
        network.load_state_dict(model)
        logits = network(rows).detach().double().numpy()
        grown = np.exp(logits - logits.max(1, keepdims=True))
        return grown / grown.sum(1, keepdims=True)

    with toy.coordinated(method, federation) as coordinator:
        for i, who in enumerate(federation.clients):
            start = {n: t[int(state.member[i])] for n, t in state.centres.items()}
            got = coordinator.perform(Ask("update", (who,), {"model": start}), context)
            mine = {n: t[0] for n, t in got.tree("model").items()}
            y = federation.y[federation.splits["train"].rows(i)].numpy()
            labels = np.bincount(y, minlength=federation.classes) / len(y)
            cost = []
            for c in range(k):
                theirs = {n: t[c] for n, t in state.centres.items()}
                apart = np.abs(says(mine, x[c]) - says(theirs, x[c])).sum(1)
                cost.append(labels @ apart.reshape(-1, samples).mean(1))
            found.append(int(np.argmin(cost)))
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run without a last assignment, and with one by either protocol."""
    root = tmp_path_factory.mktemp("runs")
    return root, {
        name: go(root / name, *METHOD, *more)
        for name, more in {"off": (), "weak": (FINAL,), "strong": (FINAL, STRONG)}.items()
    }


def test_the_last_groups_are_those_of_a_loop_by_hand(runs):
    root, ended = runs
    before, after = ended["off"].state, ended["weak"].state
    wanted = by_hand(root / "weak", before)
    assert after.member.tolist() == wanted
    assert wanted != before.member.tolist(), "or nothing was to be seen"
    last = read_rounds(root / "weak")[-1]
    federation = digits(spec_in(root / "weak").data, 0)
    assert last["groups"]["ari"] == pytest.approx(agreement(wanted, federation.truth)["ari"])
    assert last["groups"]["sizes"] == {str(c): wanted.count(c) for c in range(2)}
    moved = np.mean(np.array(wanted) != before.member.numpy())
    assert last["final"]["switch"] == pytest.approx(moved)
    assert last["final"]["answered"] == 8


def test_scores_of_the_last_round_are_by_it_and_nothing_else_differs(runs):
    root, ended = runs
    off, weak = read_scores(root / "off"), read_scores(root / "weak")
    assert off[off["round"] < 3].equals(weak[weak["round"] < 3])
    assert ended["weak"].summary != ended["off"].summary
    plain, lines = rounds_of(root / "off"), rounds_of(root / "weak")
    was = lines[-1].pop("before_final")
    assert was == plain[-1]
    assert lines[:-1] == plain[:-1]
    assert lines[-1]["groups"]["switch"] == was["groups"]["switch"]
    before = without_final(read_rounds(root / "weak")[-1])
    assert before["seconds"].keys() == read_rounds(root / "off")[-1]["seconds"].keys()
    (_, state, facts), (_, kept, kept_facts) = saved(root / "off"), saved(root / "weak")
    served, final = ((tensors.pop("served"), told.pop("served")) for tensors, told in
                     ((state, facts), (kept, kept_facts)))  # fmt: skip
    assert facts == kept_facts
    assert all(equal(state[entry], kept[entry]) for entry in state), "a run goes on as if it had not been"
    assert served == ({}, {})
    assert final[0]["member"].tolist() == ended["weak"].state.member.tolist(), "but what was scored is kept"
    assert equal({"c": ended["off"].state.centres}, {"c": ended["weak"].state.centres})
    assert "final" not in (root / "off/rounds.jsonl").read_text()


def test_models_taken_out_are_those_of_the_last_groups(runs):
    run = load(runs[0] / "weak")
    federation = digits(spec_in(run.path).data, 0)
    scores = run.scores[(run.scores["round"] == 3) & (run.scores["score"] == "accuracy")]
    for _, one in scores.iterrows():
        x, y = federation.take(federation.splits["test"].rows(federation.place(one["client"])))
        assert (run.predict(x, one["client"]) == y.numpy()).mean() == one["value"]


def test_both_protocols_agree_and_every_byte_is_counted(runs):
    root, ended = runs
    weak, strong = (read_rounds(root / name)[-1] for name in ("weak", "strong"))
    assert ended["weak"].state.member.tolist() == ended["strong"].state.member.tolist()
    assert weak["groups"] == strong["groups"]
    first = ended["weak"].state.centres
    model = nbytes({"model": {n: t[0] for n, t in first.items()}})
    untold = 8 - int(ended["off"].state.labels.any(1).sum())
    assert untold, "or nobody was left to ask"
    sent = {kind: ways for kind, ways in weak["bytes"].items() if kind.startswith("final.")}
    labels = {"down": 0, "up": untold * 10 * 4}
    assert sent == {"final.update": {"down": 8 * model, "up": 8 * model}, "final.labels": labels}
    assert strong["bytes"]["final.update"] == sent["final.update"]
    assert strong["bytes"]["final.choose"] == {"down": 8 * 2 * 10 * 4, "up": 8 * 8}
    assert set(weak["seconds"]) >= {"final.update", "final.server"}


@pytest.mark.parametrize("more", [(), (STRONG, "algorithm.epsilon=1.0", "run.absent=0.2")])
def test_more_rounds_later_equal_as_many_at_once(tmp_path, more, monkeypatch):
    # The same secrets in both runs: the last word and the round after it are answered by one coin.
    monkeypatch.setattr("secrets.token_bytes", lambda n: b"s" * n)
    changes = [*METHOD, FINAL, *more]
    whole = go(tmp_path / "a", *changes, "run.rounds=4")
    go(tmp_path / "b", *changes, "run.rounds=2")
    assert "before_final" in read_rounds(tmp_path / "b")[-1]
    halves = go(tmp_path / "b", *changes, "run.rounds=4", resume=True)
    assert equal(to_message(whole.state)[0], to_message(halves.state)[0])
    assert_same_end(tmp_path / "a", tmp_path / "b")
    assert ["final" in line for line in rounds_of(tmp_path / "b")] == [False] * 4 + [True]


def test_a_finished_run_finalizes_to_the_same_again(runs):
    root, ended = runs
    lines, scores = rounds_of(root / "strong"), read_scores(root / "strong")
    again = go(root / "strong", *METHOD, FINAL, STRONG, resume=True)
    assert again.summary == ended["strong"].summary
    assert again.state.member.tolist() == ended["strong"].state.member.tolist()
    assert read_scores(root / "strong").equals(scores)
    assert rounds_of(root / "strong") == lines


@pytest.mark.parametrize("ending", ["run.target=0.01", "algorithm.name=mdicfl"])
def test_a_run_that_ends_early_finalizes_only_when_it_has_clusters(tmp_path, ending):
    common = ("algorithm.start.name=shared_kmeans", "algorithm.start.shared_rounds=3")
    start = common if ending.startswith("algorithm") else ()
    ended = go(tmp_path / "r", *METHOD, FINAL, *start, ending)
    lines = read_rounds(tmp_path / "r")
    assert ended.rounds == (3 if start else 1)
    assert ("final" in lines[-1]) is not bool(start), "of one model for all there is nothing to choose"


def test_the_contract_of_resuming_holds():
    checks.check_resume(lambda learner: mdicfl(learner, k=2, final_reassign=True, **FEW))


@pytest.mark.parametrize("engine", ["batched", "workers"])
def test_engines_agree(runs, tmp_path, engine):
    _, ended = runs
    got = go(tmp_path / "r", *METHOD, FINAL, f"engine.name={engine}", "engine.processes=2")
    assert got.state.member.tolist() == ended["weak"].state.member.tolist()


def test_who_does_not_answer_stays(tmp_path):
    changes = [*METHOD, "run.absent=0.5"]
    before = go(tmp_path / "off", *changes).state
    after = go(tmp_path / "on", *changes, FINAL).state
    gone = drop_outs(0.5)
    context = RoundContext(Seed(0), 3, tuple(after.clients))
    missing = [gone(context, c) for c in after.clients]
    assert 0 < sum(missing) < 8
    assert torch.equal(before.member[torch.tensor(missing)], after.member[torch.tensor(missing)])


@pytest.mark.parametrize("privacy", ["weak", "strong"])
def test_when_nobody_answers_all_stay(privacy):
    federation = toy.ragged()
    method = mdicfl(toy.learner("mlp", federation), k=2, privacy=privacy, **FEW)
    state = toy.play_rounds(method, federation, rounds=1, participation=0.5, score=False).state
    context = RoundContext(Seed(0), 1, federation.clients)
    assert method.finalize(state, context) is None, "off unless it is asked for"
    script = replace(method, final_reassign=True).finalize(state, context)
    with toy.coordinated(method, federation, absent=lambda context, who: True) as coordinator:
        after, _ = play(script, lambda request: coordinator.perform(request, context))
    assert after.member.tolist() == state.member.tolist()


def test_the_command_line_takes_it(kinfolk, tmp_path):
    small = ("model.name=logistic", "engine.name=loop", "data.groups=2", "run.rounds=2")
    words = [word for one in (*METHOD, FINAL, *small) for word in ("--set", one)]
    code, _, err = kinfolk("run", *words, "--out", "r", "--json")
    assert code == 0, err
    assert read_rounds(tmp_path / "r")[-1]["final"]["answered"] == 8
