"""What MD-ICFL has made of its models: pseudo images, and how sure each model is of each cluster's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kinfolk.experiment.picture_files import read_arrays
from kinfolk.report.page.chart import PICKED, Chart, round_parameter
from kinfolk.report.page.charts.images import GAP, MOST_LETTERS, SIDE, data_url
from kinfolk.report.page.charts.members import HUE, evenly, firsts, names_of, percent, short
from kinfolk.report.read import Run

Row = dict[str, Any]
Shown = Mapping[int, Mapping[str, NDArray[Any]]]  # by round and name
# Rounds that are drawn, images as far as MOST_LETTERS allows; classes and clusters that have images.
MOST_ROUNDS, MOST_CLASSES, MOST_CLUSTERS = 12, 14, 20
WIDTH = 280  # of all images beside one another: that of a telephone
PLAIN = {"domain": False, "ticks": False}


def pseudo_images(runs: Sequence[Run]) -> list[Chart]:
    """A chart for each method: the first pseudo image of each cluster and class, round by round."""
    found = [(run, _with(run, "images")) for run in firsts(runs)]
    return [_images(run, shown) for run, shown in found if shown]


def confidences(runs: Sequence[Run]) -> list[Chart]:
    """A chart for each method: how sure each cluster's model is of the rows made for each cluster."""
    found = [(run, _with(run, "confidence")) for run in firsts(runs)]
    return [_confidences(run, shown) for run, shown in found if shown]


def _with(run: Run, name: str) -> Shown:
    """The pictured rounds that have such an array, with as many axes as it must have."""
    axes = {"images": (4, 5), "confidence": (3,)}[name]
    return {
        number: arrays
        for number, arrays in read_arrays(run.path).items()
        if name in arrays and arrays[name].ndim in axes and arrays[name].size
    }


def _images(run: Run, shown: Shown) -> Chart:
    classes = names_of(run, "class_names")
    last = shown[max(shown)]["images"]
    clusters, across = min(len(last), MOST_CLUSTERS), min(last.shape[1], MOST_CLASSES)
    letters = len(data_url(last[0, 0])) * clusters * across
    rounds = evenly(sorted(shown), max(1, min(MOST_ROUNDS, MOST_LETTERS // letters)))
    values = [
        {
            "round": number,
            "group": str(k),
            "class": _class(c, classes),
            "url": data_url(shown[number]["images"][k, c]),
        }
        for number in rounds
        for k in range(min(clusters, len(shown[number]["images"])))
        for c in range(min(across, shown[number]["images"].shape[1]))
    ]
    notes = [
        "The first row of each cluster and class, made out of the cluster's model alone; "
        f"black and white are the ends of the middle 96 % of a round's values; seed {run.seed}."
    ]
    if (clusters, across) != last.shape[:2]:
        notes.append(f"{clusters} of {len(last)} clusters and {across} of {last.shape[1]} classes are drawn.")
    says = f"Pseudo images of {clusters} clusters and {across} classes, up to round {rounds[-1]}."
    axis, step = {"type": "nominal", "sort": None}, min(SIDE + GAP, WIDTH // across)
    spec = {
        "width": across * step, "height": {"step": step},
        "params": [PICKED, round_parameter(rounds)], "data": {"values": values},
        "transform": [{"filter": "datum.round == round"}],
        "mark": {"type": "image", "width": step - GAP, "height": step - GAP, "smooth": False},
        "encoding": {
            "x": {**axis, "field": "class", "title": "class asked for", "axis": {**PLAIN, "labelAngle": 0}},
            "y": {**axis, "field": "group", "title": "cluster", "axis": PLAIN},
            "url": {"field": "url", "type": "nominal"},
            "tooltip": [{"field": "group", "title": "cluster"}, {"field": "class"}],
        },
    }  # fmt: skip
    table = pd.DataFrame(values)[["round", "group", "class"]].rename(columns={"group": "cluster"})
    table = table.groupby("round", as_index=False).agg(
        clusters=("cluster", "nunique"), images=("class", "size")
    )
    title = f"Pseudo images of {run.title}"
    return Chart(f"pseudo-{run.title}", title, spec, table, says, tuple(notes), tuple(rounds))


def _class(number: int, names: Sequence[str]) -> str:
    return names[number] if number < len(names) else str(number)


def _confidences(run: Run, shown: Shown) -> Chart:
    rounds = evenly(sorted(shown), MOST_ROUNDS)
    means = {number: np.asarray(shown[number]["confidence"], dtype=float).mean(2) for number in rounds}
    values = [
        {"round": number, "model": str(j), "cluster": str(k), "confidence": value}
        for number in rounds
        for j, row in enumerate(means[number])
        for k, value in enumerate(short(row))
    ]
    notes = [f"The mean probability of the class that a row was made for; seed {run.seed}."]
    last = means[rounds[-1]]
    itself = np.eye(len(last), last.shape[1], dtype=bool)
    own, others = (part[np.isfinite(part)] for part in (last[itself], last[~itself]))
    told = f"{percent(float(own.mean()))} sure" if len(own) else "sure to a degree that is not known"
    apart = f", of the others' {percent(float(others.mean()))}" if len(others) else ""
    says = f"After round {rounds[-1]} models are {told} of their own cluster's rows{apart}."
    table = pd.DataFrame(values)
    return Chart(f"confidence-{run.title}", f"How sure the models of {run.title} are of pseudo rows",
                 _matrix(values, rounds, len(last)), table, says, tuple(notes), tuple(rounds))  # fmt: skip


def _matrix(values: list[Row], rounds: Sequence[int], clusters: int) -> Row:
    axis = {"type": "nominal", "sort": None}
    strength = {"field": "confidence", "type": "quantitative", "legend": None,
                "scale": {"domain": [0, 1], "range": [0.03, 0.7]}}  # fmt: skip
    told = [{"field": "model", "title": "model of cluster"}, {"field": "cluster", "title": "rows of cluster"},
            {"field": "confidence", "format": ".1%"}]  # fmt: skip
    layers: list[Row] = [
        {"mark": {"type": "rect", "color": HUE}, "encoding": {"opacity": strength, "tooltip": told}}
    ]
    if clusters <= 12:
        text = {"field": "confidence", "type": "quantitative", "format": ".0%"}
        layers.append({"mark": {"type": "text"}, "encoding": {"text": text}})
    step = 44 if clusters <= 6 else 30 if clusters <= 12 else 12
    return {
        "width": min(300, step * clusters), "height": min(300, step * clusters),
        "params": [PICKED, round_parameter(rounds)], "data": {"values": values},
        "transform": [{"filter": "datum.round == round"}],
        "encoding": {
            "x": {**axis, "field": "cluster", "title": "rows made for cluster",
                  "axis": {**PLAIN, "labelAngle": 0}},
            "y": {**axis, "field": "model", "title": "model of cluster", "axis": PLAIN},
        },
        "layer": layers,
    }  # fmt: skip
