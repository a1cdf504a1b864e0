"""Networks whose inputs are not one tensor of floats, and small clients for them."""

import torch
from torch import Tensor, nn


class TwoInputs(nn.Module):
    """Numbers and a few words beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.words, self.head = nn.Linear(3, 6), nn.Embedding(7, 6), nn.Linear(6, 2)

    def forward(self, age: Tensor, word: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(age) + self.words(word).mean(1)))


class Tokens(nn.Module):
    """Tokens as one tensor."""

    def __init__(self, ids: int = 9) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(ids, 5), nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(tokens)).mean(1))


class Ragged(Tokens):
    """The mean of what is real in a sequence."""

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        real = mask.unsqueeze(-1).float()
        return self.head((torch.tanh(self.words(tokens)) * real).sum(1) / real.sum(1).clamp(min=1))


NETWORKS = {"two inputs": TwoInputs, "tokens": Tokens, "ragged": Ragged}


def clients(kind: str, count: int = 4, seed: int = 0) -> dict[str, tuple[object, object]]:
    """A few rows for each client, of differing number."""
    draw = torch.Generator().manual_seed(seed)

    def whole(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=draw)

    found: dict[str, tuple[object, object]] = {}
    for i in range(count):
        rows = 11 + 3 * i
        if kind == "two inputs":
            x: object = {
                "age": torch.randn(rows, 3, generator=draw),
                "word": whole(7, rows, 4).to(torch.int16),
            }
            found[f"c{i}"] = x, whole(2, rows)
        elif kind == "tokens":
            found[f"c{i}"] = whole(9, rows, 6), whole(3, rows)
        else:
            long = (whole(5, rows) + 1).tolist()
            names = ["ant", "bee", "cat"]
            labels = [names[j] for j in whole(3, rows).tolist()]
            found[f"c{i}"] = [whole(9, n) for n in long], labels
    return found
