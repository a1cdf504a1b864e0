"""How tests run: one thread, since small networks only lose by two, and no deadlines on a busy machine."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import settings

from kinfolk.__main__ import main

torch.set_num_threads(1)
# A change lands or not by its own faults: the examples are the same in every run of the suite. For new ones:
# pytest --hypothesis-profile=explore
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("steady")


@pytest.fixture
def kinfolk(monkeypatch, capsys, tmp_path):
    """Run the command line in a folder of its own: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path / "none"))

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
