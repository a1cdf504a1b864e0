"""Targets of all kinds, losses and metrics of the user: runs, records, reports, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from rich.console import Console
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor, nn

import kinfolk
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.record import read_scores
from kinfolk.experiment.spec import Experiment, dump, override, parse
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.report.figures import comparison_figure
from kinfolk.report.read import load_runs
from kinfolk.report.tables import comparison_table, run_table

SIZES = (17, 30, 26)
W = torch.tensor([[1.0, -0.5, 0.2], [0.3, 1.0, -1.0], [-1.0, 0.4, 1.0], [0.1, 0.2, 0.3]])


def clients(targets, seed: int = 0) -> dict[str, tuple[Tensor, Any]]:
    draw = torch.Generator().manual_seed(seed)
    rows = [torch.randn(n, 4, generator=draw) for n in SIZES]
    return {f"c{i}": (x, targets(x)) for i, x in enumerate(rows)}


class PerPlace(nn.Module):
    """Five positions of three classes, the classes last or first."""

    def __init__(self, axis: int = -1, places: int = 5) -> None:
        super().__init__()
        self.axis, self.places, self.inside = axis, places, nn.Linear(4, places * 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inside(x).reshape(len(x), self.places, 3)
        return out if self.axis == -1 else out.movedim(-1, 1)


def places(x: Tensor) -> Tensor:
    y = (x.abs().sum(1, keepdim=True) * torch.arange(1, 6)).long() % 3
    y[:, 0] = -100
    return y


def survival(x: Tensor) -> dict[str, Tensor]:
    return {"time": (x[:, 0].abs() + 0.1).exp(), "event": (x[:, 1] > -0.5).float()}


def exponential(out: Tensor, y: dict[str, Tensor]) -> Tensor:
    """Minus the log-likelihood of a constant hazard exp(out)."""
    return y["time"] * out[:, 0].exp() - y["event"] * out[:, 0]


def mean_gap(out: Tensor, y: Any) -> Tensor:
    return (out.softmax(1).amax(1) - 0.5).mean()


mean_gap.lower_is_better = True  # type: ignore[attr-defined]

KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "class": (lambda: nn.Linear(4, 3), lambda x: (x @ W).argmax(1), {"metrics": ["auroc"]}),
    "labels": (lambda: nn.Linear(4, 3), lambda x: (x @ W > 0).float(), {"metrics": ["auroc"]}),
    "whole labels": (lambda: nn.Linear(4, 3), lambda x: (x @ W > 0).long(), {"metrics": ["auroc"]}),
    "binary": (lambda: nn.Linear(4, 1), lambda x: (x[:, 0] > 0).long(), {"metrics": ["auroc"]}),
    "positions": (lambda: PerPlace(), places, {"metrics": ["iou"]}),
    "positions first": (lambda: PerPlace(1), places, {"metrics": ["iou", "balanced_accuracy"]}),
    "soft": (lambda: nn.Linear(4, 3), lambda x: (x @ W).softmax(1), {"loss": "cross_entropy"}),
    "numbers": (lambda: nn.Linear(4, 3), lambda x: x @ W, {"metrics": ["r2"]}),
    "any": (lambda: nn.Linear(4, 1), survival, {"loss": exponential, "metrics": ["c_index"]}),
}
SCORES = {
    "class": {"loss", "accuracy", "macro_f1", "auroc"},
    "labels": {"loss", "accuracy", "macro_f1", "auroc"},
    "binary": {"loss", "accuracy", "macro_f1", "auroc"},
    "positions": {"loss", "accuracy", "perplexity", "iou"},
    "soft": {"loss", "accuracy", "macro_f1"},
    "numbers": {"loss", "mse", "mae", "r2"},
    "any": {"loss", "c_index"},
}
ENGINES = ("loop", "batched", "wire", "workers")


def run(kind: str, engine: str = "loop", rounds: int = 2, **settings: Any) -> Any:
    network, targets, options = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made = network()
    given = {"engine.name": engine, "engine.device": "cpu", "local.lr": 0.3, "local.batch": 7} | settings
    return kinfolk.run(made, clients(targets), rounds=rounds, settings=given, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_all_engines_score_every_kind_of_targets_alike(kind):
    found = {}
    for engine in ENGINES if kind in ("class", "any") else ENGINES[:2]:
        frame = read_scores(run(kind, engine).folder)
        found[engine] = frame.set_index(["round", "client", "model", "score"])["value"].sort_index()
    loop = found.pop("loop")
    plain = kind.removeprefix("whole ").removesuffix(" first")
    extra = {"balanced_accuracy"} if "first" in kind else set()
    assert set(loop.index.get_level_values("score")) == SCORES[plain] | extra
    for other in found.values():
        assert list(other.index) == list(loop.index)
        assert other.to_numpy() == pytest.approx(loop.to_numpy(), rel=1e-5, abs=1e-6, nan_ok=True)
    losses = loop[loop.index.get_level_values("score") == "loss"].groupby("round").mean()
    assert losses.iloc[-1] < losses.iloc[0], "it learns"


def test_a_metric_is_that_of_the_clients_own_test_rows():
    result = run("labels", "batched")
    trained = kinfolk.load(result.folder, network=nn.Linear(4, 3))
    federation = from_arrays(clients(KINDS["labels"][1]))
    frame = read_scores(result.folder)
    told = frame[(frame["score"] == "auroc") & (frame["round"] == 2)].set_index("client")["value"]
    for i, who in enumerate(federation.clients):
        x, y = federation.take(federation.splits["test"].rows(i))
        p = trained.predict(x, proba=True)
        kept = [c for c in range(3) if 0 < y[:, c].sum() < len(y)]
        expected = sum(roc_auc_score(y[:, c], p[:, c]) for c in kept) / len(kept)
        assert told[who] == pytest.approx(expected), who
    said = trained.predict(x)
    assert said.shape == (len(x), 3)
    assert set(said.ravel()) <= {0, 1}


@pytest.mark.parametrize(
    ("kind", "shape", "chances"),
    [
        ("binary", (2,), (2, 2)),
        ("positions first", (2, 5), (2, 5, 3)),
        ("soft", (2,), (2, 3)),
        ("any", (2,), None),
    ],
)
def test_predictions_of_every_kind(kind, shape, chances):
    trained = kinfolk.load(run(kind).folder, network=KINDS[kind][0])
    assert trained.predict(torch.zeros(2, 4)).shape == shape
    if chances:
        assert trained.predict(torch.zeros(2, 4), proba=True).shape == chances
        assert trained.predict(torch.zeros(2, 4), proba=True).sum(-1) == pytest.approx(1.0)


def note(kind: str, **settings: Any) -> tuple[str, str, str]:
    network, targets, _ = KINDS[kind]
    parts = build_parts(override(Experiment(), settings), from_arrays(clients(targets)), network())
    return parts.learner.loss.name, parts.learner.loss.target, parts.note


def test_whole_numbers_of_several_columns_are_numbers_if_the_loss_says_so():
    y = torch.randint(0, 5, (9, 4), generator=torch.Generator().manual_seed(0))
    rows = {"ann": (torch.randn(9, 2), y), "bob": (torch.randn(9, 2), y)}
    spec = override(Experiment(), {"local.loss": "mse", "model.name": "logistic"})
    learner = build_parts(spec, from_arrays(rows)).learner
    assert (learner.loss.target, learner.outputs) == ("numbers", 4)
    assert learner.apply(learner.first, torch.zeros(2, 2)).shape == (2, 4)


@pytest.mark.parametrize("outputs", [1, 3])
def test_bce_takes_probabilities_as_pytorch_does(outputs, tmp_path):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(12, 4, generator=draw)
    y = torch.rand(12, outputs, generator=draw)
    y = y[:, 0] if outputs == 1 else y
    settings = {"local.loss": "bce", "local.batch": 12, "local.epochs": 1, "local.lr": 0.5}
    network = nn.Linear(4, outputs)
    start = [p.detach().clone() for p in network.parameters()]
    given = {"test": {"ann": (x, y)}, "rounds": 1, "settings": settings, "progress": False}
    more = ["auroc", *(["balanced_accuracy"] if outputs == 1 else [])]
    kinfolk.run(network, {"ann": (x, y)}, folder=tmp_path / "run", metrics=more, **given)
    found = kinfolk.load(tmp_path / "run", network=network)
    by_hand = nn.Linear(4, outputs)
    by_hand.load_state_dict(dict(zip(("weight", "bias"), start, strict=True)))
    loss = nn.functional.binary_cross_entropy_with_logits(by_hand(x).reshape(y.shape), y)
    slopes = torch.autograd.grad(loss, list(by_hand.parameters()))
    after = found.model()
    for got, p, slope in zip(after.parameters(), start, slopes, strict=True):
        torch.testing.assert_close(got.detach(), p - 0.5 * slope, rtol=1e-5, atol=1e-6)
    value = found.scores.query("round == 1").set_index("score")["value"]
    out, likelier = after(x).detach().reshape(y.shape), y > 0.5
    assert value["accuracy"] == pytest.approx(float(((out > 0) == likelier).double().mean()))
    columns = [(likelier, out)] if outputs == 1 else [(likelier[:, c], out[:, c]) for c in range(3)]
    assert value["auroc"] == pytest.approx(sum(roc_auc_score(a, b) for a, b in columns) / outputs)
    if outputs == 1:
        assert value["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(likelier, out > 0))


@pytest.mark.parametrize(
    ("says", "words"),
    [(lambda out, y: "high", "gives a str"), (lambda out, y: 1 / 0, "failed: ZeroDivisionError")],
)
def test_a_metric_that_gives_no_number_ends_a_run_before_anything_is_written(says, words, tmp_path):
    metric = kinfolk.Metric(says, name="mine")
    rows = clients(KINDS["class"][1])
    with pytest.raises(KinfolkError, match=rf"run.metrics = 'mine': {words}"):
        kinfolk.run(
            nn.Linear(4, 3), rows, metrics=[metric], rounds=1, folder=tmp_path / "run", progress=False
        )
    assert not (tmp_path / "run").exists()


def test_what_is_guessed_is_said():
    name, target, said = note("labels")
    assert (name, target) == ("bce", "labels")
    assert "all 0 or 1: taken as labels with loss 'bce'; local.loss='mse' makes them numbers" in said
    name, target, said = note("binary")
    assert (name, target) == ("bce", "binary")
    assert "one output" in said
    assert note("labels", **{"local.loss": "mse"}) == ("mse", "numbers", "")
    assert note("binary", **{"local.loss": "focal"})[:2] == ("focal", "binary")
    assert note("class") == ("cross_entropy", "class", "")
    warned = [json.loads(line) for line in (run("labels").folder / "audit.jsonl").read_text().splitlines()]
    assert any("taken as labels" in line.get("text", "") for line in warned)


@pytest.mark.usefixtures("torch_allowed")
@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("numbers", {"local.loss": "bce"}, r"local.loss = 'bce': the data have numbers.*float32 \[rows, 3\]"),
        ("numbers", {"local.loss": "cross_entropy"}, "it takes whole numbers.*probabilities"),
        ("class", {"local.loss": "bce"}, r"the data have 3 classes \(int64 \[rows\]\); it takes 0 or 1"),
        ("class", {"local.loss": "mse"}, "the data have 3 classes.*it takes numbers.*; write y as floats"),
        ("any", {}, r"targets of several parts \(time, event\) need a loss of your own"),
        (
            "binary",
            {"local.loss": "cross_entropy"},
            r"gives outputs of shape \(1,\), the data need 2 classes",
        ),
        ("class", {"run.monitor": "acuracy"}, r"run.monitor = 'acuracy': did you mean 'accuracy'"),
        ("class", {"run.metrics": ["aurok"]}, "run.metrics = 'aurok': did you mean 'auroc'"),
        (
            "class",
            {"run.metrics": ["auroc,a:b"]},
            r"several names are a list: run.metrics=\[\"auroc\", \"a:b\"\]",
        ),
        ("class", {"local.loss": "torch.nn:MSELoss"}, "failed|gives"),
        ("class", {"local.optimiser": "torch.optim:SGD"}, "holds the weights of one network; use sgd, adam"),
        (
            "class",
            {"local.optimiser": "adam", "local.optimiser_options": {"betas": [0.9]}},
            "give two numbers",
        ),
        (
            "class",
            {"local.optimiser": "adamw", "local.optimiser_options": {"betas": [0.9, 1.0]}},
            "give two numbers",
        ),
        (
            "class",
            {"local.optimiser": "rmsprop", "local.optimiser_options": {"alpha": 1.0}},
            r"alpha = 1.0: give",
        ),
        (
            "class",
            {"local.schedule": "cosine", "local.schedule_options": {"warmup": -1}},
            "warmup = -1: give 0 or",
        ),
        (
            "class",
            {"local.schedule": "step", "local.schedule_options": {"factor": -0.5}},
            "factor = -0.5: give 0",
        ),
        (
            "class",
            {"local.loss_options": {"class_weights": [1.0, 2.0]}},
            "'2 numbers': give one for each of 3 cla",
        ),
        (
            "class",
            {"local.loss_options": {"class_weights": [1.0] * 4}},
            "'4 numbers': give one for each of 3 class",
        ),
        (
            "class",
            {"local.loss_options": {"class_weights": [1.0, -1, 1]}},
            "class_weights = -1: give numbers of 0",
        ),
        (
            "labels",
            {"local.loss_options": {"pos_weight": [1.0, 2.0]}},
            "'2 numbers': give one for each of 3 labels",
        ),
        (
            "binary",
            {"local.loss_options": {"pos_weight": [1.0, 2.0]}},
            "'2 numbers': give one for each of 1 labels",
        ),
        (
            "labels",
            {"local.loss": "focal", "local.loss_options": {"class_weights": [1.0, 1, 1]}},
            "labels have no classes; leave it out",
        ),
        (
            "class",
            {"local.optimiser_options.nesterov": True},
            "nesterov = True: needs local.momentum above 0",
        ),
    ],
)
def test_what_does_not_fit_is_named_before_anything_runs(kind, changes, words):
    network, targets, _ = KINDS[kind]
    with pytest.raises(KinfolkError, match=words) as caught:
        build_parts(override(Experiment(), changes), from_arrays(clients(targets)), network())
    assert "\n" not in str(caught.value)


def test_as_many_classes_as_positions_are_not_guessed():
    y = lambda x: places(x)[:, 1:4]  # noqa: E731
    data, network = from_arrays(clients(y)), PerPlace(places=3)
    with pytest.raises(KinfolkError, match=r"local.loss_options.class_axis = 0: .* 1 or -1"):
        build_parts(Experiment(), data, network)
    for axis in (1, -1):
        spec = override(Experiment(), {"local.loss_options.class_axis": axis})
        assert build_parts(spec, data, network).learner.loss.class_axis == axis


def test_a_metric_of_the_user_is_in_records_tables_and_figures(tmp_path):
    draws = clients(KINDS["class"][1])
    settings = {"engine.name": "batched", "run.monitor": "mean_gap", "run.keep": "best", "data.valid": 0.2}
    table = kinfolk.compare(
        lambda: nn.Linear(4, 3), draws, ["fedavg", "local"], rounds=2, seeds=1, folder=tmp_path / "c",
        settings=settings, metrics=["auroc", mean_gap],
    )  # fmt: skip
    runs = load_runs(tmp_path / "c")
    assert [*runs[0].metrics] == ["accuracy", "macro_f1", "auroc", "mean_gap", "loss"]
    assert runs[0].facts["scores"]["mean_gap"]["lower_is_better"]
    console = Console(width=200)
    with console.capture() as text:
        console.print(run_table(runs[0]))
        console.print(comparison_table(runs, "mean_gap")[0])
    assert "mean_gap, lower is better" in text.get()
    assert comparison_figure(runs, tmp_path / "f.png", "mean_gap").stat().st_size > 10_000
    summary = table.results[0].summary["centre"]["mean_gap"]
    assert summary["worst"] >= summary["best"], "lower is better"
    line = json.loads((runs[0].path / "rounds.jsonl").read_text().splitlines()[-1])
    assert line["valid"]["centre"]["mean_gap"]["macro"] > 0


def test_the_monitored_score_chooses_settings_and_ends_runs():
    draws = clients(KINDS["class"][1])
    settings = {"run.monitor": "mean_gap", "engine.name": "loop", "local.batch": 7}
    found = kinfolk.tune(
        lambda: nn.Linear(4, 3), draws, ["fedavg"], rounds=2, space={"local.lr": [0.001, 0.5]},
        settings=settings, metrics=[mean_gap],
    )  # fmt: skip
    assert found.facts["score"] == "mean_gap"
    tried = [one["score"] for one in found.facts["methods"]]
    assert all(-0.5 <= score <= 0.5 for score in tried)
    target = {"run.target": 0.9, "run.target_score": "mean_gap", **settings}
    done = kinfolk.run(lambda: nn.Linear(4, 3), draws, rounds=5, settings=target, metrics=[mean_gap])
    assert done.reason == "mean_gap reached 0.9", "lower is better"


def test_a_failing_metric_or_loss_ends_a_run_with_one_line():
    def broken(out, y):
        raise ValueError("no such thing")

    for engine in ("loop", "batched"):
        with pytest.raises(KinfolkError, match=r"run.metrics = 'broken': failed: ValueError: no such thing"):
            kinfolk.run(
                nn.Linear(4, 3), clients(KINDS["class"][1]), rounds=1, metrics=[broken],
                settings={"engine.name": engine},
            )  # fmt: skip

    def scalar(out, y):
        return nn.functional.cross_entropy(out, y)

    with pytest.raises(KinfolkError, match=r"local.loss = .*scalar': gives \(\) for 1 rows; .*reduction"):
        kinfolk.run(nn.Linear(4, 3), clients(KINDS["class"][1]), rounds=1, loss=scalar)


def test_strong_privacy_tells_no_more_than_it_promises():
    spec = override(
        Experiment(),
        {"algorithm.name": "mdicfl", "algorithm.privacy": "strong", "run.metrics": ["auroc"]},
    )
    with pytest.raises(KinfolkError, match=r"run.metrics = \['auroc'\]: with strong privacy"):
        build_parts(spec)


def test_a_spec_holds_options_in_groups():
    text = """
    [local]
    loss = "focal"
    loss_options = {gamma = 1.5, class_weights = [1, 2]}
    [local.schedule_options]
    warmup = 3
    [run]
    metrics = ["auroc", "my.module:f"]
    """
    spec = parse(text)
    assert spec.local.loss_options == {"gamma": 1.5, "class_weights": [1, 2]}
    assert spec.local.schedule_options == {"warmup": 3}
    assert parse(dump(spec)) == spec
    assert override(spec, ["run.metrics=auroc"]).run.metrics == ["auroc"]
    assert override(spec, ["local.loss_options.gamma=1"]).local.loss_options["gamma"] == 1
    for wrong, words in (
        ("local.loss_options=1", "local.loss_options = 1: is a table"),
        ("run.metrics=3", "run.metrics = 3: give a list"),
        ("local.schedule=cosin", "did you mean 'cosine'"),
        ("local.loss=crossentropy", "did you mean 'cross_entropy'"),
    ):
        with pytest.raises(KinfolkError, match=re.escape(words)):
            override(spec, [wrong])


def test_schedules_over_rounds_are_told_how_many_there_are():
    spec = override(
        Experiment(),
        {
            "run.rounds": 5,
            "local.schedule": "linear",
            "local.lr": 1.0,
            "local.decay": 0.5,
            "local.tune_lr": 0.1,
        },
    )
    learner = build_parts(spec).learner
    assert [learner.descent().rate(r) for r in range(6)] == pytest.approx(
        [1.0, 0.5 * 0.8, 0.25 * 0.6, 0.125 * 0.4, 0.0625 * 0.2, 0.03125 * 0.2]
    )
    assert learner.tuning(1).descents[0].rate(4) == 0.1, "its own rate has no schedule"
