"""Links between pages hold as files of the repository, where many read them; images have a text."""

from __future__ import annotations

import os
import re

import pytest
from pages import BLOCK, PAGES, ROOT, read

ALL = [*PAGES, "SECURITY.md", "CHANGELOG.md"]
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]*)\)")


def anchors(text):
    """The places in a page that a link can name, by its headings."""
    found = {}
    for heading in re.findall(r"^#+ +(.+)$", BLOCK.sub("", text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {name if i == 0 else f"{name}-{i}" for name, times in found.items() for i in range(times + 1)}


def broken(text, page):
    """Every link of a page's text that leads nowhere, and every image without a text."""
    for link in LINK.finditer(re.sub(r"`[^`\n]+`", "", BLOCK.sub("", text))):
        if link["image"] and not link["text"].strip():
            yield f"an image without a text: {link['target']}"
        if re.match(r"\w+:", link["target"]):
            continue
        path, _, place = link["target"].partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not (ROOT / target).exists():
            yield f"{link['target']} is not there"
        elif place and place not in anchors(text if target == page else read(target)):
            yield f"{link['target']}: no such heading"


@pytest.mark.parametrize("page", ALL)
def test_links_lead_somewhere_and_images_have_a_text(page):
    assert not list(broken(read(page), page))


def test_a_slip_is_found():
    page = "docs/glossary.md"
    assert not list(broken("# A: `b`\n[x](faq.md#data) [y](#a-b) [z](adr) `[n](o)`", page))
    for slip in ("[x](fag.md)", "[x](faq.md#date)", "[x](#nowhere)", "![](img/demo.png)", "[x](../tests/no)"):
        assert len(list(broken(slip, page))) == 1, slip
