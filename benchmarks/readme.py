"""Puts the table and the figure of a comparison into the README: `make readme`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    folder = Path(sys.argv[1])
    words = [sys.executable, "-m", "kinfolk", "show", str(folder)]
    shown = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    lines = "\n".join(line.rstrip() for line in shown.strip().splitlines())
    readme = ROOT / "README.md"
    text, count = re.subn(
        r"```text\n.*?```", lambda _: f"```text\n{lines}\n```", readme.read_text(), count=1, flags=re.S
    )
    if not count:
        raise SystemExit("README.md has no ```text block for the table")
    readme.write_text(text)
    shutil.copy(folder / "figure.png", ROOT / "docs/img/demo.png")


if __name__ == "__main__":
    main()
