"""A picture of rows made again from updates, beside the rows themselves."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from kinfolk.experiment.infer import Inverted
from kinfolk.experiment.record import write_bytes

# Rows of one update that are drawn.
MOST = 8


def draw(found: Sequence[Inverted], path: Path) -> Path | None:
    """Draw the first rows of each attack, originals above; None where rows are no images."""
    shown = [one for one in found if one.true.dim() >= 3]
    if not shown:
        return None
    columns = max(min(one.rows, MOST) for one in shown)
    figure = Figure(figsize=(0.9 * columns + 2, 1.9 * len(shown)), dpi=120, layout="constrained")
    grid = figure.subplots(2 * len(shown), columns, squeeze=False)
    for axis in grid.flat:
        axis.set_axis_off()
    for i, one in enumerate(shown):
        told = f"{one.attack}, {one.rows} rows, {one.steps} steps: {one.psnr:.1f} dB"
        for j in range(min(one.rows, MOST)):
            low, high = float(one.true.min()), float(one.true.max())
            for place, rows in ((2 * i, one.true), (2 * i + 1, one.made)):
                grid[place, j].imshow(_pixels(rows[j]).numpy(), cmap="gray", vmin=low, vmax=high)
        grid[2 * i, 0].set_title(told, fontsize=8, loc="left")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_bytes(path, buffer.getvalue(), "figure")
    return path


def _pixels(row: Tensor) -> Tensor:
    """[height, width] or [height, width, 3], in numbers that can be drawn."""
    image = row if row.dim() == 2 else row[0] if row.shape[0] != 3 else row.permute(1, 2, 0)
    return image if image.dim() == 2 else (image - image.min()) / (image.max() - image.min()).clamp(min=1e-9)
