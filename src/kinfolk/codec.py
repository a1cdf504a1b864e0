"""Messages to bytes and back: one safetensors document, never a pickle.

A leaf of a tree is stored as `key/name`, a plain tensor as `key`. What safetensors does not keep (the
order of keys, trees without leaves) is written into its metadata, together with the caller's header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.types import Message, leaves

# The only metadata key: with a second one the bytes would differ from call to call, because
# safetensors writes metadata in the order of a randomised hash table.
_ENTRY = "kinfolk"

# For each key of a message, in order: None for a plain tensor, the names of the leaves for a tree.
_Layout = list[tuple[str, list[str] | None]]


def flatten(message: Message) -> dict[str, Tensor]:
    """The tensors of a message under flat names; a tree without leaves leaves no trace.

    >>> flatten({"n": torch.tensor(3), "m": {"w": torch.zeros(1)}})
    {'n': tensor(3), 'm/w': tensor([0.])}
    """
    for key, value in message.items():
        _check_entry(key, value)
    return {key if name is None else f"{key}/{name}": leaf for key, name, leaf in leaves(message)}


def encode(message: Message, header: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a message; equal messages and headers give equal bytes.

    >>> message, header = decode(encode({"n": torch.tensor(3), "m": {}}, {"kind": "reply"}))
    >>> message, header
    ({'n': tensor(3), 'm': {}}, {'kind': 'reply'})
    """
    flat = flatten(message)
    layout = [(key, list(value) if isinstance(value, dict) else None) for key, value in message.items()]
    entry = json.dumps({"layout": layout, "header": dict(header or {})})
    seen: set[int] = set()
    try:
        own = {name: _own(leaf, seen) for name, leaf in flat.items()}
        return to_safetensors(own, {_ENTRY: entry})
    except Exception as error:  # torch and safetensors agree on no type: a KeyError for a dtype, for one
        remedy = f"cannot be stored ({_brief(error)}); send dense tensors of an ordinary type"
        raise KinfolkError("message", list(message), remedy) from error


def head(data: bytes, limit: int | None = None) -> dict[str, str]:
    """The header alone, before any tensor is made: who a message is from, and what it answers.

    >>> head(encode({"n": torch.tensor(3)}, {"from": "ann"}))
    {'from': 'ann'}
    """
    _check_size(data, limit)
    try:
        length = int.from_bytes(data[:8], "little")
        if not length <= len(data) - 8:
            raise ValueError("the header is longer than the message")
        return _entry(data)[1]
    except Exception as error:  # hostile bytes fail anywhere
        raise _malformed(data, error) from error


def decode(data: bytes, limit: int | None = None) -> tuple[Message, dict[str, str]]:
    """The message (on the CPU) and the header behind bytes that may come from anybody.

    Nothing is believed: more than `limit` bytes, a torn document, or a header that does not fit the
    tensors is refused with a KinfolkError.

    >>> decode(bytes(100), limit=64)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: message = '100 bytes': is above the limit of 64 bytes
    """
    _check_size(data, limit)
    try:
        flat = from_safetensors(data)
        layout, header = _entry(data)
        return _arrange(flat, layout), header
    except Exception as error:  # hostile bytes fail anywhere: in the parser, in torch, in our layout
        raise _malformed(data, error) from error


def _check_size(data: bytes, limit: int | None) -> None:
    if limit is not None and len(data) > limit:
        raise KinfolkError("message", f"{len(data)} bytes", f"is above the limit of {limit} bytes")


def _malformed(data: bytes, error: Exception) -> KinfolkError:
    remedy = f"is torn or malformed ({_brief(error)}); send it again"
    return KinfolkError("message", f"{len(data)} bytes", remedy)


def _own(leaf: Tensor, seen: set[int]) -> Tensor:
    """The leaf on the CPU in memory that no other leaf uses, as safetensors demands."""
    own = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous()
    place = own.untyped_storage().data_ptr()
    if place and place in seen:  # an empty tensor is at 0
        own = own.clone()
    seen.add(place)
    return own


def _check_entry(key: object, value: object) -> None:
    if not isinstance(key, str) or "/" in key or key == "__metadata__":
        raise KinfolkError("message", key, 'choose a key without "/" that is not "__metadata__"')
    inside = value.items() if isinstance(value, dict) else [(key, value)]
    for name, leaf in inside:
        if not isinstance(name, str) or not isinstance(leaf, Tensor):
            kind = type(leaf).__name__
            raise KinfolkError("message", key, f"holds a {kind}; only named tensors and trees travel")


def _entry(data: bytes) -> tuple[_Layout, dict[str, str]]:
    """Our own metadata, every type checked; of tensors nothing is known by it."""
    length = int.from_bytes(data[:8], "little")
    entry = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_ENTRY])
    layout, header = entry["layout"], entry["header"]
    if not all(isinstance(word, str) for pair in header.items() for word in pair):
        raise ValueError("the header holds more than text")
    for key, names in layout:
        if not _words([key]) or not (names is None or _words(names)):
            raise ValueError("the layout holds more than names")
    return layout, header


def _words(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _arrange(flat: Mapping[str, Tensor], layout: _Layout) -> Message:
    """Put tensors in the order of the layout; each must be named by it exactly once."""
    message: Message = {}
    paths: list[str] = []
    for key, names in layout:
        _check_entry(key, {})
        paths += [key] if names is None else [f"{key}/{name}" for name in names]
        message[key] = flat[key] if names is None else {name: flat[f"{key}/{name}"] for name in names}
    if len(message) != len(layout) or sorted(paths) != sorted(flat):
        raise ValueError("the layout does not name every tensor once")
    for tensor in flat.values():
        # A byte that is neither 0 nor 1 would be a truth value of its own kind.
        if tensor.dtype == torch.bool and tensor.numel() and tensor.view(torch.uint8).max() > 1:
            raise ValueError("a truth value is neither 0 nor 1")
    return message


def _brief(error: Exception) -> str:
    """The first line of an error, short and printable, whatever a stranger put into it."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
    return "".join(letter if letter.isprintable() else "?" for letter in first)
