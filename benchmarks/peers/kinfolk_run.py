"""FedAvg by Kinfolk, through its own `run`: records included, one score and one checkpoint at the end."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from work import UNTIMED, Clock, accuracy, missing, network, options, parser, report, rows

try:
    import kinfolk
    from kinfolk.experiment.describe import versions
    from kinfolk.experiment.run import run
    from kinfolk.experiment.sections import EngineSpec, Experiment, LocalSpec, ModelSpec, RunSpec
    from kinfolk.federation.own_data.arrays import from_arrays
    from kinfolk.federation.sources import DataSpec
except ModuleNotFoundError as problem:
    kinfolk = None
    absent = problem


def main() -> None:
    asked = parser()
    asked.add_argument("--engine", choices=("auto", "loop", "batched", "workers"), default="auto")
    given = asked.parse_args()
    if kinfolk is None:
        return missing("kinfolk", absent)
    o = options(given)
    data, clock, total = rows(o), Clock(o), o.rounds + UNTIMED
    # Every client gets a share of the test rows; the accuracy of all of them is taken below, as everywhere.
    tests = zip(data.test_x.tensor_split(o.users), data.test_y.tensor_split(o.users), strict=True)
    federation = from_arrays(list(zip(data.x, data.y, strict=True)), test=list(tests))
    spec = Experiment(
        data=DataSpec(name="own"),
        model=ModelSpec(o.setting),
        local=LocalSpec(batch=o.batch, lr=o.lr),
        engine=EngineSpec(given.engine, o.device, precision=o.precision),
        run=RunSpec(total, o.cohort / o.users, o.seed, evaluate_every=total, checkpoint_every=total),
    )
    note = []

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "engine":
            note.append(facts["note"])
        if event == "round" and facts["round"]:
            assert facts["answered"] == o.cohort
            clock.tick()

    net = network(o.setting)
    with tempfile.TemporaryDirectory() as folder:
        result = run(spec, Path(folder) / "run", federation=federation, network=net, watch=watch)
    net.load_state_dict(result.state.model)
    how = f"{given.engine} ({note[0]})" if given.engine == "auto" else note[0]
    report(clock, accuracy(net, data), "kinfolk", versions()["kinfolk"], how)


if __name__ == "__main__":
    main()
