"""A network that takes rows as they came and answers in the units of its targets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.experiment.outline import Outline
from kinfolk.federation.scaling import Statistics
from kinfolk.learning.network import Wrapper, tensor_out


class RawRows(Wrapper):
    """Fills gaps, standardises rows, asks the network, and undoes the standardisation of targets.

    Rows of several inputs are never standardised; of those only the targets are undone.

    >>> double = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(double.weight, 2.0)
    >>> RawRows(double, Statistics((10.0,), (5.0,)), None)(torch.tensor([[20.0]])).tolist()
    [[4.0]]
    """

    def __init__(
        self,
        network: nn.Module,
        rows: Statistics | None,
        target: Statistics | None,
        pixels: tuple[float, float] | None = None,
        fill: tuple[float, ...] | None = None,
        axes: int = 1,
        output: str = "",
    ) -> None:
        super().__init__()
        self.network, self.pixels, self.output = network, pixels, output
        shape = (-1, *[1] * (axes - 1))
        self.fill = _buffer(fill, (-1,), torch.float32)
        self.mean = _buffer(rows.mean if rows else None, shape)
        self.std = _buffer(rows.std if rows else None, shape)
        self.zero = _buffer(target.mean if target else None, (-1,))
        self.unit = _buffer(target.std if target else None, (-1,))

    @property
    def inner(self) -> nn.Module:
        """The network alone."""
        return self.network

    def _ready(self, x: Tensor) -> Tensor:
        if self.pixels is not None:
            x = x * self.pixels[0] + self.pixels[1]
        if self.fill is not None:
            x = torch.where(x.isnan(), self.fill, x)
        if self.mean is not None and self.std is not None:
            x = ((x.double() - self.mean) / self.std).float()
        return x

    def forward(self, *placed: Any, **named: Any) -> Tensor:
        """What the network says of raw rows."""
        if len(placed) == 1 and isinstance(placed[0], Tensor) and not named:
            placed = (self._ready(placed[0]),)
        out = tensor_out(self.network(*placed, **named), self.output)
        if self.zero is not None and self.unit is not None:
            out = (out.double() * self.unit + self.zero).float()
        return out


def _buffer(
    values: tuple[float, ...] | None, shape: tuple[int, ...], dtype: torch.dtype = torch.float64
) -> nn.Buffer | None:
    return None if values is None else nn.Buffer(torch.tensor(values, dtype=dtype).reshape(shape))


def with_raw_rows(network: nn.Module, outline: Outline, client: str | None, output: str = "") -> nn.Module:
    """The network with all that comes before and after it; itself if that is nothing, or each client's own.

    >>> with_raw_rows(nn.Linear(1, 1), Outline((), (1,), 0, 1, (), ("age",), None, ""), None)
    Linear(in_features=1, out_features=1, bias=True)
    """
    scaling, fill = outline.scaling, outline.recipe.fill if outline.recipe else None
    if scaling is None and fill is None:
        return network
    if scaling is None:
        return RawRows(network, None, None, None, fill, output=output)
    if scaling.by == "client" and client is None:
        return network
    return RawRows(
        network, scaling.of(client), scaling.target, scaling.pixels, fill, max(1, len(outline.shape)), output
    ).eval()
