"""Builds the documentation as a site, strictly and without a network: `make docs`, or with `--out FOLDER`."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import site_check
import site_stage

HERE = Path(__file__).resolve().parent


def build(out: Path, *, run_notebooks: bool = True) -> None:
    """Write the site to `out`. Anything amiss ends the program with what and where; `out` stays as it was."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        site_stage.stage(work / "docs", run_notebooks=run_notebooks)
        project = tomllib.loads((HERE / "zensical.toml").read_text())["project"]
        names = sorted(str(path.relative_to(work / "docs")) for path in (work / "docs").rglob("*.md"))
        project["nav"] = navigation(project["nav"], names)
        # JSON is YAML, the other format that Zensical reads: the same settings with the navigation filled in.
        (work / "mkdocs.yml").write_text(json.dumps(project))
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{done.stdout}\n{done.stderr[-300:]}\nerror: zensical did not build the site")
        (work / "site/404.html").unlink()  # it would need a server, at the root of its host
        found = list(site_check.faults(work / "site"))
        if found:
            raise SystemExit("\n".join(found) + f"\nerror: {len(found)} faults in the site")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(work / "site", out)


def navigation(items: list[dict[str, Any]], names: list[str]) -> list[Any]:
    """The navigation with patterns filled in and without pages that are not there; every page must be in it.

    >>> navigation([{"Home": "a.md"}, {"Why": ["adr/*.md"]}, {"Soon": "later.md"}], ["a.md", "adr/1.md"])
    [{'Home': 'a.md'}, {'Why': ['adr/1.md']}]
    """
    listed: set[str] = set()

    def fill(item: Any) -> list[Any]:
        if isinstance(item, str):
            found = [name for name in names if fnmatch(name, item)]
            listed.update(found)
            return found
        ((title, inner),) = item.items()
        if isinstance(inner, list):
            return [{title: [one for part in inner for one in fill(part)]}]
        return [{title: name} for name in fill(inner)]

    filled = [one for item in items for one in fill(item)]
    # Sources are pages that others link to; only their lists are in the navigation.
    missing = [name for name in names if name not in listed and not name.startswith("source/")]
    if missing:
        raise SystemExit(f"error: not in the navigation of docs/site/zensical.toml: {', '.join(missing)}")
    return filled


def main() -> None:
    """Build the site from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "build/site")
    out = parser.parse_args().out
    build(out)
    print(f"site: {out / 'index.html'}")


if __name__ == "__main__":
    main()
