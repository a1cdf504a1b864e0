"""A picture of a federation: labels by client, rows per client, and what each group sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from matplotlib.figure import Figure

from kinfolk.report.figures import save


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
    figure = Figure(figsize=(10, 4.8), dpi=150, facecolor="white", layout="constrained")
    figure.suptitle(seen.name, fontsize=10, x=0.01, ha="left")
    wide = 3 if len(seen.images) else 2
    ratios = [2.2, 1.3, 1.3][:wide]
    heat, bars, *rest = figure.subplots(1, wide, width_ratios=ratios)
    counts = np.asarray(seen.counts, dtype=float)[order]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    drawn = heat.imshow(shares, aspect="auto", cmap="viridis", vmin=0, vmax=max(shares.max(), 1e-9))
    heat.set(title="Share of each label in a client's rows", xlabel="label", ylabel="clients, by known group")
    for edge in np.flatnonzero(np.diff(np.asarray(seen.group)[order])):
        heat.axhline(edge + 0.5, color="white", linewidth=1.5)
    figure.colorbar(drawn, ax=heat, fraction=0.04)
    bars.barh(np.arange(len(counts)), counts.sum(1), color="#4c78a8", height=1.0)
    bars.set(title="Training rows", xlabel="rows", ylim=(len(counts) - 0.5, -0.5), yticks=[])
    bars.spines[["top", "right"]].set_visible(False)
    if rest:
        rest[0].imshow(_mosaic(seen.images), cmap="gray", interpolation="nearest")
        rest[0].set(title="One client of each group", xticks=[], yticks=[])
        rest[0].spines[:].set_visible(False)
    return save(figure, path)


def _mosaic(images: Any) -> Any:
    """One row of images per group, with a pale line between them."""
    most = max(len(group) for group in images)
    tall, wide, channels = images[0].shape[1:]
    page = np.ones((len(images) * (tall + 1), most * (wide + 1), channels))
    for g, group in enumerate(images):
        for i, image in enumerate(group):
            page[g * (tall + 1) : g * (tall + 1) + tall, i * (wide + 1) : i * (wide + 1) + wide] = image
    return page.squeeze(-1) if channels == 1 else page
