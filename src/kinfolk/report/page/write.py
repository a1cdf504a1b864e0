"""The report as one HTML file that needs nothing else: no network, no other file, no server."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import disk_errors, write_bytes
from kinfolk.report.groups import members
from kinfolk.report.page import facts, html, theme
from kinfolk.report.page.chart import Chart
from kinfolk.report.page.charts.membership import with_groups
from kinfolk.report.page.charts.scores import MOST_CLIENTS
from kinfolk.report.page.export import FORMATS, write_figures
from kinfolk.report.page.load import Material, load
from kinfolk.report.page.sections import Filled, Section, fill
from kinfolk.report.page.store import Store, as_json
from kinfolk.report.verdict import verdict

NAME = "report.html"
# The order matters: a script uses what stands before it.
SCRIPTS = ("vendor/vega.min.js", "vendor/vega-lite.min.js", "vendor/vega-interpreter.js",
           "data.js", "tables.js", "charts.js", "page.js")  # fmt: skip


@dataclass(frozen=True)
class Report:
    """A report that has been made and can be written: as a page, and as figures."""

    material: Material
    filled: tuple[tuple[Section, list[Filled]], ...]
    place: Path  # where the page goes if nobody says otherwise

    @staticmethod
    def of(folders: Sequence[str | Path], score: str | None = None) -> Report:
        """Read the folders and make every chart."""
        material = load(folders, score)
        return Report(material, tuple(fill(material)), Path(folders[0]) / NAME)

    @property
    def charts(self) -> list[Chart]:
        """All charts, in the order of the page."""
        return [chart for _, entries in self.filled for one in entries for chart in one.charts]

    def write(self, path: str | Path | None = None) -> Path:
        """Write the page, whole or not at all."""
        path = self.place if path is None else Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise KinfolkError("--out", str(path), "give a name that ends in .html")
        text = page(self.material, self.filled).encode("utf-8", "replace")
        with disk_errors("report", path.parent):
            write_bytes(path, text)
        return path

    def write_figures(self, folder: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
        """Write every chart as a file in each of the formats; needs the extra `report`."""
        return write_figures(self.charts, folder, formats)


def write_report(
    folders: Sequence[str | Path], path: str | Path | None = None, score: str | None = None
) -> Path:
    """Write the report of some run folders, comparison folders and choices of K into one HTML file.

    >>> write_report(["nowhere"], "report.html")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'nowhere': holds no run; name a run folder or a comparison folder
    """
    return Report.of(folders, score).write(path)


def page(material: Material, filled: Sequence[tuple[Section, list[Filled]]]) -> str:
    """The whole page."""
    store, (heading, amounts) = Store(), _headline(material)
    sections = [("verdict", "Verdict", _verdict(material))]
    for number, (section, entries) in enumerate(filled):
        groups = (html.group(one, f"s{number}-{place}", store) for place, one in enumerate(entries))
        sections.append((_anchor(section.title), section.title, "".join(groups)))
    sections = [one for one in sections if one[2]]
    clients = _clients(material)
    shared = {
        "columns": store.columns, "members": _members(material), "clients": clients,
        "light": theme.config(), "dark": theme.config(dark=True), "darker": theme.DARK, "rows": html.ROWS,
    }  # fmt: skip
    style, script = _asset("page.css"), "\n".join(map(_asset, SCRIPTS))
    parts = {
        "policy": _policy(style, script),
        "title": html.text(f"{heading} – Kinfolk report"),
        "style": style,
        "heading": html.text(heading),
        "amounts": html.text(amounts),
        "warnings": html.listed(facts.unfinished(material.runs), "warnings"),
        "links": "".join(f'<li><a href="#{name}">{html.text(title)}</a></li>' for name, title, _ in sections),
        "find": "" if clients else " hidden",
        "sections": "\n".join(html.section(*one) for one in sections),
        "version": html.text(version("kinfolk")),
        "data": as_json(html.plain(shared)),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def _anchor(title: str) -> str:
    return "section-" + re.sub(r"[^a-z]+", "-", title.lower())


def _headline(material: Material) -> tuple[str, str]:
    if material.runs:
        return facts.headline(material.runs)
    first = material.choices[0]
    return str(first.get("federation", "")), f"{first['clients']} of {first['of']} clients, a choice of K"


def _policy(style: str, script: str) -> str:
    """What the browser lets the page do: nothing but run its own script; no request can leave it."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    """A file that comes with the package; modules and maps of sources are for other places than a page."""
    found = files("kinfolk.report.page").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")
    found = re.sub(r"^//# sourceMappingURL=.*$", "", found, flags=re.MULTILINE)
    found = re.sub(r"^import (\{[^}]*\}) from 'vega-util';$", r"const \1 = vega;", found, flags=re.MULTILINE)
    if name.endswith("interpreter.js"):
        export = "export { expression as expressionInterpreter };"
        found = f"const vegaInterpreter = (() => {{\n{found.replace(export, 'return expression;')}\n}})();"
    return found.strip()


def _verdict(material: Material) -> str:
    """The verdict in words, as far as its rules are there."""
    if not material.runs:
        return ""
    if not material.score:
        return "<p>There are no scores yet.</p>"
    found = verdict(material.runs, material.score, next(iter(material.choices), None))
    words = {"good": "Good", "warning": "Warning"}
    lines = "".join(
        f'<li class="{html.text(one.weight)}" data-rule="{html.text(one.rule)}">'
        + (f'<span class="weight">{words[one.weight]}:</span> ' if one.weight in words else "")
        + f"{html.with_code(one.text)}</li>"
        for one in found.sentences
    )
    return f'<p class="headline">{html.with_code(found.headline)}</p><ul class="sentences">{lines}</ul>'


def _members(material: Material) -> dict[str, dict[str, list[str]]]:
    """Of every method with groups its clients by group, in its first seed: what a click on a group picks."""
    if not material.score:
        return {}
    return {
        run.title: {str(group): list(map(str, part.index)) for group, part in members(run).groupby("group")}
        for run in with_groups(material.runs)
        if run.scored.seen.rows["client"].nunique() <= MOST_CLIENTS
    }


def _clients(material: Material) -> list[str]:
    """The names of the clients, by which a reader finds one; none where charts do not show each."""
    names: dict[str, None] = {}
    for run in material.runs:
        names |= dict.fromkeys(map(str, run.scored.seen.rows["client"]))
    return sorted(names) if len(names) <= MOST_CLIENTS else []
