"""Convolutions that stay fast when every client has weights of its own.

PyTorch's batching rule turns a call for many clients into one grouped convolution, which cuDNN runs
far below what the device can do. Four forms are known here; on a GPU each layer's shape is tried
once with all of them, and the fastest serves it from then on.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.engines.fast.choices import KERNELS
from kinfolk.engines.fast.layers import in_front
from kinfolk.learning.recording import recorded, warm_up

Form = Callable[[Tensor, Tensor, Tensor | None, int, int], Tensor]


class Call(NamedTuple):
    """All that the speed of a form depends on."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    bias: bool
    stride: int
    pad: int
    want: tuple[bool, bool]  # gradients of x and w
    dtype: torch.dtype
    tf32: bool

    def text(self) -> str:
        """A name for it in records.

        >>> Call((4, 20, 1, 28, 28), (4, 6, 1, 5, 5), True, 1, 0, (False, True), torch.float32, False).text()
        'conv 4x20x1x28x28 by 4x6x1x5x5, bias, stride 1, pad 0, gradients w, float32'
        """
        x, w = ("x".join(map(str, shape)) for shape in (self.x, self.w))
        wanted = "".join(name for name, is_wanted in zip("xw", self.want, strict=True) if is_wanted) or "none"
        kind = str(self.dtype).removeprefix("torch.") + (" as tf32" if self.tf32 else "")
        bias = ", bias" if self.bias else ""
        return f"conv {x} by {w}{bias}, stride {self.stride}, pad {self.pad}, gradients {wanted}, {kind}"


class ClientConv2d(nn.Conv2d):
    """A convolution that takes the fastest form for its shape within vmap, and is PyTorch's own elsewhere.

    What it gives lies in memory as is fastest, or with `usual_layout` as PyTorch's does.
    """

    usual_layout = False

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        stride, pad = int(self.stride[0]), int(self.padding[0])
        out: Tensor
        if not any(torch._C._functorch.is_batchedtensor(t) for t in (x, self.weight)):
            out = _alone(x, self.weight, self.bias, stride, pad)
        else:
            out = _ManyClients.apply(x, self.weight, self.bias, stride, pad)  # type: ignore[no-untyped-call]
        return out.contiguous() if self.usual_layout else out


def fast_conv(layer: nn.Module) -> nn.Module:
    """The layer, or if it is a plain convolution one for many clients; it keeps its numbers and names.

    >>> fast_conv(nn.Conv2d(3, 8, 3))
    ClientConv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
    """
    if (
        type(layer) is nn.Conv2d
        and (layer.groups, layer.dilation, layer.padding_mode) == (1, (1, 1), "zeros")
        and not isinstance(layer.padding, str)
        and layer.stride[0] == layer.stride[1]
        and layer.padding[0] == layer.padding[1]
    ):
        layer.__class__ = ClientConv2d
    return layer


def _plain(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: int) -> Tensor:
    """One client's convolution. On a CPU with channels innermost, which oneDNN does twice as fast."""
    if not x.is_cuda and x.dim() == 4:
        if w.shape[-2:] == (1, 1) and stride > 1 and not pad:
            # Leave out by hand what is skipped: without AVX-512, oneDNN's own way overwrites foreign memory
            # when there are fewer than 8 channels (oneDNN issue 6035).
            x, stride = x[..., ::stride, ::stride], 1
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
    return F.conv2d(x, w, bias, stride, pad)


def _alone(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: int) -> Tensor:
    """One client's convolution outside vmap, whose rules do not know every layout.

    Tensor cores take channels innermost, so coarse products on a GPU go half as fast again by it.
    """
    if x.is_cuda and x.dim() == 4 and (x.dtype == torch.bfloat16 or torch.backends.cudnn.allow_tf32):
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
    return _plain(x, w, bias, stride, pad)


class _ManyClients(torch.autograd.Function):
    """Hands a vmapped convolution, clients in front, to `client_conv`."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: int) -> Tensor:
        return _plain(x, w, bias, stride, pad)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: gradients are taken outside vmap, of what `client_conv` recorded."""

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: int
    ) -> Any:
        """All clients' rows at once."""
        if in_dims[1] is None and (bias is None or in_dims[2] is None):  # one model for all clients
            rows = x.movedim(in_dims[0], 0)
            out = _plain(rows.flatten(0, 1), w, bias, stride, pad)
            return out.reshape(*rows.shape[:2], *out.shape[1:]), 0
        x, w, bias = in_front(info, in_dims[:3], x, w, bias)
        return client_conv(x, w, bias, stride, pad), 0


def client_conv(x: Tensor, w: Tensor, bias: Tensor | None, stride: int = 1, pad: int = 0) -> Tensor:
    """Convolve x [clients, rows, in, h, w] with w [clients, out, in, k, k] and bias [clients, out].

    >>> client_conv(torch.ones(2, 1, 1, 3, 3), torch.ones(2, 4, 1, 3, 3), None).shape
    torch.Size([2, 1, 4, 1, 1])
    """
    if not x.is_cuda:
        if len(x) == 1:  # a view, whose gradient is one too
            alone = None if bias is None else bias.flatten()
            return _plain(x.flatten(0, 1), w.flatten(0, 1), alone, stride, pad)[None]
        shift = [None] * len(x) if bias is None else bias.unbind()
        each = [_plain(*one, stride, pad) for one in zip(x.unbind(), w.unbind(), shift, strict=True)]
        return torch.stack(each)
    want = torch.is_grad_enabled() and x.requires_grad, torch.is_grad_enabled() and w.requires_grad
    tf32 = torch.backends.cudnn.allow_tf32
    call = Call(tuple(x.shape), tuple(w.shape), bias is not None, stride, pad, want, x.dtype, tf32)
    return FORMS[_fastest(call)](x, w, bias, stride, pad)


