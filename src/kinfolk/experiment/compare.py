"""Several algorithms, several seeds, one description of a federation: the runs behind a comparison table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinfolk.engines.link import follows
from kinfolk.errors import BrokeDown, KinfolkError
from kinfolk.experiment.build import Network, build_parts
from kinfolk.experiment.method import Method, parse_algorithm, parse_method
from kinfolk.experiment.record import FORMAT, check_format, write_json
from kinfolk.experiment.run import Result, Watch, run
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.seeds import Seeds, seed_numbers
from kinfolk.experiment.stopping import Stopped
from kinfolk.federation.federation import Federation
from kinfolk.federation.sources import build
from kinfolk.lock import writing
from kinfolk.streams import Seed

__all__ = ["DEFAULT", "compare", "parse_algorithm", "parse_methods", "planned"]

# Who is compared if nobody is named: no training together, one model, models of one's own, models of groups.
# Each takes any data and network; `kinfolk list` has all, among them methods for classes alone and baselines
# that are wrong on purpose.
DEFAULT = ("local", "fedavg", "fedavg_tuned", "fedprox", "ifca", "fesem")


def compare(
    spec: Experiment,
    algorithms: Sequence[str],
    seeds: Seeds,
    folder: Path,
    *,
    federation: Callable[[Seed], Federation] | None = None,
    network: Network | None = None,
    resume: bool = False,
    watch: Callable[[str, int], Watch] = lambda title, seed: lambda event, facts: None,
) -> list[Result]:
    """Run every algorithm with every seed; for one seed all of them see the same federation and cohorts.

    The runs are subfolders `<title>-seed<k>` of the folder, and `compare.json` lists them. A run that breaks
    down does not keep others from running: it is missing in what is returned, and its records say why.
    """
    numbers = seed_numbers(seeds, spec.run.seed)
    methods = parse_methods(spec, algorithms or DEFAULT)
    leads = not follows(spec.engine.name)
    make = federation or (lambda seed: build(spec.data, seed))
    runs = {f"{one.folder}-seed{k}": (one, k) for one in methods.values() for k in numbers}
    with writing(folder) if leads else nullcontext():
        if leads and (folder / "compare.json").exists() and not resume:
            remedy = "a comparison is there already; add resume=True or choose another folder"
            raise KinfolkError("folder", str(folder), remedy)
        data = {k: make(Seed(k)) for k in numbers}
        for one in methods.values():  # every spec is checked before the first of them runs
            build_parts(one.spec, data[numbers[0]], network)
        if leads:
            check_format(folder, "compare.json")
            write_json(folder / "compare.json", {"format": FORMAT, "runs": list(runs)})
        return run_all(runs, folder, data, {"network": network, "resume": resume}, watch)


def run_all(
    runs: Mapping[str, tuple[Method, int]],
    folder: Path,
    data: Mapping[int, Federation],
    given: Mapping[str, Any],
    watch: Callable[[str, int], Watch],
) -> list[Result]:
    """Every run in turn, by the name of its folder, with `data` by seed; a breakdown stops no other."""
    results, broken = [], list[BrokeDown]()
    for where, (one, k) in runs.items():
        seeded = replace(one.spec, run=replace(one.spec.run, seed=k))
        listen = watch(one.title, k)
        try:
            results.append(
                run(seeded, folder / where, federation=data[k], own=one.own, watch=listen, **given)
            )
        except BrokeDown as problem:
            broken.append(problem)
        except Stopped as stop:
            raise Stopped(stop.round, stop.signal, f"{one.title} seed {k}") from None
    if not results:
        raise broken[0]
    return results


def planned(spec: Experiment, algorithms: Sequence[str], seeds: Seeds) -> list[tuple[str, int]]:
    """The title and the seed of every run of a comparison, in order.

    >>> planned(Experiment(), ["local", "fesem,k=2"], 2)
    [('local', 0), ('local', 1), ('fesem k=2', 0), ('fesem k=2', 1)]
    """
    numbers = seed_numbers(seeds, spec.run.seed)
    return [(title, k) for title in parse_methods(spec, algorithms or DEFAULT) for k in numbers]


def parse_methods(spec: Experiment, algorithms: Sequence[str]) -> dict[str, Method]:
    """The methods of a comparison by their titles; the same twice is an error."""
    found: dict[str, Method] = {}
    for text in algorithms:
        one = parse_method(text, spec)
        if one.title in found:
            remedy = "is named twice; leave one out or change its options or settings"
            raise KinfolkError("algorithm", one.title, remedy)
        found[one.title] = one
    return found
