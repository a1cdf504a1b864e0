"""How tests run: one thread, since small networks only lose by two, and no deadlines on a busy machine."""

from __future__ import annotations

import signal
import sys

import pytest
import torch
from hypothesis import settings

from kinfolk.__main__ import main
from kinfolk.allowed import allowing

torch.set_num_threads(1)
# A shell starts what runs in its background with Ctrl-C ignored, and tests of stopping would hear nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A change lands or not by its own faults: the examples are the same in every run of the suite. For new ones:
# pytest --hypothesis-profile=explore
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("steady")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a fixture of their module run in one process, so that it is built once."""
    for item in items:
        found = getattr(item, "_fixtureinfo", None)
        fixtures = found.name2fixturedefs.values() if found else ()
        if any(one.scope == "module" for same_name in fixtures for one in same_name):
            item.add_marker(pytest.mark.xdist_group(item.location[0]))


@pytest.fixture
def command_line(monkeypatch, capsys):
    """Call the command line in this process: (exit code, standard output, standard error)."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kinfolk", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        out = capsys.readouterr()
        return code, out.out, out.err

    return call


@pytest.fixture
def torch_allowed():
    """Import paths may name what is PyTorch's."""
    with allowing(["torch"]):
        yield


@pytest.fixture
def kinfolk(command_line, monkeypatch, tmp_path):
    """The command line in an empty folder, without data sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path / "none"))
    return command_line
