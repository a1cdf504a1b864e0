"""Small networks of every common kind, with the rows that each takes: what all engines must train alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.freezing import freeze
from kinfolk.learning.lora import add_lora
from kinfolk.learning.models import _Residual, build_model
from kinfolk.streams import Seed

CLASSES, WORDS, LENGTH, WIDTH = 4, 11, 6, 8


class Tokens(nn.Module):
    """Numbers of words, as rows have them, into vectors, then a body, then the mean over places."""

    def __init__(self, body: nn.Module, padding: int | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, width, padding)
        self.body, self.head = body, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.table(x.long())).mean(1))


class States(nn.Module):
    """A recurrent layer, and a linear one on its last states or on the mean of all."""

    def __init__(self, layer: nn.RNNBase, last: bool = True) -> None:
        super().__init__()
        self.layer, self.last = layer, last
        self.head = nn.Linear(layer.hidden_size * (1 + layer.bidirectional), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out, after = self.layer(x)
        if not self.layer.batch_first:
            out = out.transpose(0, 1)
        after = after[0] if isinstance(after, tuple) else after
        ends = torch.cat(list(after[-1 - self.layer.bidirectional :]), -1)
        return self.head(ends if self.last else out.mean(1) + ends)


class StepsFirst(nn.Module):
    """A network that takes its rows along the second axis, as recurrent layers do unless told otherwise."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(0, 1))


class Looks(nn.Module):
    """Rows [rows, places, width] that look at one another's places by `nn.MultiheadAttention`."""

    def __init__(self, weights: bool = False, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=dropout, bias=bias, batch_first=True)
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        out, where = self.attention(x, x + 1, x, need_weights=self.weights)
        return x + out if where is None else x + out + where.sum(-1, keepdim=True)


class Causal(nn.Module):
    """A block of a language model that calls `F.scaled_dot_product_attention` by itself."""

    def __init__(self, dropout: float = 0.0, masked: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout, self.masked = dropout, masked

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).movedim(-3, 0)
        q, k, v = (part.transpose(1, 2) for part in parts)
        drop = self.dropout if self.training else 0.0
        square = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
        mask = square.tril() if self.masked else None
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=drop, is_causal=mask is None)
        x = x + self.out(out.transpose(1, 2).flatten(2))
        inner = F.dropout(F.gelu(self.wide(self.norm2(x))), self.dropout, self.training)
        return x + self.narrow(inner)


class Padded(nn.Module):
    """A Transformer that does not look at the places of word 0, with `mask` also not ahead."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.head, self.causal = nn.Linear(WIDTH, CLASSES), causal

    def forward(self, x: Tensor) -> Tensor:
        ids = x.long()
        ids = torch.cat([torch.ones_like(ids[:, :1]), ids[:, 1:]], 1)  # the first place is never padding
        nothing = ids == 0
        ahead = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        mask = ahead == -torch.inf if self.causal else None
        out = self.body(self.table(ids), mask, src_key_padding_mask=nothing)
        real = (~nothing)[..., None].to(out.dtype)
        return self.head((out * real).sum(1) / real.sum(1))


class Tied(nn.Module):
    """A language model whose last layer is its table of words; the mean over places predicts the class."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.body = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.table(x.long()))[0]).mean(1)[:, :CLASSES]


class Bags(nn.Module):
    def __init__(self, mode: str, padding: int | None = None) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(WORDS, WIDTH, mode=mode, padding_idx=padding)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x.long()))


