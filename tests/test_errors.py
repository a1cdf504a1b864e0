"""An error for people is one line that a terminal only shows, whatever a stranger put into it."""

from __future__ import annotations

import pytest
import torch

from kinfolk.codec import encode
from kinfolk.engines import rpc
from kinfolk.errors import KinfolkError, visible
from kinfolk.types import Client, Stack

STRANGE = "a\x1b[2J\nb\r\x00\u2028c\u202e\ud800\x85\td"


@pytest.mark.parametrize("place", range(3))
def test_it_is_one_line_in_every_part(place: int) -> None:
    words = ["field", "value", "remedy"]
    words[place] = STRANGE
    text = str(KinfolkError(*words))
    assert text.splitlines() == [text]
    assert visible(text) == text
    assert "\t" not in text
    text.encode()
    assert "\\x1b[2J" in text


def test_what_is_meant_is_left_as_it_is() -> None:
    assert (
        str(KinfolkError("local.lr", "zoë", "give – a number; 学")) == "local.lr = 'zoë': give – a number; 学"
    )


def test_what_a_process_cannot_have_sent_is_one_line() -> None:
    stack = Stack.of({Client("ann"): (3, {"v": torch.ones(2)})})
    message, header = rpc.pack_stack(stack)
    for unpack, wrong in (
        (rpc.unpack_stack, {}),
        (rpc.unpack_stack, {"clients": "[" * 9999}),
        (rpc.unpack_stack, {"clients": "3"}),
        (rpc.unpack_part, {"part": "[1, 2]"}),
        (rpc.unpack_part, {}),
        (rpc.unpack_several, {"labels": "{"}),
    ):
        with pytest.raises(KinfolkError, match="message: is not what it should be"):
            unpack(message, wrong)
    assert rpc.unpack_stack(message, header).clients == ("ann",)
    with pytest.raises(KinfolkError, match="is not what it should be"):
        rpc.unpack_context({"run": "one"}, ())
    with pytest.raises(KinfolkError):
        rpc.opened(encode({}, {"error": "no memory"}), "worker 1")
