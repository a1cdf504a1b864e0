"""Run folders with pictures: tiny runs of made-up clients, and a look at what their charts draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import go

from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.report.page.chart import Chart
from kinfolk.report.page.charts import asking, data, distances, images, projection, pseudo, trust
from kinfolk.report.read import Run, load_run

FAMILIES = (
    *(projection.projection, projection.umap_projection, distances.distances, data.labels, data.differences),
    *(images.samples, pseudo.pseudo_images, pseudo.confidences, trust.uncertainty, trust.lists),
    *(trust.similarity, asking.graph),
)
NAMES = tuple(f"c{i:02d}" for i in range(9))
# Names that a page, an expression or a file name might take for something else.
HOSTILE = (
    *("<script>alert(1)</script>", "مريم", "يوسف", "😀 emoji", "a\"b'c\\d", "${x}", "{{7*7}}", "a,b;c=d"),
    *("none", "attacker", "constructor", "known 1"),
)


@cache
def made_up(
    names: Sequence[str] = NAMES,
    shape: Sequence[int] = (1, 8, 8),
    groups: int = 3,
    classes: int = 4,
    rows: int = 16,
) -> Federation:
    """Clients of a few groups, whose labels mean something else in each group."""
    draw = np.random.Generator(np.random.PCG64(5))
    kinds = draw.normal(size=(classes, *shape))
    held = {}
    for i, name in enumerate(names):
        y = draw.integers(0, classes, rows + 4 * (i % 2))
        x = kinds[(y + i % groups) % classes] + 0.5 * draw.normal(size=(len(y), *shape))
        held[name] = (torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    found = from_arrays(held, test=held, classes=classes)
    place = {name: i % groups for i, name in enumerate(names)}
    return replace(found, truth=torch.tensor([place[c] for c in found.clients])) if groups > 1 else found


def played(folder: Path, *changes: str, federation: Federation | None = None) -> Run:
    """A run with all pictures, read back."""
    held = made_up() if federation is None else federation
    go(folder, "data.name=own", "run.pictures=rows", *changes, federation=held)
    return load_run(folder)


def every_chart(runs: Sequence[Run]) -> list[Chart]:
    """All charts of this page that can be made of some runs."""
    found: list[Chart] = []
    for family in FAMILIES:
        made = family(runs)
        found += [made] if isinstance(made, Chart) else list(made or [])
    return found


def rows_of(chart: Chart, layer: int | None = None) -> list[dict[str, Any]]:
    """The rows that a chart, or one of its layers, draws."""
    node = chart.spec if layer is None else chart.spec["layer"][layer]
    rows: list[dict[str, Any]] = node["data"]["values"]
    return rows


def compiled(chart: Chart, **values: Any) -> bytes:
    """The chart as a PNG, with other values of its parameters; skipped without the library."""
    library = pytest.importorskip("vl_convert")
    spec = without_nan(dict(chart.spec))
    for one in spec["params"]:
        one["value"] = values.get(one["name"], one["value"])
    spec |= {"width": 300} if spec.get("width") == "container" else {}
    return bytes(library.vegalite_to_png(spec, vl_version="6.4", allowed_base_urls=[]))


def without_nan(value: Any) -> Any:
    """A specification as JSON can write it."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
