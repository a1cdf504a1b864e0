"""The charts of a report as files for papers and slides: SVG, PNG and PDF, light, as wide as two columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.record import disk_errors, write_bytes
from kinfolk.report.page.chart import Chart
from kinfolk.report.page.html import plain
from kinfolk.report.page.theme import PAPER_DPI, PAPER_WIDTH, config

FORMATS = ("svg", "png", "pdf")
# Which Vega-Lite draws: the version that the page has too.
VERSION = "6.4"
# There is no system font in a file for print.
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"


def check_formats(text: str) -> tuple[str, ...]:
    """The formats in `svg,png`.

    >>> check_formats("svg,png")
    ('svg', 'png')
    >>> check_formats("gif")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: --format = 'gif': known: pdf, png, svg
    """
    names = tuple(dict.fromkeys(word.strip().lower() for word in text.split(",")))
    for name in names:
        if name not in FORMATS:
            raise KinfolkError("--format", name, near(name, FORMATS))
    return names


def converter() -> ModuleType:
    """The library that draws without a browser; it is large, so it is an extra."""
    try:
        import vl_convert
    except ModuleNotFoundError as missing:
        remedy = "needs vl-convert-python: pip install 'kinfolk[report]'; the page itself needs nothing"
        raise KinfolkError("--figures", None, remedy) from missing
    return vl_convert


def write_figures(
    charts: Sequence[Chart], folder: str | Path, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Draw every chart that has a picture into a file of its name; all are drawn before one is written."""
    folder = Path(folder)
    drawn = [(folder / name, data) for chart in charts if chart.spec for name, data in _drawn(chart, formats)]
    with disk_errors("--figures", folder):
        for path, data in drawn:
            write_bytes(path, data)
    return [path for path, _ in drawn]


def _drawn(chart: Chart, formats: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    library = converter()
    spec = on_paper(chart.spec)
    given: dict[str, Any] = {"vl_version": VERSION, "allowed_base_urls": []}
    ways: Mapping[str, Callable[[], bytes]] = {
        "svg": lambda: str(library.vegalite_to_svg(spec, **given)).encode(),
        "png": lambda: bytes(library.vegalite_to_png(spec, ppi=PAPER_DPI, **given)),
        "pdf": lambda: bytes(library.vegalite_to_pdf(spec, **given)),
    }
    for name in formats:
        try:
            yield f"{chart.name}.{name}", ways[name]()
        except ValueError as error:
            first = (str(error).splitlines() or [""])[0]
            raise KinfolkError("--figures", f"{chart.name}.{name}", f"cannot be drawn ({first})") from error


def on_paper(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same chart in the light theme, as wide as a page has room.

    >>> on_paper({"width": "container", "mark": "bar"})["width"]
    520
    """
    found: dict[str, Any] = plain(spec)
    if found.get("width") == "container":
        found["width"] = PAPER_WIDTH
    theme = config(font=FONT)
    theme["legend"] |= {"columns": 3}
    return {**found, "config": {**theme, **found.get("config", {})}}
