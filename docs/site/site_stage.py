"""The pages of the site as Zensical reads them: docs/, the pages at the root, notebooks, references, sources.

Pages link to one another as files of the repository do, so that they can be read there as well. A file or
folder outside docs/ that a page links to gets a page of its own: the file as it stands, or a list of files.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import site_notebooks
import site_reference

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
ROOT_PAGES = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(?=[)#])")
LANGUAGES = {".py": "python", ".toml": "toml"}
# Folders that the navigation names, whether a page links to them or not.
LISTED = ("examples", "src/kinfolk/configs")


def stage(into: Path, *, run_notebooks: bool = True) -> None:
    """Write every page below `into`, empty before; notebooks are run for their outputs."""
    shutil.copytree(ROOT / "docs", into, ignore=shutil.ignore_patterns("site", "*.md"))
    shutil.copytree(HERE / "assets", into / "assets")
    wanted = set(LISTED)
    for source, name in written_pages().items():
        _write(into / name, relinked((ROOT / source).read_text(), source, wanted))
    _write(into / "adr/index.md", _decisions())
    for book in sorted((ROOT / "examples").glob("*.ipynb")):
        text = site_notebooks.page(book, run=run_notebooks)
        _write(into / "tutorials" / f"{book.stem}.md", relinked(text, f"examples/{book.name}", wanted))
    for name, text in site_reference.pages().items():
        _write(into / "reference" / name, text)
    done: set[str] = set()
    while open_ := sorted(wanted - done):
        for source in open_:
            _write(into / place(source), source_page(source, wanted))
        done.update(open_)


def written_pages() -> dict[str, str]:
    """The pages that somebody wrote, as paths in the repository, and their names on the site."""
    inside = (str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))
    return ROOT_PAGES | {source: source.removeprefix("docs/") for source in inside}


def place(source: str) -> str:
    """The page that stands for a file or folder of the repository.

    >>> place("docs/glossary.md"), place("README.md"), place("examples/find_groups.ipynb")
    ('glossary.md', 'readme.md', 'tutorials/find_groups.md')
    >>> place("examples/own_data.py"), place("src/kinfolk/configs")
    ('source/examples/own_data.py.md', 'source/src/kinfolk/configs.md')
    """
    path = Path(source)
    if source in ROOT_PAGES:
        return ROOT_PAGES[source]
    if source == "docs/adr":
        return "adr/index.md"
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if path.suffix == ".ipynb":
        return f"tutorials/{path.stem}.md"
    return f"source/{source}.md"


def relinked(text: str, source: str, wanted: set[str]) -> str:
    """The page's links as they must be on the site; sources that they lead to are added to `wanted`."""
    here = os.path.dirname(place(source))

    def follow(link: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(source), link[1]))
        if not (ROOT / target).exists():
            raise SystemExit(f"error: {source}: {link[1]} leads to nothing")
        name = place(target)
        if name.startswith("source/"):
            wanted.add(target)
        return os.path.relpath(name, here or ".")

    return "".join(part if code else LINK.sub(follow, part) for part, code in _parts(text))


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, each with whether it is code; joined they are the text."""
    at = 0
    for code in CODE.finditer(text):
        yield text[at : code.start()], False
        yield code[0], True
        at = code.end()
    yield text[at:], False


def source_page(source: str, wanted: set[str]) -> str:
    """A file as a block of code, or a folder as a list; the files of a folder are wanted as well."""
    path = ROOT / source
    if path.is_file():
        language = LANGUAGES.get(path.suffix, "text")
        return f"# {path.name}\n\n`{source}`\n\n````{language}\n{path.read_text()}````\n"
    lines = [f"# {source}", ""]
    for inner in sorted(path.iterdir()):
        name = f"{source}/{inner.name}"
        if inner.name.startswith((".", "__")):
            continue
        if place(name).startswith("source/"):
            wanted.add(name)
        link = os.path.relpath(place(name), os.path.dirname(place(source)))
        lines.append(f"- [{inner.name}]({link}){_first_line(inner)}")
    return "\n".join(lines) + "\n"


def _first_line(path: Path) -> str:
    """What a script or a configuration says of itself first, to stand behind its name."""
    first = path.read_text().partition("\n")[0] if path.is_file() else ""
    return ": " + first.strip('# "') if first.startswith(("#", '"')) else ""


def _decisions() -> str:
    """All decisions, by number and title."""
    lines = ["# Decisions", "", "What was decided, and why, in the order in which it was decided.", ""]
    for path in sorted((ROOT / "docs/adr").glob("[0-9]*.md")):
        lines.append(f"- [{path.read_text().partition(chr(10))[0].strip('# ')}]({path.name})")
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
