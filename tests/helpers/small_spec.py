"""An experiment of a second."""

from kinfolk.experiment.spec import DataSpec, Experiment, ModelSpec, RunSpec

SPEC = Experiment(
    data=DataSpec(clients=8, rows=20), model=ModelSpec("mlp", {"hidden": [8]}), run=RunSpec(rounds=1)
)
