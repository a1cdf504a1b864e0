"""The commands that take models out of a run: what they say of new rows, and models as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kinfolk.cli.shared import AllowImport, AsJson, examples, out, print_json
from kinfolk.errors import KinfolkError

models = typer.Typer()

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Whose = Annotated[str | None, typer.Option("--client", metavar="NAME", help="The model of this client.")]
Group = Annotated[int | None, typer.Option("--group", metavar="K", help="The model of this group.")]
Kind = Annotated[
    str | None, typer.Option("--kind", help="personal, centre or fine-tuned; default: the method's main one.")
]
Round = Annotated[str, typer.Option("--round", help="last, best (on validation rows) or a number.")]


def _round(word: str) -> str | int:
    return int(word) if word.isdigit() else word


@models.command(
    epilog=examples(
        "kinfolk predict runs/mine new.csv --client ann --out said.csv",
        "kinfolk predict runs/mine photos/ --group 2 --kind centre --round best",
    )
)
def predict(
    run: RunFolder,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A table, an npz file, or a folder of images.")
    ],
    client: Whose = None,
    group: Group = None,
    kind: Kind = None,
    round_: Round = "last",
    file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write all rows into this csv file.")
    ] = None,
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Let a model of a run predict new rows."""
    from kinfolk.experiment.new_rows import read_rows
    from kinfolk.report.predictions import predictions_frame, predictions_table, write_predictions
    from kinfolk.trained import load

    found: Any = load(run)
    name, rows, notes = read_rows(data, found.outline)
    given: dict[str, Any] = {"client": client, "group": group, "kind": kind, "round": _round(round_)}
    chances = found.predict(rows, **given, proba=True) if found.outline.kind in ("class", "binary") else None
    frame = predictions_frame(name, found.predict(rows, **given), chances, found.class_names)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if file is not None:
        write_predictions(frame, file)
    if json_:
        print_json({"rows": frame.to_dict("records"), "file": str(file) if file else None})
        return
    out().print(predictions_table(frame))
    print(f"{len(frame)} rows" + (f"\nfile: {file}" if file else "; --out FILE writes all of them"))


@models.command(
    epilog=examples(
        "kinfolk export runs/mine --client ann --out ann-model",
        "kinfolk export runs/mine --all --format safetensors,torch --out models",
    )
)
def export(
    run: RunFolder,
    folder: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to; new or empty.")],
    client: Whose = None,
    group: Group = None,
    everyone: Annotated[
        bool, typer.Option("--all", help="Every client's model, in a folder each; of groups, every group's.")
    ] = False,
    kind: Kind = None,
    round_: Round = "last",
    format_: Annotated[
        str, typer.Option("--format", metavar="NAME,...", help="safetensors, torch (.pt2), onnx.")
    ] = "safetensors",
    licence: Annotated[str, typer.Option("--licence", help="What the model card says of the licence.")] = "",
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Write models of a run as files, each with a model card."""
    from kinfolk.trained import load

    found: Any = load(run)
    how: dict[str, Any] = {
        "kind": kind,
        "round": _round(round_),
        "formats": [word.strip() for word in format_.split(",") if word.strip()],
        "licence": licence,
    }
    if everyone:
        if client is not None or group is not None:
            raise KinfolkError("--all", None, "means every model; leave --client and --group out")
        files = found.export_all(folder, **how)
    else:
        files = found.export(folder, client, group, **how)
    if json_:
        print_json({"folder": str(folder), "files": [str(path) for path in files]})
        return
    total = sum(path.stat().st_size for path in files)
    shown = files if len(files) <= 12 else files[:12]
    for path in shown:
        print(path)
    more = f", {len(files) - len(shown)} more" if len(shown) < len(files) else ""
    print(f"{len(files)} files{more}, {total:,} bytes")