def grouped(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: int) -> Tensor:
    """One convolution with a group per client, as PyTorch batches it."""
    clients, rows = x.shape[:2]
    flat = x.transpose(0, 1).reshape(rows, -1, *x.shape[3:])
    out = F.conv2d(
        flat, w.flatten(0, 1), None if bias is None else bias.flatten(), stride, pad, groups=clients
    )
    return out.reshape(rows, clients, -1, *out.shape[2:]).transpose(0, 1)


def columns(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: int) -> Tensor:
    """The columns of the images written out, then one matrix product per client."""
    clients, rows = x.shape[:2]
    size = w.shape[-2:]
    wide = F.pad(x, (pad, pad, pad, pad)) if pad else x
    cut = wide.unfold(3, size[0], stride).unfold(4, size[1], stride)
    high, across = cut.shape[3], cut.shape[4]
    flat = cut.permute(0, 2, 5, 6, 1, 3, 4).reshape(clients, -1, rows * high * across)
    out = w.flatten(2).bmm(flat) if bias is None else torch.baddbmm(bias[:, :, None], w.flatten(2), flat)
    return out.reshape(clients, -1, rows, high, across).transpose(1, 2)


class _Gathered(torch.autograd.Function):
    """The columns gathered inside the product: `conv_kernels`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: int, turned: bool
    ) -> Tensor:
        x, w = x.contiguous(), w.contiguous()
        ctx.save_for_backward(x, w)
        ctx.how = stride, pad
        ctx.bias, ctx.turned = bias is not None, turned
        out: Tensor = _kernels().forward(x, w, None if bias is None else bias.contiguous(), stride, pad)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, w = ctx.saved_tensors
        gy = grads[0].contiguous()
        to_x, to_w = ctx.needs_input_grad[:2]
        to_input = _kernels().to_input_turned if ctx.turned else _kernels().to_input
        gx = to_input(gy, x, w, *ctx.how) if to_x else None
        gw = _kernels().to_weight(gy, x, w, *ctx.how) if to_w else None
        return gx, gw, gy.sum((1, 3, 4)) if ctx.bias else None, None, None, None


def gathered(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: int) -> Tensor:
    """No columns in memory: Triton kernels for CUDA devices."""
    out: Tensor = _Gathered.apply(x, w, bias, stride, pad, False)  # type: ignore[no-untyped-call]
    return out


def turned(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: int) -> Tensor:
    """The same, but the gradient of the images is itself a convolution, with the weights turned round."""
    if stride != 1 or w.shape[3] != w.shape[4] or pad >= w.shape[3]:
        raise RuntimeError("only square kernels that move by one place can be turned")
    out: Tensor = _Gathered.apply(x, w, bias, stride, pad, True)  # type: ignore[no-untyped-call]
    return out


# The last one serves any shape.
FORMS: dict[str, Form] = {"grouped": grouped, "columns": columns, "turned": turned, "gathered": gathered}


@lru_cache(maxsize=1)
def _kernels() -> Any:
    return importlib.import_module("kinfolk.engines.fast.conv_kernels")


@lru_cache(maxsize=8)
def _usable(dtype: torch.dtype) -> tuple[str, ...]:
    """The forms this machine can run; Triton comes with PyTorch's CUDA builds, but not with all.

    Our kernels add up in float32, which would be a loss to doubles.
    """
    try:
        _kernels()
    except ImportError:
        return ("grouped", "columns")
    if dtype == torch.float64:
        return ("grouped", "columns")
    return tuple(FORMS)


def _fastest(call: Call) -> str:
    usable = _usable(call.dtype)
    name = call.text()
    if KERNELS.chosen.get(name) not in usable and torch.cuda.is_current_stream_capturing():
        return usable[-1]  # no room for trials now; whoever captures has warmed up before
    return KERNELS.pick(name, usable, lambda: _trial(call))


def _trial(call: Call) -> dict[str, float]:
    """Milliseconds of one call and its gradients, for every form; one that fails takes for ever."""

    def ones(shape: tuple[int, ...], wanted: bool = False) -> Tensor:
        return torch.ones(shape, device="cuda", dtype=call.dtype, requires_grad=wanted)

    images, weight = ones(call.x, call.want[0]), ones(call.w, call.want[1])
    shift = ones(call.w[:2]) if call.bias else None
    took = {}
    for name in _usable(call.dtype):

        def go(form: Form = FORMS[name]) -> None:
            out = form(images, weight, shift, call.stride, call.pad)
            if wanted := [t for t in (images, weight) if t.requires_grad]:
                torch.autograd.grad(out, wanted, torch.ones_like(out))

        try:
            took[name] = _milliseconds(go)
        except RuntimeError:  # out of memory for the columns, or a shape the form cannot do
            took[name] = math.inf
    return took


def _milliseconds(go: Callable[[], None]) -> float:
    """The device's own time for some work: recorded and replayed, so that the host's does not count."""
    warm_up(go)
    graph = recorded(go)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    times = []
    for _ in range(3):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(min(times))
