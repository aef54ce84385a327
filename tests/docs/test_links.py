"""What a page points to is there: the file, and the heading in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def links(text: str) -> list[str]:
    """Where a page points to inside the project; blocks and code spans point nowhere."""
    prose = re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^ *```.*?^ *```$", "", text))
    return [each for each in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"[a-z]+:", each)]


def anchors(text: str) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^ *```.*?^ *```$", "", text))
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    """A reader who follows a link of a page arrives at a file, and at the heading that was meant."""
    broken = []
    for link in links(page.read_text()):
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    assert not broken


def test_a_broken_link_is_seen() -> None:
    """Links in code are not links; a heading is named as forges name it."""
    assert links("[a](b.md#c) `[d](e)` [f](https://g)\n```\n[h](i)\n```\n") == ["b.md#c"]
    assert anchors("# What is here, and what is not\n## `Session`\n") == {"what-is-here-and-what-is-not", "session"}
