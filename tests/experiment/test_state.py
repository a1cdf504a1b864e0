"""States and memories as messages: through bytes and JSON and back, every value as it was."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.codec import decode, encode
from kinfolk.experiment.record import plain
from kinfolk.experiment.state import from_message, memories_from_message, memories_to_message, to_message
from kinfolk.types import Client, Tree

CPU = torch.device("cpu")


@dataclass(frozen=True)
class State:
    model: Tree
    group: torch.Tensor
    nothing: Tree = field(default_factory=dict)
    best: float = 0.5
    count: int = 3
    name: str = "x"
    done: bool = False
    maybe: float | None = None


def there_and_back(state: State) -> State:
    """As a checkpoint does it: tensors through safetensors, the rest through JSON without NaN."""
    tensors, rest = to_message(state)
    told = json.loads(json.dumps(plain(rest), allow_nan=False))
    return from_message(state, decode(encode(tensors))[0], told, CPU)


@settings(deadline=None)
@given(
    best=st.floats(allow_nan=True),
    count=st.integers(-(2**70), 2**70),
    name=st.text(max_size=5),
    done=st.booleans(),
    maybe=st.none() | st.floats(),
)
def test_every_plain_value_comes_back(best, count, name, done, maybe):
    model = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(7)}
    state = State(model, torch.tensor([0, 1, -1]), {}, best, count, name, done, maybe)
    back = there_and_back(state)
    for key in ("best", "count", "name", "done", "maybe"):
        old, new = getattr(state, key), getattr(back, key)
        assert type(old) is type(new)
        assert old == new or (math.isnan(old) and math.isnan(new))
    assert math.copysign(1, best) == math.copysign(1, back.best) or math.isnan(best)
    assert list(back.model) == ["w", "n"]
    assert all(torch.equal(back.model[n], t) and back.model[n].dtype == t.dtype for n, t in model.items())
    assert torch.equal(back.group, state.group)
    assert back.nothing == {}


def test_what_can_not_be_stored_is_named():
    @dataclass(frozen=True)
    class Wrong:
        seen: list[int]

    with pytest.raises(TypeError, match=r"state\.seen is a list"):
        to_message(Wrong([1]))


def test_memories_come_back_to_their_clients():
    clients = tuple(Client(c) for c in ("10", "2", "a.b", "c"))
    memories = {
        clients[3]: {"model": {"w": torch.ones(2), "a.b": torch.zeros(1)}, "n.x": torch.tensor(4)},
        clients[1]: {},
        clients[2]: {"tree": {}},
    }
    message = decode(encode(memories_to_message({clients.index(c): memories[c] for c in memories})))[0]
    back = memories_from_message(message, clients)
    # Nobody is added and nobody is lost, not even one whose memory is empty: it must not start again.
    assert set(back) == set(memories)
    assert back[clients[1]] == {}
    assert back[clients[2]] == {"tree": {}}
    kept = back[clients[3]]
    assert list(kept) == ["model", "n.x"]
    assert torch.equal(kept["model"]["w"], torch.ones(2))
    assert list(kept["model"]) == ["w", "a.b"]
    assert kept["n.x"] == 4
    assert memories_from_message(memories_to_message({}), clients) == {}


def test_names_in_a_state_survive_the_way_to_disk():
    from dataclasses import dataclass

    import torch

    from kinfolk.experiment.state import from_message, to_message

    @dataclass(frozen=True)
    class Named:
        clients: tuple[str, ...]
        group: torch.Tensor

    state = Named(("ann", "bob"), torch.tensor([1, 0]))
    back = from_message(state, *to_message(state), torch.device("cpu"))
    assert back.clients == state.clients
    assert torch.equal(back.group, state.group)
