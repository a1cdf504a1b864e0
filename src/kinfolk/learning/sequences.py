"""Networks for sequences: tokens in order (characters, words) and channels over time (sensors).

Rows of tokens are whole numbers [rows, length]; an embedding gives each its vector. As in `models`, nothing
writes into its input, branches on the value of a tensor or draws in `forward`, and the last layer is `head`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinfolk.errors import KinfolkError


class TokenLSTM(nn.Module):
    """LEAF's stacked LSTM (Caldas et al., 2018) for the next character, or for a label of a short text.

    `vocabulary` is how many tokens there are; 0: as many as classes, for the next token. With `every`
    each token has outputs of its own, else the last one has.
    """

    def __init__(
        self,
        classes: int,
        vocabulary: int = 0,
        embedding: int = 8,
        hidden: int = 256,
        layers: int = 2,
        every: bool = False,
    ) -> None:
        super().__init__()
        self.every = every
        self.embed = nn.Embedding(vocabulary or classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [rows, classes], or [rows, length, classes] with `every`."""
        states = self.lstm(self.embed(x))[0]
        return self.head(states if self.every else states[:, -1])  # type: ignore[no-any-return]


class _Block(nn.Module):
    """Causal self-attention and two linear layers, each after a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """States [rows, length, width] after the block."""
        rows, length, width = x.shape
        parts = self.attend(self.norm1(x)).reshape(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))  # type: ignore[no-any-return]


class TokenTransformer(nn.Module):
    """A small causal Transformer with learned positions (Radford et al., 2018), norms first.

    `vocabulary` and `every` are as for `TokenLSTM`; `width` must be a multiple of `heads`.
    """

    def __init__(
        self,
        classes: int,
        length: int,
        vocabulary: int = 0,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        every: bool = False,
    ) -> None:
        super().__init__()
        if width % heads:
            raise KinfolkError("model.heads", heads, f"width = {width} is no multiple of it; give another")
        self.every = every
        self.embed = nn.Embedding(vocabulary or classes, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [rows, classes], or [rows, length, classes] with `every`."""
        states = self.norm(self.blocks(self.embed(x) + self.place))
        return self.head(states if self.every else states[:, -1])  # type: ignore[no-any-return]


class TextMean(nn.Module):
    """The mean of a text's word vectors and one linear layer; token 0 is padding and counts for nothing."""

    def __init__(self, classes: int, vocabulary: int = 10_000, embedding: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.head = nn.Linear(embedding, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [rows, classes]."""
        vectors = self.embed(x)
        # By its vector, which stays 0, and not by its number: mixtures of tokens have none.
        real = (vectors != 0).any(-1, keepdim=True).to(vectors.dtype).sum(1)
        return self.head(vectors.sum(1) / real.clamp(min=1))  # type: ignore[no-any-return]


class CNN1d(nn.Module):
    """Three convolutions over time, the first two with max-pooling by two, and a mean over time."""

    def __init__(self, channels: int, classes: int, width: int = 32, kernel: int = 5) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, width, kernel, padding=kernel // 2)
        self.conv2 = nn.Conv1d(width, 2 * width, kernel, padding=kernel // 2)
        self.conv3 = nn.Conv1d(2 * width, 2 * width, kernel, padding=kernel // 2)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [rows, classes] of rows [rows, channels, time]."""
        x = F.max_pool1d(F.relu(self.conv1(x)), 2)
        x = F.max_pool1d(F.relu(self.conv2(x)), 2)
        return self.head(F.relu(self.conv3(x)).mean(2))  # type: ignore[no-any-return]
