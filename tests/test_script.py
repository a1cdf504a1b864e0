"""Scripts say what is asked and perform nothing; `play` sends every answer back to where it was asked for."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kinfolk.fold import Mean
from kinfolk.script import (
    Ask,
    Exchange,
    Finalizes,
    Groups,
    Remembers,
    Stops,
    ask,
    client_tasks,
    exchange,
    fold,
    play,
)
from kinfolk.task import PeerTask, Task
from kinfolk.types import Client, Stack

A, B = Client("a"), Client("b")


def test_play_sends_each_answer_to_the_request_it_belongs_to():
    each = Stack.of({A: (1, {"v": torch.tensor(1)})})
    mean = Mean("model", keep={})
    seen: list[Any] = []

    def script() -> Generator[Any, Any, Any]:
        first = yield from ask("one", [B, A], shared={"s": torch.ones(1)})
        second = yield from fold(mean, "two", (A,), each=each)
        third = yield from exchange("three", [A, B])
        return (first, second, third), {"done": True}

    def perform(request: Any) -> int:
        seen.append(request)
        return len(seen) * 10

    state, info = play(script(), perform)
    # An exchange tells the script nothing, whatever the engine returns.
    assert state == (10, 20, None)
    assert info == {"done": True}
    assert seen[0] == Ask("one", (B, A), seen[0].shared, None, None)
    assert list(seen[0].shared) == ["s"]
    assert (seen[1].task, seen[1].to, seen[1].each, seen[1].fold) == ("two", (A,), each, mean)
    assert seen[2] == Exchange("three", (A, B))


def test_a_round_without_requests_asks_nobody():
    def script() -> Generator[Any, Any, Any]:
        return "state", {}
        yield

    assert play(script(), lambda request: pytest.fail("nothing was asked")) == ("state", {})


def test_what_goes_wrong_while_performing_is_not_swallowed():
    def script() -> Generator[Any, Any, Any]:
        yield from ask("one", [A])
        return None, {}

    def perform(request: Any) -> None:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        play(script(), perform)


def test_requests_do_not_share_what_they_carry():
    one, two = Ask("t", (A,)), Ask("t", (A,))
    assert one.shared is not two.shared
    assert next(ask("t", [A])).shared == {}


def test_scoring_tasks_are_installed_beside_the_others():
    task = Task(start=lambda *_: {}, finish=lambda carry: (carry, None))
    swap = PeerTask(send=lambda *_: {}, receive=lambda *_: {})

    @dataclass
    class Method:
        def tasks(self) -> dict[str, Task | PeerTask]:
            return {"update": task, "talk": swap}

        def eval_tasks(self) -> dict[str, Task]:
            return {"centre": task}

    table = client_tasks(Method())  # type: ignore[arg-type]
    assert table == {"update": task, "talk": swap, "score.centre": task}


def test_optional_abilities_are_told_apart():
    class Plain:
        pass

    class All:
        def init_client(self, who: Client) -> dict[str, Any]:
            return {}

        def groups(self, state: Any) -> torch.Tensor:
            return torch.zeros(1)

        def finished(self, state: Any) -> str:
            return ""

        def finalize(self, state: Any, context: Any) -> None:
            return None

    for ability in (Remembers, Groups, Stops, Finalizes):
        assert isinstance(All(), ability)
        assert not isinstance(Plain(), ability)
