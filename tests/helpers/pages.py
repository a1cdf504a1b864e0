"""What the pages show: blocks of code, and the command lines in them and between backticks.

A block of `bash` or `python` is run by a test, unless the line above it says why not:

    <!-- not run: hours on a GPU -->

`<!-- slow: a minute -->` leaves it to `make test-slow`. Neither is seen by readers.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md")))
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>not run|slow): .+? -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of code, and the mark above it: "not run", "slow" or nothing."""

    page: str
    line: int
    language: str
    text: str
    mark: str = ""

    @property
    def runs(self) -> bool:
        """Whether a test runs it."""
        return self.language in ("bash", "python") and self.mark != "not run"

    @property
    def typed(self) -> list[list[str]]:
        """The command lines of a block of bash, word by word."""
        return typed(self.text) if self.language == "bash" else []


def read(page: str) -> str:
    """The text of a page, named from the repository's root."""
    return (ROOT / page).read_text()


def all_blocks(page: str) -> list[Block]:
    """The blocks of a page, from top to bottom."""
    text = read(page)
    return [
        Block(page, text[: m.start()].count("\n") + 1, m["language"], m["text"], m["mark"] or "")
        for m in BLOCK.finditer(text)
    ]


def blocks(page: str, language: str) -> list[str]:
    """The text of the blocks of a page in one language that are run, or shown."""
    return [
        block.text for block in all_blocks(page) if block.language == language and block.mark != "not run"
    ]


def commands(page: str) -> list[str]:
    """The lines of a page's bash blocks that begin with `kinfolk`, without comments."""
    lines = [line.partition("  #")[0].strip() for text in blocks(page, "bash") for line in text.splitlines()]
    return [line for line in lines if line.startswith("kinfolk ")]


def typed(script: str) -> list[list[str]]:
    """The commands of a script as a shell reads them, none of which is run.

    >>> typed("few=k=4\\nfor s in 1 2; do kinfolk run -a ifca,$few --out 'a b'; done  # twice")[1]
    ['kinfolk', 'run', '-a', 'ifca,k=4', '--out', 'a b']
    """
    # Where no command is to be found, bash hands each to this function. A restricted shell in an empty
    # folder finds none: it takes no path for a command, writes no file and keeps the PATH it was given.
    record = "command_not_found_handle() { printf '%s\\x1f' \"$@\"; printf '\\x1e'; }\n"
    script = re.sub(r"^(\.|source) .*", ":", script, flags=re.MULTILINE)  # reads a script, which it would run
    with tempfile.TemporaryDirectory() as empty:
        words = ["/bin/bash", "--restricted", "--noprofile", "--norc", "-c", record + script]
        done = subprocess.run(words, cwd=empty, env={"PATH": "/nowhere"}, capture_output=True, text=True)
    if done.stderr:
        raise ValueError(f"not a plain list of commands: {done.stderr.strip()}")
    return [line.split("\x1f")[:-1] for line in done.stdout.split("\x1e")[:-1]]


def inline_commands(page: str) -> list[str]:
    """The command lines between single backticks that begin with `kinfolk` and name a command or option."""
    text = BLOCK.sub("", read(page))
    found = re.findall(r"(?<!`)`((?:kinfolk|torchrun|make|python) [^`]+)`(?!`)", text)
    return [" ".join(line.split()) for line in found]