class ViT(nn.Module):
    """Patches, a learnt place for each and a first one that the class is read from."""

    def __init__(
        self,
        side: int = 8,
        patch: int = 4,
        width: int = WIDTH,
        heads: int = 2,
        layers: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.ones(1, (side // patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.place
        return self.head(self.norm(self.body(x)[:, 0]))


class Mixer(nn.Module):
    """Linear layers along places and along channels in turn (MLP-Mixer)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.places, self.channels = nn.Linear(LENGTH, LENGTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + F.gelu(self.channels(self.norm2(x)))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.both = nn.Linear(4, 5), nn.Linear(4, 5), nn.Bilinear(5, 5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.both(torch.tanh(self.left(x[:, :4])), torch.tanh(self.right(x[:, 4:])))


class Translates(nn.Module):
    """An encoder and a decoder, `nn.Transformer`, from the rows to themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Transformer(WIDTH, 2, 1, 1, 16, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        ahead = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.body(x, x, tgt_mask=ahead)


def places(body: nn.Module, width: int = WIDTH) -> nn.Module:
    """A body for rows [rows, places, width], then the mean over places."""

    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1)

    return nn.Sequential(body, Mean(), nn.Linear(width, CLASSES))


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(CLASSES))


def encoder(dropout: float = 0.0, **how: object) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout, batch_first=True, **how)  # type: ignore[arg-type]
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@dataclass(frozen=True)
class Kind:
    """How a network is made, the shape of its rows and what they hold: numbers, words, or itself."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    rows: str = "x"
    drops: bool = False

    def network(self) -> nn.Module:
        with Seed(0).borrowed("init"), torch.no_grad():
            made = self.make()
            made(torch.zeros(2, *self.shape))  # lazy layers draw their weights now
            return made

    def federation(self, sizes: tuple[int, ...], classes: int = CLASSES) -> Federation:
        """Clients of so many rows, and three rows each to be scored on."""
        draw = Seed(1).torch("rows")

        def some(n: int) -> tuple[Tensor, Tensor]:
            if self.rows == "words":
                x = torch.randint(WORDS, (n, *self.shape), generator=draw).float()
            else:
                x = torch.randn(n, *self.shape, generator=draw)
            y = x if self.rows == "itself" else torch.randint(classes, (n,), generator=draw)
            return x, y

        made = [some(n) for n in sizes]
        own = None if self.rows == "itself" else classes
        return from_arrays(made, test=[some(3) for _ in sizes], classes=own)


_IMAGE, _SERIES, _ROW, _TEXT = (1, 8, 8), (LENGTH, WIDTH), (WIDTH,), (LENGTH,)
_RNN = {"batch_first": True}


def adapted(network: nn.Module) -> nn.Module:
    """With adapters that have moved, beside frozen matrices; the head is trained whole."""
    freeze(network, ["head.*"])
    add_lora(network, rank=2, alpha=2, train=True)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name.endswith("lora_B"):
                p.copy_(0.1 * torch.sin(torch.arange(p.numel())).reshape(p.shape))
    return network


def frozen_start() -> nn.Module:
    """A convolution and its norm frozen, the rest trained."""
    start = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).requires_grad_(False)
    return nn.Sequential(start, *flat(nn.Conv2d(4, 3, 3)))


NETWORKS: dict[str, Kind] = {
    "mlp": Kind(lambda: build_model("mlp", _ROW, CLASSES, {"hidden": [6]}), _ROW),
    "lenet": Kind(lambda: build_model("lenet", (1, 16, 16), CLASSES, {}), (1, 16, 16)),
    "cnn 1d": Kind(
        lambda: flat(nn.Conv1d(WIDTH, 6, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 4, 2)), (WIDTH, 12)
    ),
    "cnn 3d": Kind(lambda: flat(nn.Conv3d(1, 4, 3), nn.ReLU(), nn.Conv3d(4, 2, 2)), (1, 5, 5, 5)),
    "depthwise": Kind(
        lambda: flat(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 4, 1)), _IMAGE
    ),
    "dilated": Kind(lambda: flat(nn.Conv2d(1, 4, 3, dilation=2, padding="same"), nn.ReLU()), _IMAGE),
    "autoencoder": Kind(
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 1, 4, 2, 1)),
        _IMAGE,
        "itself",
    ),
    "residual": Kind(lambda: flat(_Residual(1, 4, 1, "bn"), _Residual(4, 6, 2, "bn")), _IMAGE),
    "group norm": Kind(
        lambda: flat(nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.AvgPool2d(2)), _IMAGE
    ),
    "mixer": Kind(lambda: places(Mixer()), _SERIES),
    "rms norm": Kind(
        lambda: places(nn.Sequential(nn.Linear(WIDTH, 6), nn.RMSNorm(6), nn.SiLU()), 6), _SERIES
    ),
    "lstm": Kind(lambda: States(nn.LSTM(WIDTH, 6, **_RNN)), _SERIES),
    "lstm both ways": Kind(
        lambda: States(nn.LSTM(WIDTH, 5, 2, bidirectional=True, **_RNN), last=False), _SERIES
    ),
    "lstm steps first": Kind(lambda: StepsFirst(States(nn.LSTM(WIDTH, 5))), _SERIES),
    "gru": Kind(lambda: States(nn.GRU(WIDTH, 6, **_RNN), last=False), _SERIES),
    "gru both ways": Kind(
        lambda: States(nn.GRU(WIDTH, 5, 2, bidirectional=True, bias=False, **_RNN)), _SERIES
    ),
    "rnn": Kind(lambda: States(nn.RNN(WIDTH, 6, **_RNN)), _SERIES),
    "rnn relu": Kind(lambda: States(nn.RNN(WIDTH, 6, 2, nonlinearity="relu", **_RNN), last=False), _SERIES),
    "mean of embeddings": Kind(lambda: Tokens(nn.Identity()), _TEXT, "words"),
    "embedding bag": Kind(lambda: Bags("mean"), _TEXT, "words"),
    "padded embedding bag": Kind(lambda: Bags("max", 0), _TEXT, "words"),
    "tied lstm": Kind(Tied, _TEXT, "words"),
    "attention": Kind(lambda: places(Looks()), _SERIES),
    "attention weights": Kind(lambda: places(Looks(weights=True, bias=False)), _SERIES),
    "transformer": Kind(lambda: places(encoder()), _SERIES),
    "transformer norm first": Kind(
        lambda: Tokens(encoder(norm_first=True, activation="gelu"), 0), _TEXT, "words"
    ),
    "encoder and decoder": Kind(lambda: places(Translates()), _SERIES),
    "causal": Kind(lambda: Tokens(nn.Sequential(Causal(), Causal(masked=True))), _TEXT, "words"),
    "padded": Kind(Padded, _TEXT, "words"),
    "padded causal": Kind(lambda: Padded(causal=True), _TEXT, "words"),
    "vit": Kind(ViT, _IMAGE),
    "dropout": Kind(
        lambda: nn.Sequential(nn.Linear(WIDTH, 9), nn.ReLU(), nn.Dropout(0.3), nn.Linear(9, CLASSES)),
        _ROW,
        drops=True,
    ),
    "dropout by channel": Kind(
        lambda: flat(nn.Conv2d(1, 6, 3), nn.Dropout2d(0.4), nn.ReLU()), _IMAGE, drops=True
    ),
    "dropout transformer": Kind(lambda: places(encoder(0.2)), _SERIES, drops=True),
    "dropout causal": Kind(lambda: Tokens(Causal(0.2)), _TEXT, "words", drops=True),
    "dropout lstm": Kind(lambda: States(nn.LSTM(WIDTH, 5, 2, dropout=0.3, **_RNN)), _SERIES, drops=True),
    "adapters, transformer": Kind(lambda: adapted(Tokens(encoder(0.0))), _TEXT, "words"),
    "adapters, causal, dropout": Kind(lambda: adapted(Tokens(Causal(0.2))), _TEXT, "words", drops=True),
    "frozen convolution and norm": Kind(frozen_start, _IMAGE),
    "weight norm": Kind(lambda: flat(weight_norm(nn.Linear(WIDTH, 6)), nn.Tanh()), _ROW),
    "two heads": Kind(TwoHeads, _ROW),
    "activations": Kind(
        lambda: flat(
            nn.Linear(WIDTH, 6), nn.PReLU(6), nn.Linear(6, 6), nn.Softplus(), nn.Softmax(1), nn.ELU()
        ),
        _ROW,
    ),
}
# What no engine can do for many clients at a time, and how it says so.
ALONE: dict[str, tuple[Kind, str]] = {
    "spectral norm": (
        Kind(lambda: flat(spectral_norm(nn.Linear(WIDTH, 6))), _ROW),
        "layer 0.parametrizations.weight.0 (_SpectralNorm): ",
    ),
    "alpha dropout": (
        Kind(lambda: flat(nn.Linear(WIDTH, 6), nn.AlphaDropout(0.2)), _ROW),
        "layer 1 (AlphaDropout) draws random numbers",
    ),
}
