"""Budgets: whatever a method trains beyond its rounds is taken off the rounds of the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SPEC, digits, go, rounds_of, saved

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks import warm_start as warm
from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.allowed import allow_imports
from kinfolk.contract import toy
from kinfolk.engines.work import trained_by
from kinfolk.errors import KinfolkError
from kinfolk.experiment.budget import Budget, Spent
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.record import read_audit, read_scores
from kinfolk.experiment.spec import override
from kinfolk.fold import Mean
from kinfolk.learning.learner import Learner
from kinfolk.learning.plan import batches, row_visits
from kinfolk.progress import ProgressReporter
from kinfolk.report.read import epochs_per_client, extra_rounds, load_run
from kinfolk.report.tables import comparison_table
from kinfolk.script import Script, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan, Table
from kinfolk.types import Client

ROWS = 4 * 12  # training rows of the tiny federation
FESEM = ("algorithm.name=fesem", "algorithm.k=2", "algorithm.start.warm_epochs=5", "algorithm.patience=0")
SHARED = ("algorithm.start.name=shared_kmeans", "algorithm.start.plateau=0")


def trained(facts: list[dict[str, Any]]) -> dict[str, int]:
    """Row visits by task, all rounds."""
    total: dict[str, int] = {}
    for fact in facts:
        for task, visits in fact["trained"].items():
            total[task] = total.get(task, 0) + visits
    return total


def test_row_visits_are_those_of_the_batches_drawn():
    draw = np.random.default_rng(0)
    for _ in range(400):
        batch, n, epochs, steps, rows = (int(draw.integers(low, 9)) for low in (1, 0, 1, 0, 0))
        plan = Plan(batch, epochs, steps, True, "train", *(bool(draw.integers(2)) for _ in range(2)), rows)
        wanted = sum(map(len, batches(plan, n, np.random.default_rng(1))))
        assert row_visits(plan, n) == wanted, (plan, n)


def test_the_example_of_the_page_plays_27_rounds_after_a_start_of_two_and_a_half(tmp_path):
    result = go(tmp_path / "r", *FESEM, "local.epochs=2", "run.rounds=30", "run.evaluate_every=10")
    assert result.rounds == 27
    assert result.reason == "27 rounds done, and 2.5 rounds' worth of extra training"
    facts = rounds_of(tmp_path / "r")
    assert [fact.get("extra") for fact in facts] == [None, 2.5, *[None] * 26]
    assert trained(facts) == {"warm": 5 * ROWS, "update": 27 * 2 * ROWS}
    assert [fact["round"] for fact in facts if "summary" in fact] == [0, 10, 20, 27]
    assert read_scores(tmp_path / "r")["round"].max() == 27
    assert saved(tmp_path / "r")[0] == 27
    run = load_run(tmp_path / "r")
    assert (extra_rounds(run), epochs_per_client(run)) == (2.5, 27 * 2 + 5)


@pytest.mark.parametrize(
    ("method", "played", "extra"),
    [
        (["algorithm.name=fedavg"], 12, {}),
        (["algorithm.name=fedprox", "local.epochs=3"], 12, {}),
        (FESEM, 7, {"warm": 5 * ROWS}),
        ([*FESEM, "local.epochs=0", "local.steps=7", "local.batch=8"], 10, {"warm": 5 * ROWS}),
        ([*FESEM, *SHARED, "algorithm.start.shared_rounds=3"], 7, {"warm": 5 * ROWS}),
        ([*FESEM, "algorithm.start.name=random_partition"], 12, {}),
        (["algorithm.name=fesem_ma", "algorithm.k=2", "model.name=mlp", "model.hidden=[4]"], 7,
         {"warm": 5 * ROWS}),
        (["algorithm.name=fesem_ma", "algorithm.k=2", "algorithm.start.warm_epochs=1",
          "algorithm.matching.retrain_epochs=1",
          "model.name=mlp", "model.hidden=[4]"], 5, {"warm": ROWS, "retrain.0": 5 * ROWS}),
        (["algorithm.name=mdicfl", "algorithm.k=2", "algorithm.start.name=warm_kmeans",
          "algorithm.pseudo.samples=2", "algorithm.search.iterations=2"], 7, {"warm": 5 * ROWS}),
        (["algorithm.name=hypcluster", "algorithm.k=2"], 11, {"train": ROWS}),
        # Its first round trains alone in place of the usual update: five epochs, four of them extra.
        (["algorithm.name=robust", "algorithm.k=2"], 8, {"alone": 5 * ROWS}),
    ],
)  # fmt: skip
def test_every_method_stays_within_the_same_number_of_epochs(method, played, extra, tmp_path):
    result = go(tmp_path / "r", *method, "run.rounds=12", "engine.name=batched")
    facts = rounds_of(tmp_path / "r")
    total = trained(facts)
    assert {task: total[task] for task in total if task not in ("update",)} == extra
    assert result.rounds == played == facts[-1]["round"]
    plan = build_parts(override(SPEC, method)).learner.plan
    usual = 4 * row_visits(plan, 12)
    assert sum(total.values()) <= 12 * usual, "never more than the budget"
    assert sum(total.values()) > 11 * usual or "retrain.0" in extra, "and all whole rounds of it"


def test_a_start_that_asks_everybody_costs_more_where_rounds_ask_a_part(tmp_path):
    seen = []
    go(
        tmp_path / "r", *FESEM, "run.participation=0.25", "run.rounds=30",
        watch=lambda event, facts: seen.append((event, facts)),
    )  # fmt: skip
    facts = rounds_of(tmp_path / "r")
    assert facts[1]["extra"] == 20.0, "five epochs of all clients, where a round has one epoch of a quarter"
    assert facts[-1]["round"] == 10
    said = [told["text"] for event, told in seen if event == "warning"]
    assert said == [line["text"] for line in read_audit(tmp_path / "r") if line["event"] == "warning"]
    why = "4 clients go 5 times over their rows, a round is 12 row visits by 1"
    assert said == [f"'warm' takes 20 of the 30 rounds: {why}"]
    totals = [told["rounds"] for event, told in seen if event == "round"]
    assert totals == [30, *[10] * 10], "the number of rounds there will be is known after the start"


def test_a_budget_that_the_start_alone_would_use_up_is_refused_with_the_numbers(tmp_path):
    with pytest.raises(
        KinfolkError,
        match=r"^run\.rounds = 5: 'warm' takes 5 of the 5 rounds: .*; no round is left: give more",
    ):
        go(tmp_path / "r", *FESEM, "run.rounds=5")
    assert go(tmp_path / "r", *FESEM, "run.rounds=6", resume=True).rounds == 1


@pytest.mark.parametrize(("shared", "first"), [(0, 8), (0, 9), (2, 7), (2, 9), (2, 10)])
def test_a_run_that_was_stopped_anywhere_ends_as_one_that_was_not(shared, first, tmp_path):
    common = [*SHARED, f"algorithm.start.shared_rounds={shared}"] if shared else []
    method = [*FESEM, *common, "run.participation=0.75", "run.evaluate_every=3"]
    # Rounds have 36 row visits: a start of 240 is worth 20/3 of them.
    go(tmp_path / "a", *method, "run.rounds=12")
    go(tmp_path / "b", *method, f"run.rounds={first}")
    go(tmp_path / "b", *method, "run.rounds=12", resume=True)
    whole, parts = rounds_of(tmp_path / "a"), rounds_of(tmp_path / "b")
    assert len(whole) == 6, "round 0 and five more"
    for one, other in zip(whole, parts, strict=True):
        other.pop("summary", None)  # the end of the shorter run was scored
        one.pop("summary", None)
        assert one == other
    one, other = saved(tmp_path / "a"), saved(tmp_path / "b")
    assert one[2] == other[2]
    assert all(torch.equal(one[1]["state"][n], other[1]["state"][n]) for n in one[1]["state"]
               if isinstance(one[1]["state"][n], torch.Tensor))  # fmt: skip


@dataclass(frozen=True)
class Late:
    """FedAvg that has everybody train for longer in one round, and a mean of that."""

    learner: Learner
    when: int = 4
    epochs: int = 5

    init, eval_inputs, eval_tasks = one_model.init, one_model.eval_inputs, one_model.eval_tasks

    def round(self, state: Any, cohort: tuple[Client, ...], context: RoundContext) -> Script[Any]:
        task = "warm" if context.round == self.when else "update"
        mean = Mean("model", keep=state.model)
        model = yield from fold(mean, task, context.clients, shared={"model": state.model})
        model = yield from fold(Mean("model", keep=model), "update", cohort, shared={"model": model})
        return one_model.State(model), {}

    def tasks(self) -> Table:
        return {"warm": warm.warm_task(self.learner, self.epochs), "update": self.learner.train()}


allow_imports(__name__)
LATE = ("algorithm.name=test_budget:Late", "run.evaluate_every=3")


def test_a_start_that_no_longer_fits_ends_the_run_before_it_and_the_end_is_scored(tmp_path):
    result = go(tmp_path / "r", *LATE, "run.rounds=9", "run.checkpoint_every=3")
    assert result.rounds == 4, "rounds 0 to 3; after a start of five only four of nine are left"
    assert result.reason.startswith("4 rounds done, and no room for another: 'warm' takes 5 of the 9 rounds:")
    facts = rounds_of(tmp_path / "r")
    assert [fact["round"] for fact in facts if "summary" in fact] == [0, 3, 4]
    assert trained(facts) == {"update": 4 * 2 * ROWS}, "what was not done is not counted"
    assert facts[-1]["summary"] == result.summary == saved(tmp_path / "r")[2]["summary"]
    again = go(tmp_path / "r", *LATE, "run.rounds=9", "run.checkpoint_every=3", resume=True)
    assert (again.rounds, again.reason, again.summary) == (4, result.reason, result.summary)
    rest = go(tmp_path / "r", *LATE, "run.rounds=12", "run.checkpoint_every=3", resume=True)
    go(tmp_path / "w", *LATE, "run.rounds=12", "run.checkpoint_every=3")
    assert rest.rounds == 7
    assert saved(tmp_path / "r")[2] == saved(tmp_path / "w")[2]


def test_work_that_is_done_twice_to_save_memory_counts_once(monkeypatch):
    """Models that do not fit are trained once more for their means, and by those who were not drawn."""
    federation = toy.alike()
    learner = toy.learner("mlp", federation)
    table = {"warm": warm.warm_task(learner, 2)}
    spent = []
    for exact, most in ((1 << 30, 4096), (0, 4096), (0, 3)):
        monkeypatch.setattr(warm, "EXACT", exact)
        monkeypatch.setattr(warm, "MOST", most)
        context = RoundContext(Seed(0), 0, federation.clients)
        script = warm.warm_kmeans(learner.first, learner.names, 2, 1, context, Aggregator())
        asked, answer = 0, None
        work = 0
        with toy.coordinated(toy_algorithm(table), federation) as coordinator:
            while True:
                try:
                    request = script.send(answer)
                except StopIteration:
                    break
                asked += len(request.to)
                answer = coordinator.perform(request, context)
            work = coordinator.ledger.take_trained()["warm"]
        spent.append((asked, work))
    assert spent == [(4, 2 * 96), (8, 2 * 96), (10, 2 * 96)]


def toy_algorithm(table: Table) -> Any:
    class Only:
        def tasks(self) -> Table:
            return table

        def eval_tasks(self) -> Table:
            return {}

    return Only()


def test_absent_clients_train_nothing_and_void_rounds_cost_what_was_trained(tmp_path):
    go(tmp_path / "r", "algorithm.name=hypcluster", "algorithm.k=2", "run.absent=0.4", "run.rounds=9",
       "run.quorum=0.6", "run.seed=3")  # fmt: skip
    facts = rounds_of(tmp_path / "r")[1:]
    assert any(fact["void"] for fact in facts)
    for fact in facts:
        assert fact["trained"].get("update", 0) in (12 * fact["answered"], 0)
        assert fact.get("extra", 0.0) == fact["trained"].get("train", 0) / ROWS
    assert sum(fact.get("extra", 0.0) for fact in facts) + len(facts) <= 9


def test_the_table_has_rounds_and_start_and_what_they_sent(tmp_path):
    runs = []
    for name, changes in {"a": ["algorithm.name=fedavg"], "f": FESEM}.items():
        go(tmp_path / name, *changes, "run.rounds=12", "local.epochs=2")
        runs.append(load_run(tmp_path / name))
    table, notes = comparison_table(runs)
    rounds = next(column for column in table.columns if column.header == "rounds")
    assert {str(cell) for cell in rounds.cells} == {"12", "9+2.5"}
    assert "a start that trained as much as b" in str(table.caption)
    assert "epochs per client: 23 fesem k=2 patience=0, 24 fedavg" in notes or (
        "epochs per client: 24 fedavg, 23 fesem k=2 patience=0" in notes
    )
    assert not any("last evaluated round" in note for note in notes), "budgets are equal but for a rest"
    start = [fact["bytes"]["warm"] for fact in rounds_of(tmp_path / "f") if "warm" in fact["bytes"]]
    size = 4 * (64 * 10 + 10)
    assert start == [{"down": 4 * size, "up": 4 * size}]


def test_progress_tells_the_rounds_that_are_left(tmp_path):
    teller = ProgressReporter(12, quiet=False)
    go(tmp_path / "r", *FESEM, "run.rounds=12", watch=teller.watch("fesem"))
    assert (teller.done, teller.total) == (7, 7)


def test_budgets_are_exact():
    budget = Budget(10, Fraction(1, 3))
    work = trained_by("warm", replace(warm_task(), extra=1), ("client-00",), (), tiny())
    assert (work.visits, work.extra) == (12, 12)
    with pytest.raises(Spent, match="'warm' takes 36 of the 10 rounds"):
        budget.take(0, work)
    assert budget.extra == 0
    thirds = Budget(10, 3, extra=1)
    assert [thirds.left(done) for done in (0, 8, 9, 10)] == [9, 1, 0, 0]
    assert Budget(3, 3, extra=3).left(2) == 0


def tiny() -> Any:
    return digits(SPEC.data, 0)


def warm_task() -> Any:
    return build_parts(SPEC, tiny()).learner.train()
