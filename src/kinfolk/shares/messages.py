"""What peers write to one another about a sum, checked before it is used."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.types import Client, Message, Tree

# What a requester says of its exchange: not at all, go, or the shorter list.
ABORT, GO, AGAIN = range(3)


def entry(message: object, key: str, kind: torch.dtype, shape: tuple[int, ...], sender: str) -> Tensor:
    """An entry of a message, or an error that names the sender if it is not as agreed.

    >>> entry({"sigma": torch.tensor(1)}, "sigma", torch.float64, (), "bob")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: message of 'bob' = 'sigma': must be torch.float64 of shape ()
    """
    value = message.get(key) if isinstance(message, dict) else None
    if not isinstance(value, Tensor) or value.dtype != kind or tuple(value.shape) != shape:
        raise KinfolkError(f"message of {sender!r}", key, f"must be {kind} of shape {shape}")
    return value


def request_message(mask: Tensor, sigma: Tensor) -> Message:
    """What every member is asked: who is on the list, and with which weights.

    >>> request_message(torch.tensor([True, False]), torch.tensor([0.5, 0.9]).double())["sigma"]
    tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    return {"mask": mask.clone(), "sigma": torch.where(mask, sigma, 0.0)}


def read_request(message: object, peers: int, sender: str) -> tuple[Tensor, Tensor]:
    """(mask, sigma) of a request; each weight is a similarity, and nobody off the list has one.

    >>> read_request(request_message(torch.tensor([True]), torch.tensor([1.5]).double()), 1, "bob")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: sigma of 'bob' = [1.5]: must lie in [0, 1], and be 0 off the list
    """
    mask = entry(message, "mask", torch.bool, (peers,), sender).cpu()
    sigma = entry(message, "sigma", torch.float64, (peers,), sender).cpu()
    if not (bool(((sigma >= 0) & (sigma <= 1)).all()) and not bool(sigma[~mask].any())):
        remedy = "must lie in [0, 1], and be 0 off the list"
        raise KinfolkError(f"sigma of {sender!r}", [round(one, 3) for one in sigma.tolist()], remedy)
    return mask, sigma


def no_request(peers: int) -> Tree:
    """What "asked" holds while nobody is asked.

    >>> no_request(2)["mask"]
    tensor([False, False])
    """
    mask, sigma = torch.zeros(peers, dtype=torch.bool), torch.zeros(peers, dtype=torch.float64)
    return {"mask": mask, "sigma": sigma, "word": torch.tensor(ABORT), "verdict": torch.tensor(ABORT)}


def trees(messages: Mapping[Client, object]) -> dict[Client, Message]:
    """Only what has the form of a message at all.

    >>> trees({"ann": {}, "bob": 3})
    {'ann': {}}
    """
    return {who: message for who, message in messages.items() if isinstance(message, dict)}


def row(data: bytes) -> Tensor:
    """Bytes as a tensor.

    >>> row(bytes([1, 2]))
    tensor([1, 2], dtype=torch.uint8)
    """
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
