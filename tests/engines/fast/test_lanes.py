"""Lanes without a device: who waits for whom."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from kinfolk.engines.fast.lanes import CudaLane, lanes_on


class Queue:
    """Stands for a stream; notes for whom it waited."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Queue) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def lane(monkeypatch):
    log: list[str] = []
    outside = Queue("outside", log)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: outside)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    made = CudaLane(torch.device("cpu"), alone=False)
    made.side, made.log = Queue("side", log), log
    return made


def test_a_lane_begins_after_what_was_queued_and_is_waited_for(lane):
    with lane.entered():
        lane.log.append("work")
    lane.join()
    assert lane.log == ["side waits for outside", "work", "outside waits for side"]


def test_work_that_fails_is_waited_for_at_once(lane):
    with pytest.raises(MemoryError), lane.entered():
        raise MemoryError
    assert lane.log == ["side waits for outside", "outside waits for side"]


def test_the_queue_that_entered_is_the_one_that_waits(lane, monkeypatch):
    with lane.entered():
        pass
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Queue("another", lane.log))
    lane.join()
    assert lane.log[-1] == "outside waits for side"


def test_a_lane_that_was_never_entered_makes_nobody_wait(lane):
    lane.join()
    assert lane.log == []


def test_one_lane_is_the_engines_own_queue():
    (alone,) = lanes_on(torch.device("cpu"), 5)
    with alone.entered():
        pass
    alone.join()
    assert alone.side is None
