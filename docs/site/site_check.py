"""What must hold of the finished site: nothing is loaded from elsewhere, links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes by which a page makes a browser fetch something, without a click.
LOADS = {"src", "srcset", "data", "poster"}
ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
IN_CSS = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])([^'\")\s]+)")
# Zensical's script would fetch what draws these from a public server.
FETCHED = {"mermaid", "glightbox"}


class Page(HTMLParser):
    """What a page holds that is checked: its links, what it loads, names of places, images without a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.faults: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag's links, loads, name and faults."""
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link":
            self.loads.append(found.get("href", ""))
        self.loads += [found[name] for name in LOADS & found.keys()]
        self.loads += IN_CSS.findall(found.get("style", ""))
        if tag == "img" and not found.get("alt", "").strip():
            self.faults.append(f"an image without a text: {found.get('src')}")
        for name in FETCHED & set(found.get("class", "").split()):
            self.faults.append(f"class {name}: its script would be fetched")


def faults(site: Path) -> Iterator[str]:
    """Every fault of the site in `site`, a line each."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site)
        yield from (f"{where}: {fault}" for fault in page.faults)
        for load in page.loads:
            yield from (f"{where}: loads {load}: {why}" for why in _amiss(path, load, pages, remote=False))
        for link in page.links:
            yield from (f"{where}: links to {link}: {why}" for why in _amiss(path, link, pages, remote=True))
    for sheet in sorted(site.rglob("*.css")):
        for load in IN_CSS.findall(sheet.read_text()):
            if ELSEWHERE.match(load):
                yield f"{sheet.relative_to(site)}: loads {load}: not of this site"


def _amiss(path: Path, target: str, pages: dict[Path, Page], *, remote: bool) -> Iterator[str]:
    """Why what a page names cannot be had, if it cannot."""
    if ELSEWHERE.match(target) or urlsplit(target).scheme in ("http", "https"):
        if not remote:
            yield "not of this site"
        return
    parts = urlsplit(target)
    if parts.scheme:  # data:, mailto:
        return
    file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    file = file / "index.html" if file.is_dir() else file
    if not _exists(file):
        yield "is not there"
    elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].anchors | {"__skip"}:
        yield "the page has no such place"


@cache
def _exists(file: Path) -> bool:
    return file.exists()
