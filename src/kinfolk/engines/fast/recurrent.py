"""LSTM, GRU and plain recurrent layers for many clients: one product a step serves all of them.

PyTorch's own kernels know one network. Here the inputs of all steps are multiplied at once; a step is one
product with the state and a few operations on all clients' gates. What its gradient is multiplied by is
worked out for all steps together, so that going back takes few operations a step too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kinfolk.engines.fast.layers import Products, has_clients, in_front


class Weights(NamedTuple):
    """Of one layer in one direction."""

    w_ih: Tensor  # [gates, inputs]
    w_hh: Tensor  # [gates, hidden]
    b_ih: Tensor | None
    b_hh: Tensor | None


@contextmanager
def _scattered() -> Iterator[None]:
    """Within: nobody is warned that weights do not lie side by side, which those of a client never do."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of")
        yield


class _Client(nn.RNNBase):
    """Shared by the three kinds. One client's layer is PyTorch's, unless it drops between its layers."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """(the last layer's states, the states of all layers after the last step)."""
        packed = isinstance(input, PackedSequence)
        # By their names: the list that PyTorch keeps of them may be of another call.
        flat = [getattr(self, name) for name in self._flat_weights_names]
        among = has_clients(input.data if packed else input, *flat)
        drops = self.training and self.dropout > 0 and self.num_layers > 1
        if packed and among:
            raise RuntimeError("packed sequences have lengths of their own; give padded rows and a mask")
        if packed or input.dim() != 3 or not (among or drops):
            with _scattered():
                return super().forward(input, hx)
        return self._layer_by_layer(input, hx, flat)

    def _layer_by_layer(self, x: Tensor, hx: Any, flat: list[Tensor]) -> Any:
        x = x if self.batch_first else x.transpose(0, 1)
        sides = 1 + self.bidirectional
        two = self.mode == "LSTM"
        first = hx if two or hx is None else (hx,)
        blank = x.new_zeros(len(x), self.hidden_size) if first is None else None
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            if layer and self.training:
                x = F.dropout(x, self.dropout)
            outs = []
            for side in range(sides):
                at = layer * sides + side
                start = [blank] * (1 + two) if first is None else [part[at] for part in first]
                out, *end = self._one_layer(x, start, self._weights(flat, at), reverse=side == 1)
                outs.append(out)
                ends.append(tuple(end))
            x = torch.cat(outs, -1) if sides > 1 else outs[0]
        after = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
        return x if self.batch_first else x.transpose(0, 1), after if two else after[0]

    def _weights(self, flat: list[Tensor], at: int) -> Weights:
        each = 2 + 2 * self.bias
        mine = flat[at * each : (at + 1) * each]
        return Weights(*mine, *[None] * (4 - each))

    def _one_layer(self, x: Tensor, start: list[Any], weights: Weights, reverse: bool) -> Any:
        """(states of all steps, the last state, an LSTM's last cell): x [rows, steps, inputs]."""
        given = x, *weights, start[0], start[-1] if len(start) > 1 else None
        if not has_clients(*given):
            return self._alone(x, start, weights, reverse)
        out = _ManySteps.apply(self.mode, reverse, *given)  # type: ignore[no-untyped-call]
        return out if len(start) > 1 else out[:2]

    def _alone(self, x: Tensor, start: list[Any], weights: Weights, reverse: bool) -> Any:
        """The same of one client, by PyTorch's own kernel."""
        run = getattr(torch._VF, self.mode.lower())
        state = tuple(t[None] for t in start) if len(start) > 1 else start[0][None]
        flat, x = [t for t in weights if t is not None], x.flip(1) if reverse else x
        with _scattered():
            out, *end = run(x, state, flat, self.bias, 1, 0.0, self.training, False, True)
        return out.flip(1) if reverse else out, *(t[0] for t in end)


class ClientLSTM(_Client, nn.LSTM):
    """An LSTM that serves many clients in one call."""


class ClientGRU(_Client, nn.GRU):
    """A GRU that serves many clients in one call."""


class ClientRNN(_Client, nn.RNN):
    """A plain recurrent layer that serves many clients in one call."""


def fast_recurrent(layer: nn.Module) -> nn.Module:
    """The layer, or if it is a recurrent one of a kind known here, one for many clients.

    >>> fast_recurrent(nn.GRU(2, 3))
    ClientGRU(2, 3)
    """
    kind = {nn.LSTM: ClientLSTM, nn.GRU: ClientGRU, nn.RNN: ClientRNN}.get(type(layer))
    if kind is not None and not layer.proj_size:
        layer.__class__ = kind
    return layer


class _ManySteps(torch.autograd.Function):
    """Hands a vmapped layer, clients in front, to `steps`; with one set of weights they are one."""

    @staticmethod
    def forward(mode: str, reverse: bool, *given: Tensor | None) -> Any:
        out = steps(mode, reverse, *(t if t is None else t[None] for t in given))
        return tuple(t[0] for t in out)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: gradients are taken outside vmap, of what `steps` recorded."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, mode: str, reverse: bool, *given: Tensor | None) -> Any:
        dims = in_dims[2:]
        if any(dim is not None for dim in dims[1:5]):
            return steps(mode, reverse, *in_front(info, dims, *given)), (0, 0, 0)
        x, *weights, h, c = given
        x, h, c = in_front(info, (dims[0], *dims[5:]), x, h, c)
        one = [t if t is None else t.flatten(0, 1)[None] for t in (x, h, c)]
        out = steps(mode, reverse, one[0], *(t if t is None else t[None] for t in weights), *one[1:])
        return tuple(t.reshape(*x.shape[:2], *t.shape[2:]) for t in out), (0, 0, 0)


def steps(mode: str, reverse: bool, *given: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Go over x [clients, rows, steps, inputs]: (states of all steps, the last one, the last cell).

    Given are x, the weights, which have clients in front, and the first states [clients, rows, hidden].
    """
    x, w_ih, w_hh, b_ih, b_hh, h, c = given
    assert x is not None
    clients, rows, length = x.shape[:3]
    # A GRU's bias of the state is multiplied by a gate; elsewhere both are added to the same sum.
    apart = mode == "GRU"
    bias = b_ih if apart or b_ih is None or b_hh is None else b_ih + b_hh
    gates: Tensor = Products.apply(x.flatten(1, 2), w_ih, bias)  # type: ignore[no-untyped-call]
    gates = gates.reshape(clients, rows, length, -1).permute(2, 0, 1, 3).contiguous()
    shift = b_hh if apart else None
    states, cell = _Steps.apply(mode, reverse, gates, w_hh, shift, h, c)  # type: ignore[no-untyped-call]
    return states.transpose(1, 2), states[:, 0 if reverse else -1], cell


class _Steps(torch.autograd.Function):
    """gates [steps, clients, rows, ...] of inputs -> (states [clients, steps, rows, hidden], last cell)."""

    @staticmethod
    def forward(
        ctx: Any,
        mode: str,
        reverse: bool,
        gates: Tensor,
        w: Tensor,
        shift: Tensor | None,
        h: Tensor,
        c: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        times = range(len(gates))[:: -1 if reverse else 1]
        into, forth = w.transpose(1, 2), _FORTH[mode]
        states, kept = [h], []
        for t in times:
            h, c, saved = forth(gates[t], h, c, into, None if shift is None else shift[:, None])
            states.append(h)
            kept.append(saved)
        ctx.how = mode, reverse, shift is not None, c is not None
        ctx.saved = [len(saved) for saved in kept[:1]]
        ctx.save_for_backward(w, *states, *(t for saved in kept for t in saved))
        ordered = states[1:][:: -1 if reverse else 1]
        return torch.stack(ordered, 1), c if c is not None else torch.zeros_like(h)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        mode, reverse, shifted, two = ctx.how
        w, *rest = ctx.saved_tensors
        each, count = ctx.saved[0], (len(rest) - 1) // (ctx.saved[0] + 1)
        before = torch.stack(rest[:count])  # the state that each step began with, in the order of the steps
        kept = rest[count + 1 :]
        saved = [torch.stack(kept[i::each]) for i in range(each)]
        given = grads[0].unbind(1)[:: -1 if reverse else 1]
        dc = grads[1] if two else None
        inner, outer, dh, dc = _BACK[mode](given, dc, w, before, rest[count], *saved)
        # [clients, steps, rows, gates], with the steps as they went.
        to_w = inner.flatten(1, 2).transpose(1, 2).bmm(before.transpose(0, 1).flatten(1, 2))
        to_shift = inner.sum((1, 2)) if shifted else None
        to_gates = (outer.flip(1) if reverse else outer).transpose(0, 1)
        return None, None, to_gates, to_w, to_shift, dh, dc


def _lstm(gates: Tensor, h: Tensor, c: Tensor, w: Tensor, shift: None) -> tuple[Tensor, Tensor, Any]:
    total = torch.baddbmm(gates, h, w)
    size = h.shape[-1]
    # One sigmoid for all four gates; the third has a tanh, and its sigmoid is not looked at.
    opened, new = total.sigmoid(), total[..., 2 * size : 3 * size].tanh()
    i, f, _, o = opened.chunk(4, -1)
    after = torch.addcmul(i * new, f, c)
    seen = after.tanh()
    return o * seen, after, (opened, new, c, seen)


def _lstm_back(
    given: Any,
    dc: Tensor,
    w: Tensor,
    before: Tensor,
    last: Tensor,
    opened: Tensor,
    new: Tensor,
    c: Tensor,
    seen: Tensor,
) -> Any:
    i, f, _, o = opened.chunk(4, -1)
    # What the gradients of the cell and of the state are multiplied by on their way to the gates.
    by_cell = torch.stack([new * i * (1 - i), c * f * (1 - f), i * (1 - new * new)], -2)
    by_state, through = (seen * o * (1 - o))[..., None, :], o * (1 - seen * seen)
    dh, moves = given[-1], []
    for t in reversed(range(len(given))):
        dc = torch.addcmul(dc, dh, through[t])
        move = torch.cat([dc[..., None, :] * by_cell[t], dh[..., None, :] * by_state[t]], -2).flatten(-2)
        moves.append(move)
        dc = dc * f[t]
        dh = torch.baddbmm(given[t - 1], move, w) if t else move.bmm(w)
    inner = torch.stack(moves[::-1], 1)
    return inner, inner, dh, dc


def _gru(gates: Tensor, h: Tensor, c: None, w: Tensor, shift: Tensor | None) -> tuple[Tensor, None, Any]:
    own = h.bmm(w) if shift is None else torch.baddbmm(shift, h, w)
    size = 2 * h.shape[-1]
    opened = (gates[..., :size] + own[..., :size]).sigmoid()
    r, z = opened.chunk(2, -1)
    part = own[..., size:]
    new = torch.addcmul(gates[..., size:], r, part).tanh()
    return torch.lerp(new, h, z), None, (opened, part, new)


def _gru_back(
    given: Any, dc: None, w: Tensor, before: Tensor, last: Tensor, opened: Tensor, part: Tensor, new: Tensor
) -> Any:
    r, z = opened.chunk(2, -1)
    direct = (1 - z) * (1 - new * new)
    common = [part * r * (1 - r) * direct, (before - new) * z * (1 - z)]
    by_state = torch.stack([*common, direct * r], -2)
    dh, downs = given[-1], []
    moves = []
    for t in reversed(range(len(given))):
        downs.append(dh)
        move = (dh[..., None, :] * by_state[t]).flatten(-2)
        moves.append(move)
        dh = torch.baddbmm(torch.addcmul(given[t - 1], dh, z[t]) if t else dh * z[t], move, w)
    inner, all_downs = torch.stack(moves[::-1], 1), torch.stack(downs[::-1], 1)
    size = 2 * new.shape[-1]
    outer = torch.cat([inner[..., :size], all_downs * direct.transpose(0, 1)], -1)
    return inner, outer, dh, None


def _tanh(gates: Tensor, h: Tensor, c: None, w: Tensor, shift: None) -> tuple[Tensor, None, Any]:
    return torch.baddbmm(gates, h, w).tanh(), None, ()


def _relu(gates: Tensor, h: Tensor, c: None, w: Tensor, shift: None) -> tuple[Tensor, None, Any]:
    return torch.baddbmm(gates, h, w).relu(), None, ()


def _plain_back(slope: Any, given: Any, dc: None, w: Tensor, before: Tensor, last: Tensor) -> Any:
    by_state = slope(torch.cat([before[1:], last[None]]))
    dh, moves = given[-1], []
    for t in reversed(range(len(given))):
        moves.append(dh * by_state[t])
        dh = torch.baddbmm(given[t - 1], moves[-1], w) if t else moves[-1].bmm(w)
    inner = torch.stack(moves[::-1], 1)
    return inner, inner, dh, None


_FORTH: dict[str, Any] = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _tanh, "RNN_RELU": _relu}
_BACK: dict[str, Any] = {
    "LSTM": _lstm_back,
    "GRU": _gru_back,
    "RNN_TANH": partial(_plain_back, lambda h: 1 - h * h),
    "RNN_RELU": partial(_plain_back, lambda h: (h > 0).to(h.dtype)),
}
