"""Puts the table of a comparison, and a picture of its report, into the README: `make readme`.

The picture is taken by Chromium, and stays as it is where there is none.
"""

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
    if chromium := shutil.which("chromium"):
        photograph(folder / "report.html", ROOT / "docs/img/report.png", chromium)


def photograph(page: Path, picture: Path, chromium: str) -> None:
    """The top of a report as a reader sees it, at half the size, in few colours."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        window = browser.new_page(viewport={"width": 1180, "height": 1560}, color_scheme="light")
        window.goto(page.resolve().as_uri())
        window.wait_for_selector("html[data-ready]")
        window.wait_for_timeout(2000)  # charts are drawn when they come near
        window.screenshot(path=picture)
        browser.close()
    Image.open(picture).convert("RGB").quantize(64).save(picture, optimize=True)


if __name__ == "__main__":
    main()
