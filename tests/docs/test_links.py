"""Links of a page lead to an existing file, and to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def links(text: str) -> list[str]:
    """Return the links of a page inside the project. Links in blocks and code spans are left out."""
    prose = re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^ *```.*?^ *```$", "", text))
    return [each for each in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"[a-z]+:", each)]


def anchors(text: str) -> set[str]:
    """Return the headings of a page in the form that links use."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^ *```.*?^ *```$", "", text))
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_every_link_leads_to_a_file_and_heading(page: Path) -> None:
    """A reader who follows a link arrives at an existing file, and at an existing heading."""
    broken = []
    for link in links(page.read_text()):
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    assert not broken


def test_every_page_is_linked_from_the_index() -> None:
    """A reader finds each page below docs/ in docs/README.md. A new page gets its line there."""
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in links(index.read_text())}
    pages = {page.resolve() for page in ROOT.glob("docs/**/*.md")} - {index}

    assert sorted(str(page.relative_to(ROOT)) for page in pages - linked) == []


def test_links_and_headings_are_recognised() -> None:
    """Links in code are ignored, and a heading has the anchor that forges give it."""
    assert links("[a](b.md#c) `[d](e)` [f](https://g)\n```\n[h](i)\n```\n") == ["b.md#c"]
    assert anchors("# What is here, and what is not\n## `Session`\n") == {"what-is-here-and-what-is-not", "session"}
