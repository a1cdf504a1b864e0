"""One writer for a folder: the second is refused by name, and a kill lets go of the lock."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kinfolk
from kinfolk import lock
from kinfolk.errors import KinfolkError
from kinfolk.lock import holder, is_written, writing

ENV = {**os.environ, "PYTHONPATH": str(Path(kinfolk.__file__).parents[1])}
HOLD = """
import os, sys, time
from pathlib import Path
from kinfolk.lock import writing
with writing(Path(sys.argv[1])):
    if sys.argv[2:]:
        if os.fork() == 0:
            print(os.getpid(), flush=True)
        os.close(1)
    else:
        print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def another(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that holds the lock of a folder, and the line it prints when it does."""
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *words], env=ENV, stdout=subprocess.PIPE, text=True
    )
    assert held.stdout is not None
    try:
        yield held, held.stdout.readline().strip()
    finally:
        held.kill()
        held.communicate()


def test_the_second_writer_is_refused_in_a_line_that_names_the_first(tmp_path):
    with another(tmp_path / "r") as (first, _):
        with pytest.raises(KinfolkError) as refused, writing(tmp_path / "r"):
            raise AssertionError
        told = str(refused.value)
        assert len(told.splitlines()) == 1
        who = f"is being written by process {first.pid} on {socket.gethostname()}, since "
        assert f"folder = '{tmp_path / 'r'}': {who}" in told
        assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC; wait for it, or choose another", told)
        assert holder(tmp_path / "r").pid == first.pid


def test_a_lock_is_gone_with_the_process_that_was_killed(tmp_path):
    with another(tmp_path / "r") as (first, _):
        assert is_written(tmp_path / "r") is True
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert is_written(tmp_path / "r") is False
        assert holder(tmp_path / "r").pid == first.pid, "a reader may tell whose it was"
        with writing(tmp_path / "r"):
            assert holder(tmp_path / "r").pid == os.getpid()
    assert holder(tmp_path / "r") is None, "nobody is named who has left"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork processes")
def test_a_forked_process_that_outlives_its_parent_holds_nothing(tmp_path):
    with another(tmp_path / "r", "fork") as (first, child):
        try:
            first.send_signal(signal.SIGKILL)
            first.wait()
            os.kill(int(child), 0)  # is alive
            assert is_written(tmp_path / "r") is False
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_one_process_has_one_writer_too(tmp_path):
    with writing(tmp_path), pytest.raises(KinfolkError, match=f"process {os.getpid()} "), writing(tmp_path):
        raise AssertionError
    with writing(tmp_path), writing(tmp_path / "inner"):
        assert is_written(tmp_path / "inner")


def test_readers_never_keep_a_writer_out(tmp_path):
    with writing(tmp_path):
        pass
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            is_written(tmp_path)
            time.sleep(0)

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for one in askers:
        one.start()
    try:
        for _ in range(30):
            with writing(tmp_path):
                pass
    finally:
        over.set()
        for one in askers:
            one.join()


def test_what_was_made_for_nothing_goes_again_and_what_was_there_stays(tmp_path):
    with pytest.raises(ZeroDivisionError), writing(tmp_path / "a" / "b"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
    (tmp_path / "mine").mkdir()
    with writing(tmp_path / "mine"):
        pass
    assert os.listdir(tmp_path / "mine") == [".lock"]
    with writing(tmp_path / "c"):
        (tmp_path / "c" / "file").write_text("x")
    assert sorted(os.listdir(tmp_path / "c")) == [".lock", "file"]
    assert (tmp_path / "c" / ".lock").read_text() == ""


def test_a_lock_file_that_its_owner_removed_while_one_waited_is_not_taken(tmp_path, monkeypatch):
    """The second opens the file, the first removes it, a third makes a new one: the second must see that."""
    take, third = lock._take, list[int]()

    def late(handle: int, alone: bool) -> None:
        if not third:
            (tmp_path / ".lock").unlink()
            third.append(os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT))
            take(third[0], True)
        take(handle, alone)

    monkeypatch.setattr(lock, "_take", late)
    with pytest.raises(KinfolkError, match="is being written by another process"), writing(tmp_path):
        raise AssertionError
    os.close(third[0])


def test_a_file_system_without_locks_is_told_of(tmp_path, monkeypatch):
    def refuse(handle: int, alone: bool) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_take", refuse)
    with writing(tmp_path / "r") as lack:
        assert "this file system has no locks" in lack
        assert is_written(tmp_path / "r") is None
        (tmp_path / "r" / "file").write_text("x")
    assert is_written(tmp_path / "r") is None


def test_a_folder_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(KinfolkError, match=r"cannot be written \(.*\); choose another"),
        writing(tmp_path / "file" / "r"),
    ):
        raise AssertionError
