"""Where clients' models lie: sketches of them, drawn in the plane in which they differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kinfolk.experiment.picture_files import read_sketches
from kinfolk.report.page.chart import PICKED, Chart, opacity, round_parameter
from kinfolk.report.page.charts.members import (
    HUE,
    KNOWN,
    NO_GROUP,
    SHAPES,
    coloured,
    evenly,
    firsts,
    group_of,
    in_order,
    known_groups,
    numbered,
    percent,
    shaped,
    short,
)
from kinfolk.report.read import Run

Array = NDArray[np.float64]
# Of more clients and pictured rounds some are drawn, evenly.
MOST_CLIENTS, MOST_ROUNDS = 300, 12
KINDS = {"personal": "the model that a client keeps", "update": "the model that a client sent in that round"}


@dataclass(frozen=True)
class Sketched:
    """The sketches of a run that are drawn: a row of `frame` and of `rows` each, in the same order."""

    run: Run
    frame: pd.DataFrame  # round, client, kind, group
    rows: Array  # [sketches, numbers]
    clients: int  # that have sketches
    lost: int  # sketches that are not finite, as of models that have diverged

    @property
    def rounds(self) -> list[int]:
        """The rounds that are drawn."""
        return sorted(set(self.frame["round"].tolist()))

    def at(self, round: int) -> tuple[pd.DataFrame, Array]:
        """The sketches of one round."""
        here = (self.frame["round"] == round).to_numpy()
        return self.frame[here], self.rows[here]


def sketched(run: Run, clients: int = MOST_CLIENTS, rounds: int = MOST_ROUNDS) -> Sketched | None:
    """The sketches of a run, of some clients and rounds where there are many; None without any.

    >>> sketched(Run.of({"title": "local", "seed": 0}, {"value": []})) is None
    True
    """
    frame = read_sketches(run.path)
    if frame.empty:
        return None
    everybody = sorted(set(frame["client"]))
    some, shown = set(evenly(everybody, clients)), evenly(sorted(set(frame["round"])), rounds)
    frame = frame[frame["client"].isin(some) & frame["round"].isin(shown)].reset_index(drop=True)
    rows = np.stack(frame.pop("sketch").tolist()).astype(np.float64)
    sound = np.isfinite(rows).all(1)
    frame = frame[sound].reset_index(drop=True)
    if frame["client"].nunique() < 2:
        return None
    groups = group_of(run, frame["round"].tolist(), frame["client"].tolist())
    return Sketched(run, frame.assign(group=groups), rows[sound], len(everybody), int((~sound).sum()))


def projection(runs: Sequence[Run]) -> list[Chart]:
    """A chart for each method: every client's model by its two principal components, at every pictured round.

    What rounds change alike for everybody is taken out: the mean of each round lies in the middle.
    """
    found = [sketched(run) for run in firsts(runs)]
    return [_chart(one, *principal(one)) for one in found if one is not None]


def umap_projection(runs: Sequence[Run]) -> list[Chart]:
    """The last pictured round of each method by UMAP, where `umap-learn` is installed (kinfolk[umap])."""
    if find_spec("umap") is None:
        return []
    found = [sketched(run) for run in firsts(runs)]
    return [chart for one in found if one is not None for chart in _umap(one)]


def principal(one: Sketched) -> tuple[Array, Array]:
    """(coordinates [sketches, 2], shares of the variance [2]): one plane for all rounds.

    Of the sketches less the mean of their round; axes point where their longest entry is positive.
    """
    mean = pd.DataFrame(one.rows).groupby(one.frame["round"].to_numpy()).transform("mean").to_numpy()
    apart = one.rows - mean
    _, sizes, axes = np.linalg.svd(apart, full_matrices=False)
    axes = axes[:2] * np.sign(axes[np.arange(len(axes[:2])), np.abs(axes[:2]).argmax(1)])[:, None]
    total = float((sizes**2).sum())
    share = sizes[:2] ** 2 / total if total > 0 else np.zeros(len(axes))
    plane = np.zeros((len(apart), 2))
    plane[:, : len(axes)] = apart @ axes.T
    return plane, np.pad(share, (0, 2 - len(share)))


def _chart(one: Sketched, plane: Array, share: Array) -> Chart:
    titles = [
        f"{name} principal component ({percent(part)})"
        for name, part in zip(("first", "second"), share, strict=True)
    ]
    spec, notes = _spec(one, plane, titles), _notes(one)
    notes.insert(
        0,
        "One plane for all rounds; the mean of each round lies in the middle. Distances are of sketches.",
    )
    title = f"Client models of {one.run.title}"
    return Chart(
        f"projection-{one.run.title}",
        title,
        spec,
        apart_table(one),
        _says(one),
        tuple(notes),
        tuple(one.rounds),
    )


def _umap(one: Sketched) -> list[Chart]:
    import umap

    frame, rows = one.at(one.rounds[-1])
    if len(rows) < 5:
        return []
    near = min(15, len(rows) - 1)
    plane = umap.UMAP(n_neighbors=near, random_state=0, n_jobs=1).fit_transform(rows)
    last = Sketched(one.run, frame, rows, one.clients, one.lost)
    spec = _spec(last, np.asarray(plane, dtype=np.float64), ["UMAP 1", "UMAP 2"])
    notes = [
        f"UMAP with {near} neighbours: who is near whom counts, distances between groups do not.",
        *_notes(last),
    ]
    title = f"Client models of {one.run.title} by UMAP"
    return [
        Chart(
            f"umap-{one.run.title}",
            title,
            spec,
            apart_table(last),
            _says(last),
            tuple(notes),
            (one.rounds[-1],),
        )
    ]


def _spec(one: Sketched, plane: Array, titles: Sequence[str]) -> dict[str, Any]:
    known = known_groups(one.run)
    groups, kinds = in_order(one.frame["group"]), in_order(known)
    told = one.frame[["client", "round", "group"]].assign(method=one.run.title)
    told["x"], told["y"] = short(plane[:, 0]), short(plane[:, 1])
    tips = [{"field": "client"}]
    encoding: dict[str, Any] = {
        **{name: _axis(name, title, told[name]) for name, title in zip("xy", titles, strict=True)},
        "color": {"value": HUE}, "opacity": opacity(0.85, 0.1),
    }  # fmt: skip
    if kinds:
        told["known"] = [KNOWN + str(known.get(client, "-")) for client in told["client"]]
        tips.append({"field": "known", "title": "known group"})
        if len(kinds) <= len(SHAPES):
            encoding["shape"] = shaped(kinds, grey=groups != [NO_GROUP])
    if groups != [NO_GROUP]:
        encoding["color"] = coloured(groups)
        tips.insert(1, {"field": "group"})
    elif kinds:
        encoding["color"] = {
            **shaped(kinds, grey=False),
            "scale": {"domain": [KNOWN + kind for kind in kinds]},
        }
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "point", "filled": True, "size": 70}, "encoding": {**encoding, "tooltip": tips}}
    ]
    if 1 < len(numbered(groups)) <= 40:
        layers.append(_numbers(15 if len(groups) <= 12 else 11))
    return {
        "width": "container", "height": 380, "params": [PICKED, round_parameter(one.rounds)],
        "data": {"values": told.to_dict("records")},
        "transform": [{"filter": "datum.round == round"}],
        "layer": layers,
    }  # fmt: skip


def _axis(field: str, title: str, values: pd.Series) -> dict[str, Any]:
    """An axis that is the same at every round."""
    low, high = float(values.min()), float(values.max())
    rim = 0.06 * (high - low) or 1.0
    scale = {"domain": short([low - rim, high + rim]), "nice": False, "zero": False}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": {"tickCount": 5}}


def _numbers(size: int) -> dict[str, Any]:
    """The number of each group where its mean is, so that colour is not all that tells."""
    means = [{"op": "mean", "field": name, "as": name} for name in ("x", "y")]
    place = {name: {"field": name, "type": "quantitative"} for name in ("x", "y")}
    return {
        "transform": [
            {"filter": "isFinite(toNumber(datum.group))"},
            {"aggregate": means, "groupby": ["group"]},
        ],
        "mark": {"type": "text", "fontSize": size, "fontWeight": "bold", "dy": -12, "clip": False},
        "encoding": {**place, "text": {"field": "group"}},
    }


def apart_table(one: Sketched) -> pd.DataFrame:
    """Of each client at the last round: how far it is from the mean of its group, and from the nearest other.

    Distances of sketches. Without groups: from the mean of all.
    """
    frame, rows = one.at(one.rounds[-1])
    table = frame[["client", "group"]].reset_index(drop=True)
    names = numbered(table["group"])
    if not names:
        away = np.linalg.norm(rows - rows.mean(0), axis=1)
        return table[["client"]].assign(**{"from the mean of all": short(away)})
    of = table["group"].to_numpy()
    means = np.stack([rows[of == g].mean(0) for g in names])
    apart = np.linalg.norm(rows[:, None] - means[None], axis=2)
    own = np.array([[g == name for name in names] for g in of])
    table["from own group's mean"] = short(np.where(own.any(1), np.where(own, apart, 0).sum(1), np.nan))
    others = np.where(own, np.inf, apart)
    if len(names) > 1:
        table["from nearest other"] = short(others.min(1))
        table["nearest other"] = [names[i] for i in others.argmin(1)]
    return table


def _says(one: Sketched) -> str:
    table, last = apart_table(one), one.rounds[-1]
    if "nearest other" not in table:
        away = table.iloc[:, -1]
        told = f"{away.mean():.3g} from their mean, the farthest {away.max():.3g}"
        return f"After round {last} clients' models are {told}."
    placed = table.dropna(subset=["from own group's mean"])
    nearer = int((placed["from nearest other"] < placed["from own group's mean"]).sum())
    own, other = placed["from own group's mean"].mean(), placed["from nearest other"].mean()
    told = f"{own:.3g} from the mean of their group and {other:.3g} from the nearest other's"
    return f"After round {last} models are {told}; {nearer} of {len(placed)} are nearer to another group."


def _notes(one: Sketched) -> list[str]:
    """What a model is here, and what is left out."""
    shown, kinds = one.frame["client"].nunique(), set(one.frame["kind"])
    notes = [
        "; ".join(KINDS.get(kind, kind) for kind in sorted(kinds)).capitalize()
        + f"; seed {one.run.seed}. Seen by the simulation alone."
    ]
    if shown < one.clients:
        notes.append(f"{shown} of {one.clients:,} clients with sketches are drawn, evenly by name.")
    here = len(one.at(one.rounds[-1])[0])
    if here < shown:
        notes.append(f"{here} of {shown} clients took part in round {one.rounds[-1]}.")
    if one.lost:
        notes.append(f"{one.lost} models that are not finite are left out.")
    if len(in_order(one.frame["group"])) > 11:
        notes.append("Colours repeat from the twelfth group on.")
    return notes
