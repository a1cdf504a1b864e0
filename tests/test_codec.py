"""Messages survive the way to bytes and back; bytes that lie are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kinfolk.codec import decode, encode, flatten
from kinfolk.errors import KinfolkError
from kinfolk.types import Message

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]
KEYS = st.text(max_size=6).filter(lambda k: "/" not in k and k != "__metadata__")


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    raw = draw(st.lists(st.integers(-128, 127), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    value = torch.tensor(raw, dtype=torch.float64).reshape(shape) / 3
    dtype = draw(st.sampled_from([*DTYPES, torch.bool]))
    value = value > 0 if dtype == torch.bool else value.abs().to(dtype)
    if draw(st.booleans()):
        value = value.T if value.dim() == 2 else value.expand(2, *value.shape)
    return value


messages = st.dictionaries(
    KEYS, tensors() | st.dictionaries(st.text(max_size=6), tensors(), max_size=3), max_size=4
)
headers = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def same(a: Message, b: Message) -> None:
    assert list(a) == list(b)
    for key in a:
        if isinstance(a[key], dict):
            same(a[key], b[key])
        else:
            assert (a[key].dtype, a[key].shape) == (b[key].dtype, b[key].shape)
            assert raw(a[key]) == raw(b[key])


@given(messages, headers)
@settings(deadline=None)
def test_round_trip(message: Message, header: dict[str, str]) -> None:
    data = encode(message, header)
    back, head = decode(data, limit=len(data))
    same(message, back)
    assert (head, list(head)) == (header, list(header))
    assert encode(back, header) == data


def test_flat_names_hold_the_key_and_the_name() -> None:
    assert list(flatten({"n": torch.zeros(1), "m": {"a/b": torch.zeros(1)}})) == ["n", "m/a/b"]


def test_special_values_keep_their_bits() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    same(decode(encode({"odd": odd}))[0], {"odd": odd})


def test_shared_memory_grad_and_views() -> None:
    base = torch.arange(12.0, requires_grad=True)
    message = {"a": base, "b": base[3:7], "c": base[::2], "t": {"d": base.expand(3, 12), "e": base}}
    same(decode(encode(message))[0], message)
    conjugate = torch.tensor([1 + 2j, 3 - 4j]).conj()
    back = decode(encode({"z": conjugate, "i": conjugate.imag}))[0]
    assert back["z"].tolist() == [1 - 2j, 3 + 4j]
    assert back["i"].tolist() == [-2.0, 4.0]


def test_decoded_tensors_can_be_written() -> None:
    back = decode(encode({"a": torch.zeros(2)}))[0]
    back["a"] += 1
    assert back["a"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "message",
    [
        {"a/b": torch.zeros(1)},
        {"__metadata__": torch.zeros(1)},
        {1: torch.zeros(1)},
        {"a": 1.0},
        {"a": {"b": {"c": torch.zeros(1)}}},
        {"a": {1: torch.zeros(1)}},
        {"a": torch.zeros(1, dtype=torch.complex128)},
        {"a": torch.eye(2).to_sparse()},
    ],
)
def test_what_cannot_travel_is_refused(message: Message) -> None:
    with pytest.raises(KinfolkError, match="message"):
        encode(message)


def test_a_refusal_is_one_printable_line() -> None:
    with pytest.raises(KinfolkError) as caught:
        decode(lie([["a", None]], tensors=one("\x1b[31m\n", [1], 4)))
    assert str(caught.value).isprintable()


def test_limit_is_checked_before_anything_is_read() -> None:
    with pytest.raises(KinfolkError, match="limit of 10 bytes"):
        decode(b"x" * 11, limit=10)


DATA = encode(
    {"a": torch.arange(4), "b": torch.tensor([True, False]), "m": {"w": torch.ones(2, 2)}, "e": {}},
    {"k": "v"},
)


def test_every_truncation_is_refused() -> None:
    for cut in range(len(DATA)):
        with pytest.raises(KinfolkError, match="torn or malformed"):
            print(f"cut to {cut} bytes:", decode(DATA[:cut]))


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(KinfolkError):
        decode(noise)


@given(st.integers(0, len(DATA) - 1), st.integers(0, 255))
@settings(deadline=None)
def test_an_altered_byte_gives_a_message_or_a_refusal(place: int, byte: int) -> None:
    altered = bytearray(DATA)
    altered[place] = byte
    try:
        message, header = decode(bytes(altered))
    except KinfolkError:
        return
    same(decode(encode(message, header))[0], message)  # whatever came through is a well-formed message


def document(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def lie(layout: object, header: object = {}, tensors: object = None, body: bytes = bytes(4)) -> bytes:
    if tensors is None:
        tensors = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    entry = json.dumps({"layout": layout, "header": header})
    return document({"__metadata__": {"kinfolk": entry}, **tensors}, body)  # type: ignore[dict-item]


def one(dtype: str, shape: list[int], end: int) -> dict[str, object]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}


def test_the_hand_made_document_is_sound() -> None:
    message, header = decode(lie([["a", None]], {"k": "v"}))
    assert message["a"].tolist() == [0.0]
    assert header == {"k": "v"}


@pytest.mark.parametrize(
    "data",
    [
        lie([]),
        lie([["a", None], ["a", None]]),
        lie([["a", None], ["b", None]]),
        lie([["a", None], ["a", []]]),
        lie([["a", []]]),
        lie([["a", None], [1, []]]),
        lie([["a", None], ["b/c", []]]),
        lie([["a", "xyz"]]),
        lie({"a": None}),
        lie(None),
        lie([["a", None]], {"k": 1}),
        lie([["a", None]], ["k"]),
        lie([["a", None]], tensors=one("F32", [2], 4)),
        lie([["a", None]], tensors=one("F32", [2**62], 4)),
        lie([["a", None]], tensors=one("F32", [-1], 4)),
        lie([["a", None]], tensors=one("F99", [1], 4)),
        lie([["a", None]], tensors=one("F32", [1], 400)),
        lie([["a", None]], tensors=one("BOOL", [4], 4), body=b"\0\1\2\0"),
        document({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        document({"__metadata__": {"kinfolk": "[" * 100_000}}),
        document({"__metadata__": {"kinfolk": '{"layout": ' + "9" * 5000 + "}"}}),
        struct.pack("<Q", 2**63) + b"{}",
    ],
)
def test_headers_that_lie_are_refused(data: bytes) -> None:
    with pytest.raises(KinfolkError, match="torn or malformed"):
        decode(data)


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return open, (str(self.path), "w")


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    import pickle

    bomb = pickle.dumps(Canary(tmp_path / "canary"))
    torch.save({"a": torch.zeros(1)}, tmp_path / "model.pt")
    for data in (bomb, (tmp_path / "model.pt").read_bytes()):
        with pytest.raises(KinfolkError):
            decode(data)
    assert not (tmp_path / "canary").exists()
