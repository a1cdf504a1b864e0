"""`kinfolk advise`: what to use for one's own federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kinfolk.cli.shared import AllowImport, AsJson, Sets, examples, out, print_json, read_spec

advising = typer.Typer()


@advising.command(
    epilog=examples(
        "kinfolk advise hospitals/",
        "kinfolk advise digits --minutes 2 --out runs/advised",
        "kinfolk run runs/advised/advice.toml",
    )
)
def advise(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Your own data: a folder of clients, a store, a table; or a spec, as for run.",
        ),
    ],
    budget: Annotated[
        float,
        typer.Option("--budget", metavar="N", help="Rounds of training in all trials together; 0: as usual."),
    ] = 0,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="M", help="Spend about so long instead of a budget.")
    ] = 0,
    clients: Annotated[int, typer.Option("--clients", help="Clients that take part in the trials.")] = 100,
    set_: Sets = None,
    folder: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it was stopped.")] = False,
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Advise on a method, groups and settings, by short trials on validation rows."""
    from kinfolk.advice.advise import prepare
    from kinfolk.advice.plan import Effort
    from kinfolk.experiment.spec import run_id
    from kinfolk.progress import telling
    from kinfolk.report.advice import advice_table, headline, next_lines, plan_lines

    experiment = read_spec(data, set_)
    where = folder or Path("runs") / f"advise-{run_id(experiment)}"
    console = out()
    advisor = prepare(experiment, where, Effort(budget, minutes, clients), resume=resume)
    if not json_:
        for line in plan_lines(advisor.described()):
            console.print(line, markup=False, highlight=False)
    with telling(advisor.plan.cost, quiet=json_) as teller:
        facts = advisor.go(teller.watch, lambda rounds: setattr(teller, "total", rounds))
    if json_:
        print_json({"folder": str(where), **facts})
        return
    table, notes = advice_table(facts)
    console.print()
    console.print(headline(facts), markup=False, highlight=False, style="bold")
    if table is not None:
        console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False)
    print(f"folder: {where}")
    for number, line in enumerate(next_lines(facts, str(where), str(data))):
        print(f"{'       ' if number else 'next:  '} {line}")
