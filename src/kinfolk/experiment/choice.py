"""Which engine a run gets, and how much it has to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from kinfolk.engines.choose import ENGINES, Choice, choose
from kinfolk.engines.link import Link
from kinfolk.engines.spec import EngineSpec
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import Parts, first_rows
from kinfolk.experiment.cautions import cautions
from kinfolk.learning.batchable import cost, obstacle
from kinfolk.script import Rehearses

# A last batch is too small for BatchNorm if it is this many times smaller than the others: of 1,250 rows in
# batches of 32 the last has two, and models that are scored right after it lost 17 points of 49.
SCANT = 6


def chosen(parts: Parts, link: Link | None) -> Choice:
    """The engine that suits these parts on this machine.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import Experiment
    >>> chosen(build_parts(Experiment(engine=EngineSpec("loop", "cpu"))), None).name
    'loop'
    """
    engine, federation = parts.spec.engine, parts.federation
    if link is not None:  # one process of its own, which is all it may use
        engine = replace(engine, name=engine.inner, processes=1)
    x, y = first_rows(federation, 2)
    blocked = obstacle(parts.learner, x, y)
    size = cost(parts.learner, x)
    local, rows = parts.spec.local, federation.splits["train"].counts().double().mean()
    steps = local.steps or local.epochs * float(rows) / local.batch
    cohort = max(1, round(parts.spec.run.participation * len(federation.clients)))
    choice = choose(engine, size, local.batch, cohort, blocked, steps)
    secrets = public_secrets(parts, choice.name, link is not None)
    lines = (choice.warning, parts.note, scant_batches(parts), secrets, *cautions(parts))
    choice = replace(choice, warning="; ".join(filter(None, lines)))
    return choice.but(device=str(link.device)) if link and choice.device.type == "cuda" else choice


def at_sites(parts: Parts) -> Choice:
    """What the lead of a deployment computes with; the work itself is done at the sites.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import Experiment
    >>> at_sites(build_parts(Experiment())).device
    device(type='cpu')
    """
    engine = replace(parts.spec.engine, name="loop", device="cpu", chunk=0, lanes=1, processes=1)
    return Choice(engine, "its clients are at sites of their own", parts.note)


def scant_batches(parts: Parts) -> str:
    """A warning where BatchNorm would learn from last batches of very few rows; empty where it does not.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import Experiment
    >>> scant_batches(build_parts(Experiment()))
    ''
    """
    plan, rows = parts.learner.plan, parts.federation.splits["train"].counts()
    left = rows % plan.batch
    scant = (rows > plan.batch) & (left > 1) & (left * SCANT <= plan.batch)
    if not (plan.drop_single and bool(scant.any())) or plan.drop_last:
        return ""
    few = int(left[scant].min())
    return (
        f"{int(scant.sum())} clients end an epoch with a batch of {few} or a few more rows, "
        "from which BatchNorm learns little good; local.drop_last=true leaves it out"
    )


def public_secrets(parts: Parts, engine: str, linked: bool) -> str:
    """A warning where an algorithm's secrets follow from the seed; refused where messages leave the process.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import AlgorithmSpec, Experiment
    >>> secret, public = (AlgorithmSpec("slfed", {"shares.entropy": e}) for e in ("system", "stream"))
    >>> public_secrets(build_parts(Experiment(algorithm=secret)), "wire", False)
    ''
    >>> public_secrets(build_parts(Experiment(algorithm=public)), "wire", False)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.shares.entropy = 'stream': no mask is secret, and engine 'wire'...
    """
    algorithm = parts.algorithm
    setting = algorithm.public_secrets() if isinstance(algorithm, Rehearses) else ""
    if not setting:
        return ""
    field, _, value = setting.partition("=")
    if linked or not ENGINES[engine].in_process:
        where = "distributed" if linked else engine
        remedy = f"no mask is secret, and engine {where!r} leaves the process; use 'system'"
        raise KinfolkError(field, value, remedy)
    return f"{field} = {value!r} is for tests only: every mask follows from the seed, NO MODEL IS HIDDEN"


def work(parts: Parts) -> float:
    """Operations of the whole run, by a count of one row's.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import Experiment, RunSpec
    >>> one, two = (work(build_parts(Experiment(run=RunSpec(rounds=n)))) for n in (1, 2))
    >>> two / one
    2.0
    """
    local, spec = parts.spec.local, parts.spec.run
    counts = parts.federation.splits["train"].counts().double()
    rows = float(counts.sum()) * local.epochs if not local.steps else len(counts) * local.steps * local.batch
    x, _ = first_rows(parts.federation, 1)
    return 3 * cost(parts.learner, x).flops * rows * spec.participation * spec.rounds


# What was tried out or follows from the machine, and has other bits if it changes.
KEPT = ("chunk", "lanes", "processes")


def kept(choice: Choice, asked: EngineSpec, folder: Path) -> Choice:
    """The choice of the run that is resumed, if it was of the same kind, but for what is asked for now.

    >>> mine = Choice(EngineSpec("loop", "cpu"), "as asked")
    >>> kept(mine, EngineSpec(), Path("nowhere")) == mine
    True
    """
    try:
        old = json.loads((folder / "run.json").read_text())["choice"]
        if (old["name"], old["device"]) != (choice.name, choice.device.type):
            return choice
        same = {key: int(old[key]) for key in KEPT if key in old and not getattr(asked, key)}
        return choice.but(str(old["why"]), **same)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return choice
