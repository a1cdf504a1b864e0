"""Loggers: the numbers of the records arrive, once each, and whatever was opened is closed."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from small_runs import go

from kinfolk.errors import KinfolkError
from kinfolk.experiment.callbacks import all_of
from kinfolk.experiment.loggers import logged, metrics_of
from kinfolk.experiment.record import read_rounds


class Writer:
    """Stands in for all three: what it was told."""

    def __init__(self, *args, **options):
        self.opened, self.told, self.closed = (args, options), [], 0

    def add_scalar(self, name, value, step):
        self.told.append((step, name, value))

    def log(self, metrics, step):
        self.told += [(step, *pair) for pair in metrics.items()]

    log_metrics = log

    def close(self):
        self.closed += 1

    finish = end_run = close


@pytest.fixture
def stand_in(monkeypatch):
    def install(name):
        made = []

        def make(*args, **options):
            made.append(Writer(*args, **options))
            return made[-1]

        module = ModuleType("stand_in")
        if name == "tensorboard":
            module.SummaryWriter = make
            monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
        elif name == "wandb":
            module.init = make
            monkeypatch.setitem(sys.modules, "wandb", module)
        else:
            module.params = []
            module.start_run = make
            module.log_params = module.params.append
            module.log_metrics = lambda metrics, step: made[-1].log(metrics, step)
            module.end_run = lambda: made[-1].close()
            monkeypatch.setitem(sys.modules, "mlflow", module)
        return made, module

    return install


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_every_evaluation_arrives_once(name, stand_in, tmp_path):
    made, module = stand_in(name)
    with logged(name) as listener:
        for seed in (0, 1):
            go(tmp_path / f"r{seed}", f"run.seed={seed}", "run.evaluate_every=2", watch=listener())
        assert [writer.closed for writer in made] == [1, 0]
    assert [writer.closed for writer in made] == [1, 1]
    wanted = [
        (line["round"], metric, value)
        for line in read_rounds(tmp_path / "r1")
        if "summary" in line
        for metric, value in metrics_of(line["summary"]).items()
    ]
    assert made[1].told == wanted
    assert [step for step, metric, _ in wanted if metric == "centre/accuracy/macro"] == [0, 2, 3]
    args, options = made[1].opened
    if name == "tensorboard":
        assert args == (tmp_path / "r1/tensorboard",)
    if name == "mlflow":
        assert options == {"run_name": "fedavg seed 1"}
        assert module.params[1]["local.lr"] == 0.1
    if name == "wandb":
        assert (options["mode"], options["dir"]) == ("offline", str(tmp_path / "r1"))
        assert options["config"]["run.seed"] == 1


def test_a_run_that_fails_closes_its_logger(stand_in, tmp_path):
    made, _ = stand_in("wandb")

    def fail(event, facts):
        if event == "round" and facts["round"] == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), logged("wandb") as listener:
        go(tmp_path / "r", watch=all_of(listener(), fail))
    assert made[0].closed == 1


def test_a_function_may_stop_the_run(tmp_path):
    with logged(lambda round, metrics: "stop" if round == 2 else None) as listener:
        assert go(tmp_path / "r", watch=listener()).rounds == 2


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("tensorbord", "did you mean 'tensorboard'"),
        (3, "log = 3: give tensorboard, mlflow, wandb, or a function"),
        ("mlflow", r'log = .mlflow.: needs a package that is not installed; pip install "kinfolk\[mlflow\]"'),
    ],
)
def test_what_cannot_be_logged_to_is_said_at_once(log, line, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(KinfolkError, match=line), logged(log):
        pass
