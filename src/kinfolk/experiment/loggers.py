"""What a run has scored, evaluation by evaluation, for TensorBoard, MLflow, Weights & Biases or a function.

Each is an extra (`pip install "kinfolk[tensorboard]"`) and imported when it is asked for. Everything stays on
this machine: TensorBoard writes into the run folder, Weights & Biases is offline unless WANDB_MODE says
otherwise, MLflow goes where MLFLOW_TRACKING_URI says.
"""

from __future__ import annotations

import importlib
import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kinfolk.algorithms.options import flat_options
from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.callbacks import Callbacks, Facts
from kinfolk.experiment.run import Watch

Metrics = dict[str, float]
# `log(round, metrics)`, where metrics are by `model/score/over`, as "centre/accuracy/macro".
Log = Callable[[int, Metrics], Any]
# Of all ways to make one number of all clients, those worth a curve.
CURVES = ("macro", "micro", "worst")


def _tensorboard(facts: Facts) -> tuple[Log, Callable[[], Any]]:
    writer = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter(facts["folder"] / "tensorboard")

    def log(round: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, round)

    return log, writer.close


def _mlflow(facts: Facts) -> tuple[Log, Callable[[], Any]]:
    mlflow = _module("mlflow")
    mlflow.start_run(run_name=_name(facts))
    mlflow.log_params(_settings(facts))
    return lambda round, metrics: mlflow.log_metrics(metrics, step=round), mlflow.end_run


def _wandb(facts: Facts) -> tuple[Log, Callable[[], Any]]:
    wandb, mode = _module("wandb"), os.environ.get("WANDB_MODE", "offline")
    options = {"name": _name(facts), "dir": str(facts["folder"]), "config": _settings(facts), "mode": mode}
    run = wandb.init(project="kinfolk", reinit=True, **options)
    return lambda round, metrics: run.log(metrics, step=round), run.finish


LOGGERS = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}


@contextmanager
def logged(log: str | Log | None) -> Iterator[Callable[[], Watch]]:
    """Makes a listener for each run; what a run has opened is closed when the next begins, or at the end.

    >>> with logged(lambda round, metrics: print(round, metrics)) as listener:
    ...     listen = listener()
    ...     _ = listen("engine", {"title": "fedavg", "seed": 0, "folder": Path("runs/a"), "rounds": 20})
    ...     listen("evaluate", {"round": 5, "summary": {"centre": {"accuracy": {"macro": 0.5}}}})
    5 {'centre/accuracy/macro': 0.5}
    """
    if isinstance(log, str):
        if log not in LOGGERS:
            raise KinfolkError("log", log, near(log, LOGGERS))
        _module("torch.utils.tensorboard" if log == "tensorboard" else log, log)  # now, not after round 0
    elif log is not None and not callable(log):
        raise KinfolkError("log", log, f"give {', '.join(LOGGERS)}, or a function of round and metrics")
    closing: list[Callable[[], Any]] = []

    def close() -> None:
        while closing:
            closing.pop()()

    def listener() -> Watch:
        close()
        held: list[Log] = [log] if callable(log) else []

        def on_evaluate(facts: Facts) -> Any:
            if isinstance(log, str) and not held:
                write, end = LOGGERS[log](facts)
                held.append(write)
                closing.append(end)
            return held[0](facts["round"], metrics_of(facts["summary"])) if held else None

        return Callbacks(on_evaluate=on_evaluate if log is not None else None)

    try:
        yield listener
    finally:
        close()


def metrics_of(summary: Facts) -> Metrics:
    """A summary as numbers by name; what nobody could be scored by is left out.

    >>> metrics_of({"centre": {"mse": {"macro": 2.0, "worst": 3.0, "micro": float("nan"), "spread": 1.0}}})
    {'centre/mse/macro': 2.0, 'centre/mse/worst': 3.0}
    """
    return {
        f"{model}/{score}/{over}": float(by[over])
        for model, scores in summary.items()
        for score, by in scores.items()
        for over in CURVES
        if by.get(over) is not None and by[over] == by[over]
    }


def _module(name: str, extra: str = "") -> Any:
    extra = extra or name
    try:
        return importlib.import_module(name)
    except ImportError as error:
        remedy = f'needs a package that is not installed; pip install "kinfolk[{extra}]"'
        raise KinfolkError("log", extra, remedy) from error


def _name(facts: Facts) -> str:
    return f"{facts['title']} seed {facts['seed']}"


def _settings(facts: Facts) -> Facts:
    """Every setting of the run, by dotted name."""
    return flat_options(tomllib.loads((Path(facts["folder"]) / "spec.toml").read_text(encoding="utf-8")))
