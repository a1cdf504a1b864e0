"""The command line, called in this process."""

from __future__ import annotations

import sys

import pytest

from kinfolk.cli import main


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
