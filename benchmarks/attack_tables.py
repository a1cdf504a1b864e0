"""Markdown tables of folders of `kinfolk attack`, or of what its `--json` printed: one for each method.

python benchmarks/attack_tables.py FOLDER|FILE.json ... [--figure attack-lab.png]

A row for each attack and number of attackers, a column for each defence: the honest clients' score in %,
mean ± sample standard deviation over seeds, in brackets the worst client; of back doors their success behind
a comma. The figure has the mean and the median, all methods; files may hold one attack or method each.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from kinfolk.report.attacks import attack_figure, attack_rows

Row = dict[str, Any]


def cell(row: Row) -> str:
    """One cell of a table."""
    if row["refused"]:
        return "refused"
    score, worst, success = (known(row[key]["mean"]) for key in ("score", "worst", "success"))
    deviation = known(row["score"]["std"])
    marks = f" ({row['status']})" * bool(row["status"]) + f" ({row['lost']} lost)" * bool(row["lost"])
    text = f"{100 * score:.1f} ± {100 * deviation:.1f} ({100 * worst:.0f}){marks}"
    return text if math.isnan(success) else f"{text}, {100 * success:.0f}"


def read(file: Path) -> list[Row]:
    """The rows in a file."""
    rows: list[Row] = json.loads(file.read_text())["rows"]
    return rows


def known(value: float | None) -> float:
    """JSON has no NaN."""
    return math.nan if value is None else value


def tables(rows: list[Row]) -> list[str]:
    """The lines of all tables."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        defences = list(dict.fromkeys(row["defence"] for row in own))
        lines += ["", f"**{method}**", "", f"| attack, f | {' | '.join(defences)} |"]
        lines.append("| --- |" + " --- |" * len(defences))
        for attack, count in dict.fromkeys((row["attack"], row["attackers"]) for row in own):
            here = {
                row["defence"]: row for row in own if (row["attack"], row["attackers"]) == (attack, count)
            }
            name = "none" if attack == "none" else f"`{attack}` {count}"
            cells = [cell(here[one]) if one in here else "-" for one in defences]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print the tables, and draw the figure if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args()
    found = [row for path in asked.files for row in (attack_rows(path) if path.is_dir() else read(path))]
    rows = list(
        {
            tuple(row[key] for key in ("method", "defence", "attack", "attackers")): row for row in found
        }.values()
    )
    print("\n".join(tables(rows)))
    if asked.figure:
        shown = [row for row in rows if row["defence"] in ("mean", "median")]
        for row in shown:
            for key in ("score", "worst", "success", "mixed"):
                row[key] = {name: known(value) for name, value in row[key].items()}
        attack_figure(shown, asked.figure)


if __name__ == "__main__":
    main()
