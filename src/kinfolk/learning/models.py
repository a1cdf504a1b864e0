"""The networks of the papers, small enough to read and fit to be batched over clients.

Nothing here writes into its input, branches on the value of a tensor or draws in `forward`, so
`torch.func.vmap` takes every model. The last layer is always called `head`. Initial weights come from
torch's own defaults: whoever builds a model seeds the generator.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from kinfolk.by_path import by_path, one_line
from kinfolk.errors import KinfolkError, near
from kinfolk.learning.hugging_face import PREFIX, hugging_face_model
from kinfolk.learning.network import ReluPool2
from kinfolk.learning.room import check_fits
from kinfolk.learning.sequences import CNN1d, TextMean, TokenLSTM, TokenTransformer

NORMS = ("bn", "batch", "gn", "none")
MOST_LAYERS = 1000  # of what has an option for that: each takes time to make


def _norm(kind: str, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> nn.Module:
    """BatchNorm, the same by the batch at hand in scoring too ("batch"), GroupNorm or nothing."""
    if kind not in NORMS:
        raise KinfolkError("model.norm", kind, near(str(kind), NORMS))
    if kind in ("bn", "batch"):
        return nn.BatchNorm2d(channels, eps=eps, momentum=momentum, track_running_stats=kind == "bn")
    if kind == "none":
        return nn.Identity()
    # At most the usual 32 groups, and four channels or more in each: a group of one channel on a
    # map of one pixel would be normalised to nothing.
    most = max(1, min(32, channels // 4))
    return nn.GroupNorm(max(g for g in range(1, most + 1) if channels % g == 0), channels)


def _conv(into: int, out: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps the side at stride 1; no bias, since a norm follows."""
    return nn.Conv2d(into, out, size, stride, padding=size // 2, groups=groups, bias=False)


class LeNet(nn.Module):
    """LeNet-5 (LeCun et al., 1998) with ReLU and max-pooling, on square images.

    With `pad`, images of side 28 get a border of 2 that repeats their edge, whatever the background is.
    """

    def __init__(self, channels: int = 1, classes: int = 10, side: int = 32, pad: bool = True) -> None:
        super().__init__()
        self.border = 2 if pad and side == 28 else 0
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool = ReluPool2()
        left = ((side + 2 * self.border - 4) // 2 - 4) // 2
        self.fc1 = nn.Linear(16 * left * left, 120)
        self.fc2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [rows, classes]."""
        if self.border:
            x = F.pad(x, [self.border] * 4, mode="replicate")
        x = self.pool(self.conv1(x))
        x = self.pool(self.conv2(x))
        x = F.relu(self.fc2(F.relu(self.fc1(x.flatten(1)))))
        return self.head(x)  # type: ignore[no-any-return]


class FemnistCNN(nn.Module):
    """The CNN of LEAF for FEMNIST (Caldas et al., 2018); FeSEM's has `hidden = 248`."""

    def __init__(self, hidden: int = 2048, classes: int = 62, channels: int = 1, side: int = 28) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.pool = ReluPool2()
        self.fc1 = nn.Linear(64 * (side // 4) ** 2, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [rows, classes]."""
        x = self.pool(self.conv1(x))
        x = self.pool(self.conv2(x))
        return self.head(F.relu(self.fc1(x.flatten(1))))  # type: ignore[no-any-return]


class CelebaCNN(nn.Module):
    """The CNN of LEAF for CelebA (Caldas et al., 2018), with TensorFlow's BatchNorm constants.

    LEAF normalises by the batch at hand always, in tests too; so does `norm = "batch"`. Running statistics
    ("bn") are of little use among clients of ten pictures: the mean of what clients have seen of models that
    went apart is not what the mean model sees, and at TensorFlow's momentum of 0.99 (0.01 as it is counted
    here) they still hold their first values after ten rounds.
    """

    def __init__(
        self, side: int = 84, classes: int = 2, channels: int = 3, norm: str = "bn", momentum: float = 0.01
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for into in (channels, 32, 32, 32):
            layers += [nn.Conv2d(into, 32, 3, padding=1), _norm(norm, 32, eps=1e-3, momentum=momentum)]
            layers += [nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()]
            side = math.ceil(side / 2)
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(32 * side * side, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [rows, classes]."""
        return self.head(self.body(x).flatten(1))  # type: ignore[no-any-return]


class TinyCNN(nn.Module):
    """Two convolutions and a global mean: for images of 8x8 and for quick trials."""

    def __init__(self, channels: int = 1, classes: int = 10, norm: str = "none", width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.norm1 = _norm(norm, width)
        self.pool = ReluPool2()
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm2 = _norm(norm, 2 * width)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [rows, classes]."""
        x = self.pool(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Fully connected layers with ReLU on rows of any shape."""

    def __init__(self, inputs: int, hidden: Sequence[int] = (200,), outputs: int = 10) -> None:
        super().__init__()
        self.inputs = inputs
        widths = [inputs, *hidden]
        self.body = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits or predictions [rows, outputs]."""
        x = x.reshape(x.shape[0], self.inputs)
        for layer in self.body:
            x = F.relu(layer(x))
        return self.head(x)  # type: ignore[no-any-return]


# Logistic regression, or linear with one output.
Logistic = partial(MLP, hidden=())


class _Residual(nn.Module):
    """ResNet's basic block; the shortcut is projected where the shape changes."""

    def __init__(self, into: int, out: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(into, out, 3, stride), _norm(norm, out)
        self.conv2, self.norm2 = _conv(out, out, 3), _norm(norm, out)
        same = stride == 1 and into == out
        self.short = nn.Sequential() if same else nn.Sequential(_conv(into, out, 1, stride), _norm(norm, out))

    def forward(self, x: Tensor) -> Tensor:
        """The map after the block."""
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.short(x))


class ResNet18(nn.Module):
    """ResNet18 for small images (He et al., 2016): stem of stride 1, no max-pooling."""

    def __init__(self, classes: int = 10, norm: str = "bn", width: int = 64, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(channels, width, 3), _norm(norm, width), nn.ReLU())
        blocks, into = [], width
        for times, stride in ((1, 1), (2, 2), (4, 2), (8, 2)):
            for first in (stride, 1):
                blocks.append(_Residual(into, times * width, first, norm))
                into = times * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(into, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [rows, classes]."""
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))  # type: ignore[no-any-return]


class _Inverted(nn.Module):
    """MobileNetV2's block: widen, convolve each channel alone, narrow; no ReLU on the narrow end."""

    def __init__(self, into: int, out: int, widen: int, stride: int, norm: str) -> None:
        super().__init__()
        wide = widen * into
        self.layers = nn.Sequential(
            *(_conv(into, wide, 1), _norm(norm, wide), nn.ReLU()),
            *(_conv(wide, wide, 3, stride, groups=wide), _norm(norm, wide), nn.ReLU()),
            *(_conv(wide, out, 1), _norm(norm, out)),
        )
        self.added = stride == 1
        project = self.added and into != out
        self.short = nn.Sequential(_conv(into, out, 1), _norm(norm, out)) if project else nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        """The map after the block."""
        inner: Tensor = self.layers(x)
        return inner + self.short(x) if self.added else inner


# Widening, channels, blocks, stride of the first block; small images keep their side for longer.
_STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)


class MobileNetV2(nn.Module):
    """MobileNetV2 for small images (Sandler et al., 2018): ReLU, shortcuts projected where widths differ.

    `width` is that of the first layer, published as 32; the others keep their proportion to it.
    """

    def __init__(self, classes: int = 10, norm: str = "bn", width: int = 32, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(channels, width, 3), _norm(norm, width), nn.ReLU())
        blocks, into, end = [], width, 40 * width
        for widen, published, number, stride in _STAGES:
            out = max(1, published * width // 32)
            for first in (stride, *[1] * (number - 1)):
                blocks.append(_Inverted(into, out, widen, first, norm))
                into = out
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(_conv(into, end, 1), _norm(norm, end), nn.ReLU())
        self.head = nn.Linear(end, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [rows, classes]."""
        return self.head(self.last(self.blocks(self.stem(x))).mean((2, 3)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ModelEntry:
    """How a model is built, what it is, which options it has (with their defaults)."""

    build: Callable[..., nn.Module]
    line: str
    options: Mapping[str, object] = field(default_factory=dict)
    least: int = 0  # smallest side of an image; 0: rows of any shape
    axes: tuple[str, ...] = ()  # of a row, where it must have these and no others


MODELS: dict[str, ModelEntry] = {
    "lenet": ModelEntry(LeNet, "LeNet-5 with ReLU and max-pooling", {"pad": True}, 16),
    "femnist_cnn": ModelEntry(FemnistCNN, "LEAF's CNN for FEMNIST", {"hidden": 2048}, 4),
    "femnist_cnn_small": ModelEntry(FemnistCNN, "FeSEM's CNN for FEMNIST", {"hidden": 248}, 4),
    "celeba_cnn": ModelEntry(CelebaCNN, "LEAF's CNN for CelebA", {"norm": "bn", "momentum": 0.01}, 2),
    "tiny_cnn": ModelEntry(TinyCNN, "two convolutions, for 8x8 and up", {"norm": "none", "width": 8}, 2),
    "mlp": ModelEntry(MLP, "fully connected layers with ReLU", {"hidden": (200,)}),
    "logistic": ModelEntry(Logistic, "one linear layer"),
    "resnet18": ModelEntry(ResNet18, "ResNet18 for small images", {"norm": "bn", "width": 64}, 1),
    "mobilenetv2": ModelEntry(MobileNetV2, "MobileNetV2 for small images", {"norm": "bn", "width": 32}, 1),
    "char_lstm": ModelEntry(
        TokenLSTM,
        "LEAF's LSTM for the next character",
        {"vocabulary": 0, "embedding": 8, "hidden": 256, "layers": 2, "every": False},
        axes=("length",),
    ),
    "word_lstm": ModelEntry(
        TokenLSTM,
        "an LSTM for a label of a short text",
        {"vocabulary": 10_000, "embedding": 32, "hidden": 100, "layers": 2},
        axes=("length",),
    ),
    "char_transformer": ModelEntry(
        TokenTransformer,
        "a small causal Transformer for the next character",
        {"vocabulary": 0, "width": 64, "heads": 4, "layers": 2, "every": False},
        axes=("length",),
    ),
    "text_mean": ModelEntry(
        TextMean, "the mean of word vectors", {"vocabulary": 10_000, "embedding": 32}, axes=("length",)
    ),
    "cnn1d": ModelEntry(
        CNN1d, "three convolutions over time", {"width": 32, "kernel": 5}, axes=("channels", "time")
    ),
}


def build_model(name: str, shape: tuple[int, ...], outputs: int, options: Mapping[str, object]) -> nn.Module:
    """The model `name` for rows of `shape` (no batch axis; images are channel, height, width).

    A name with a colon is an import path, "package.module:Class", called with the options, and with
    `shape` and `outputs` where it has parameters of these names; one as "hf:FOLDER" is of transformers.

    >>> model = build_model("mlp", (1, 8, 8), 10, {"hidden": [32]})
    >>> sum(p.numel() for p in model.parameters())
    2410
    """
    shape = tuple(int(side) for side in shape)
    if name.startswith(PREFIX):
        return hugging_face_model(name.removeprefix(PREFIX), outputs, options)
    if ":" in name:
        return _imported(name, shape, outputs, options)
    if name not in MODELS:
        raise KinfolkError("model.name", name, near(name, MODELS) + " (or an import path 'module:Class')")
    entry = MODELS[name]
    chosen = dict(entry.options)
    for option, value in options.items():
        if option not in chosen:
            hint = near(option, chosen) if chosen else "no options"
            raise KinfolkError(f"model.{option}", value, f"{name} has no such option; {hint}")
        chosen[option] = _checked(option, value, chosen[option])
    takes = inspect.signature(entry.build).parameters
    facts = _facts(name, entry, shape, outputs, square="side" in takes)
    build = partial(entry.build, **{key: fact for key, fact in facts.items() if key in takes}, **chosen)
    check_fits(name, build, ", ".join(f"{key} = {value}" for key, value in options.items())[:120])
    return build()


def _facts(
    name: str, entry: ModelEntry, shape: tuple[int, ...], outputs: int, square: bool
) -> dict[str, int]:
    """What the shape of the data says about a model; an error where the model cannot take it."""
    facts = {"inputs": math.prod(shape), "classes": outputs, "outputs": outputs}
    if entry.axes:
        if len(shape) != len(entry.axes):
            remedy = f"{name} takes rows ({', '.join(entry.axes)}); use another model"
            raise KinfolkError("data.shape", shape, remedy)
        return facts | dict(zip(entry.axes, shape, strict=True))
    if not entry.least:
        return facts
    if len(shape) != 3:
        remedy = (
            f"give each image its channel axis, {(1, *shape)}" if len(shape) == 2 else "use mlp or logistic"
        )
        raise KinfolkError("data.shape", shape, f"{name} takes images (channels, height, width); {remedy}")
    channels, height, width = shape
    if height > 4 >= width and channels > 4:
        remedy = f"put the channels first, {(width, channels, height)}"
        raise KinfolkError("data.shape", shape, f"{name} takes images (channels, height, width); {remedy}")
    if min(height, width) < entry.least or (square and height != width):
        kind = f"{'square ' if square else ''}images from {entry.least}x{entry.least} up"
        remedy = "resize them, or use tiny_cnn, mlp or logistic"
        raise KinfolkError("data.shape", shape, f"{name} takes {kind}; {remedy}")
    return facts | {"channels": channels, "side": height}


def _checked(option: str, value: Any, default: object) -> object:
    """The value of an option if it is of its default's kind; names of norms are checked where used."""

    def whole(number: Any, least: int = 1) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and number >= least

    if isinstance(default, bool):
        good, kind = isinstance(value, bool), "true or false"
    elif isinstance(default, int):
        least = min(default, 1)
        good, kind = whole(value, least), "a whole number" + (" above 0" if least else ", 0 or more")
    elif isinstance(default, tuple):
        value = tuple(value) if isinstance(value, list | tuple) else (value,)
        good, kind = all(map(whole, value)), "a list of whole numbers above 0"
    else:
        return value
    if not good:
        raise KinfolkError(f"model.{option}", value, f"give {kind}")
    if (value if option == "layers" else len(value) if isinstance(value, tuple) else 0) > MOST_LAYERS:
        raise KinfolkError(f"model.{option}", value, f"makes more than {MOST_LAYERS} layers; make it smaller")
    return value


def _imported(name: str, shape: tuple[int, ...], outputs: int, options: Mapping[str, object]) -> nn.Module:
    """A model of the user's own."""
    build = by_path("model.name", name, lambda kind: inspect.isclass(kind) and issubclass(kind, nn.Module))
    try:
        signature = inspect.signature(build)
        facts = {"shape": shape, "outputs": outputs}
        given = {key: fact for key, fact in facts.items() if key in signature.parameters} | dict(options)
        signature.bind(**given)
    except (TypeError, ValueError) as error:
        raise KinfolkError("model", dict(options), f"{name} does not take these options: {error}") from error
    try:
        model = build(**given)
    except Exception as error:
        raise KinfolkError("model.name", name, f"it could not be built: {one_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise KinfolkError("model.name", name, f"it gave a {type(model).__name__}, not a torch.nn.Module")
    return model
