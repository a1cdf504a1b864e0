"""`kinfolk trust`: who trusts whom in SLFed, round by round."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kinfolk.cli.shared import AsJson, Sets, SpecFile, examples, out, print_json, read_spec
from kinfolk.errors import KinfolkError

EXAMPLES = examples(
    "kinfolk trust configs/digits.toml --out runs/trust",
    "kinfolk trust configs/digits.toml --direct 2 --set algorithm.name=slfed --set algorithm.images=noise",
)


def trust(
    spec: SpecFile = None,
    direct: Annotated[
        list[int] | None, typer.Option("--direct", help="Direct partners; repeatable; left out: 1 and 2.")
    ] = None,
    set_: Sets = None,
    folder: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it was stopped.")] = False,
    json_: AsJson = False,
) -> None:
    """Trace the opinions of SLFed's clients: a table, and a figure of uncertainty, lists and trust."""
    from kinfolk.cli.progress import telling
    from kinfolk.experiment.spec import run_id
    from kinfolk.experiment.trust_record import trace_trust, with_direct
    from kinfolk.report.trust_figure import trust_figure, trust_table

    numbers = sorted(direct or (1, 2))
    if len(set(numbers)) < len(numbers):
        raise KinfolkError("--direct", numbers, "give each number once")
    experiment = read_spec(spec, set_)
    where = folder or Path("runs") / f"trust-{run_id(experiment)}"
    traces = []
    with telling(experiment.run.rounds * len(numbers), quiet=json_) as teller:
        for number in numbers:
            told = teller.watch(f"DS = {number}")
            here = where / f"direct{number}"
            traces.append(trace_trust(with_direct(experiment, number), here, resume=resume, watch=told))
    figure = trust_figure(traces, where / "trust.png")
    if json_:
        print_json({"folder": str(where), "figure": str(figure), "traces": traces})
        return
    out().print(trust_table(traces))
    print(f"folder: {where}\nfigure: {figure}")
