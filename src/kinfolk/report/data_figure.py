"""A picture of a federation: labels by client, rows per client, and what each group sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kinfolk.report.figures import COLOURS, INK, PALE, dress, save


class Seen(Protocol):
    """Counts and images as plain arrays; see `federation.summary.Summary`."""

    @property
    def name(self) -> str:
        """The federation in one line."""
        ...

    @property
    def counts(self) -> Any:
        """[clients, classes] rows by label."""
        ...

    @property
    def group(self) -> Any:
        """[clients] known group."""
        ...

    @property
    def images(self) -> Any:
        """Per group [images, height, width, channels]."""
        ...


def data_figure(seen: Seen, path: str | Path) -> Path:
    """Draw a federation into an image file.

    >>> import tempfile
    >>> from types import SimpleNamespace
    >>> seen = SimpleNamespace(name="two", counts=np.eye(2), group=np.array([0, 1]), images=[])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data_figure(seen, Path(folder) / "two.png").name
    'two.png'
    """
    path = Path(path)
    order = np.lexsort((np.arange(len(seen.group)), seen.group))
    group = np.asarray(seen.group)[order]
    several = len(set(group.tolist())) > 1
    figure = Figure(figsize=(10, 4.6), dpi=150, facecolor="white")
    figure.text(0.012, 0.945, "Who holds what", fontsize=12.5, fontweight="bold", color=INK)
    figure.text(0.012, 0.905, seen.name.replace("$", r"\$"), fontsize=9, color=PALE)
    wide = 0.36 if len(seen.images) else 0.5
    heat, bar = figure.add_axes((0.07, 0.13, wide, 0.64)), figure.add_axes((0.085 + wide, 0.13, 0.012, 0.64))
    bars = figure.add_axes((0.185 + wide, 0.13, wide / 2.4, 0.64))
    counts = np.asarray(seen.counts, dtype=float)[order]
    _heat_map(heat, bar, counts / np.maximum(counts.sum(1, keepdims=True), 1), group)
    dress(heat, "Labels of each client", "a line for each, by known group" if several else "a line for each")
    bars.barh(np.arange(len(counts)), counts.sum(1), color=COLOURS[0], height=0.85)
    dress(bars, "Training rows", "in the same order")
    bars.set(ylim=(len(counts) - 0.5, -0.5), yticks=[])
    bars.set_xlabel("rows", fontsize=9.5, color=INK)
    bars.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    if len(seen.images):
        page = figure.add_axes((0.74, 0.13, 0.25, 0.64))
        page.imshow(_mosaic(seen.images), cmap="gray", interpolation="nearest")
        dress(page, "Pictures", "one client of each group" if several else "one client")
        page.set(xticks=[], yticks=[])
        page.spines[:].set_visible(False)
    return save(figure, path)


def _heat_map(heat: Axes, bar: Axes, shares: Any, group: Any) -> None:
    """Shares of labels, a line for each client, with a labelled colour bar."""
    drawn = heat.imshow(shares, aspect="auto", cmap="viridis", vmin=0, vmax=max(shares.max(), 1e-9), zorder=2)
    heat.set_xlabel("label", fontsize=9.5, color=INK)
    heat.set_ylabel("clients", fontsize=9.5, color=INK)
    for axis in (heat.xaxis, heat.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=11, integer=True))
    for edge in np.flatnonzero(np.diff(group)):
        heat.axhline(edge + 0.5, color="white", linewidth=1.5, zorder=3)
    scale = heat.figure.colorbar(drawn, cax=bar)
    scale.set_label("share of the client's rows", fontsize=8.5, color=INK)
    bar.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    bar.tick_params(labelsize=8, colors="#555555", length=3)


def _mosaic(images: Any) -> Any:
    """One row of images per group, with a pale line between them."""
    most = max(len(group) for group in images)
    tall, wide, channels = images[0].shape[1:]
    page = np.ones((len(images) * (tall + 1), most * (wide + 1), channels))
    for g, group in enumerate(images):
        for i, image in enumerate(group):
            page[g * (tall + 1) : g * (tall + 1) + tall, i * (wide + 1) : i * (wide + 1) + wide] = image
    return page.squeeze(-1) if channels == 1 else page
