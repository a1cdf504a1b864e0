"""What peers write to one another about a sum, checked before it is used; and a diary as tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.context import Diary, Visit
from kinfolk.shares.effective import levelled
from kinfolk.types import Client, Message, Tree

# What a requester says of its exchange: not at all, go, or the shorter list.
ABORT, GO, AGAIN = range(3)

STATES = ("", "open", "answered", "aborted")
NEVER = Visit(0, bytes(32), "")


def field(letter: object, key: str, kind: torch.dtype, shape: tuple[int, ...], sender: str) -> Tensor:
    """An entry of a letter, or an error that names the sender if it is not as agreed.

    >>> field({"sigma": torch.tensor(1)}, "sigma", torch.float64, (), "bob")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: letter of 'bob' = 'sigma': must be torch.float64 of shape ()
    """
    value = letter.get(key) if isinstance(letter, dict) else None
    if not isinstance(value, Tensor) or value.dtype != kind or tuple(value.shape) != shape:
        raise KinfolkError(f"letter of {sender!r}", key, f"must be {kind} of shape {shape}")
    return value


def request_letter(mask: Tensor, sigma: Tensor) -> Message:
    """What every member is asked: who is on the list, and with which weights.

    >>> request_letter(torch.tensor([True, False]), torch.tensor([0.5, 0.9]).double())["sigma"]
    tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    return {"mask": mask.clone(), "sigma": torch.where(mask, sigma, 0.0)}


def level_weights(mask: Tensor, sigma: Tensor, members: int) -> Tensor:
    """The weights of those on a list, level enough to count for so many members, or for all of fewer.

    >>> level_weights(torch.tensor([True, False, True]), torch.tensor([0.2, 0.9, 0.4]).double(), 3)
    tensor([0.3000, 0.0000, 0.3000], dtype=torch.float64)
    """
    own, weights = sigma[mask].tolist(), torch.zeros_like(sigma)
    weights[mask] = torch.tensor(levelled(own, min(len(own), members)), dtype=sigma.dtype)
    return weights


def read_request(letter: object, peers: int, sender: str) -> tuple[Tensor, Tensor]:
    """(mask, sigma) of a request; each weight is a similarity, and nobody off the list has one.

    >>> read_request(request_letter(torch.tensor([True]), torch.tensor([1.5]).double()), 1, "bob")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: sigma of 'bob' = [1.5]: must lie in [0, 1], and be 0 off the list
    """
    mask = field(letter, "mask", torch.bool, (peers,), sender).cpu()
    sigma = field(letter, "sigma", torch.float64, (peers,), sender).cpu()
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


def nothing_open(peers: int) -> Tree:
    """What "open" holds while no request is: lists, weights and reports by requester.

    >>> nothing_open(2)["go"]
    tensor([False, False])
    """
    lists = {key: torch.zeros(peers, peers, dtype=torch.bool) for key in ("mask", "lost")}
    sigma = torch.zeros(peers, peers, dtype=torch.float64)
    return {**lists, "go": torch.zeros(peers, dtype=torch.bool), "sigma": sigma}


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


def blank_diary(peers: int) -> Tree:
    """Nobody has asked yet.

    >>> to_diary(blank_diary(2), ("ann", "bob")).last
    {}
    """
    return from_diary(Diary(), tuple(Client(str(i)) for i in range(peers)))


def to_diary(tree: Tree, names: tuple[Client, ...], retries: int = 1) -> Diary:
    """The diary behind tensors [peers]."""
    rows = zip(names, *(tree[key].tolist() for key in ("round", "id", "state", "attempt")), strict=True)
    last = {
        who: Visit(round, bytes(id), STATES[state], attempt)
        for who, round, id, state, attempt in rows
        if state
    }
    return Diary(retries, last)


def one_visit(tree: Tree, names: tuple[Client, ...], who: Client, retries: int = 1) -> Diary:
    """The diary with what it says of one peer alone: all that a request of that peer is about.

    >>> diary = Diary(1, {"ann": Visit(2, bytes(32)), "bob": Visit(3, bytes(32), "answered", 1)})
    >>> one_visit(from_diary(diary, ("ann", "bob")), ("ann", "bob"), "bob").last["bob"].state
    'answered'
    """
    i = names.index(who)
    return to_diary({key: leaf[i : i + 1] for key, leaf in tree.items()}, (who,), retries)


def noted(tree: Tree, names: tuple[Client, ...], who: Client, diary: Diary) -> Tree:
    """The tensors with what a diary says of one peer; the rest stays as it was.

    >>> tree = noted(blank_diary(2), ("ann", "bob"), "bob", Diary(1, {"bob": Visit(3, bytes(32))}))
    >>> tree["round"], tree["state"]
    (tensor([0, 3]), tensor([0, 1]))
    """
    i, new = names.index(who), from_diary(diary, (who,))
    out = {key: leaf.clone() for key, leaf in tree.items()}
    for key, leaf in out.items():
        leaf[i] = new[key][0]
    return out


def from_diary(diary: Diary, names: tuple[Client, ...]) -> Tree:
    """A diary as tensors [peers].

    >>> diary = Diary(1, {"bob": Visit(3, bytes(32), "answered", 1)})
    >>> to_diary(from_diary(diary, ("ann", "bob")), ("ann", "bob")) == diary
    True
    """
    visits = [diary.last.get(who, NEVER) for who in names]
    return {
        "round": torch.tensor([visit.round for visit in visits]),
        "state": torch.tensor([STATES.index(visit.state) for visit in visits]),
        "attempt": torch.tensor([visit.attempt for visit in visits]),
        "id": torch.frombuffer(bytearray().join(visit.id for visit in visits), dtype=torch.uint8).view(
            -1, 32
        ),
    }
