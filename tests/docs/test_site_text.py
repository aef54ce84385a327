"""The site's texts for programs hold every page, and each link in them leads to a file of the site."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from docs.site import site_text
from tests.docs.test_links import links

DOCS = Path(__file__).parents[2] / "docs"
INDEX = (DOCS / "README.md").read_text(encoding="utf-8")


def test_every_page_is_in_the_texts_and_beside_its_html(tmp_path: Path) -> None:
    """A program that reads `llms.txt` or `llms-full.txt` finds every page, unchanged, by links inside the site."""
    site_text.write_text_files(DOCS, tmp_path)
    short, full = ((tmp_path / name).read_text(encoding="utf-8") for name in ("llms.txt", "llms-full.txt"))
    pages = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page != DOCS / "README.md")

    assert re.findall(r"(?m)^## (.+)$", short) == ["Start", "Guides", "Reference", "Design"]
    assert sorted(set(links(short))) == sorted([*pages, "llms-full.txt"])
    assert sorted(re.findall(r"(?m)^<!-- (\S+\.md) -->$", full)) == pages
    assert [link for link in links(full) if not (tmp_path / link.partition("#")[0]).is_file()] == []
    assert [page for page in pages if (tmp_path / page).read_bytes() != (DOCS / page).read_bytes()] == []


def test_the_navigation_has_the_parts_of_the_index() -> None:
    """The navigation lists each page once, by the title that the index gives it."""
    text = site_text.navigation(INDEX)
    entries = site_text.read_index(INDEX)

    assert text.startswith(INDEX)
    assert ":caption: 'Guides: bounds and safety'" in text
    assert [text.count(f"\n{entry.title} <{entry.path[:-3]}>\n") for entry in entries] == [1] * len(entries)
    with pytest.raises(ValueError, match="'- Install' is not `- "):
        site_text.read_index("## Start\n\n- Install\n")


def test_links_that_leave_the_docs_become_names() -> None:
    """A page of the site names a file of the repository, since the site does not hold it. Links in code stay."""
    inside = "[c](../c.md#d) [e](#e) `[f](../../g)`\n```\n[h](../../i)\n```\n"
    page = f"[map](../../NOTES.md#a) [`a/b.py`](../../a/b.py) {inside}"

    assert (
        site_text.mark_outside_links(page, "guides/tools.md") == f"map (`NOTES.md` in the repository) `a/b.py` {inside}"
    )


def test_docstrings_keep_their_characters() -> None:
    """A docstring's code spans are code in reStructuredText, and its other characters are no marks."""
    assert site_text.as_rst("Take `a_b`s, *all* of x_\n") == "Take ``a_b``\\ s, \\*all\\* of x\\_\n"


def test_the_settings_of_sphinx_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The settings run without Sphinx: `make docs` is no part of the tests. Each connected step does its work."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "site_text", site_text)
    settings = runpy.run_path(str(DOCS / "site" / "conf.py"))
    steps: dict[str, Callable[..., None]] = {}
    app = SimpleNamespace(connect=steps.__setitem__, builder=SimpleNamespace(name="html"), srcdir=DOCS, outdir=tmp_path)
    settings["setup"](app)

    index, page, docstring = [INDEX], ["Text."], ["Return `x`."]
    steps["source-read"](app, "README", index)
    steps["source-read"](app, "reference/docstrings", page)
    steps["autodoc-process-docstring"](app, "class", "name", None, None, docstring)
    shown = re.findall(r"(?m)^\.\. auto(?:class|function):: (\S+)$", page[0])
    assert ":caption: 'Guides: bounds and safety'" in index[0]
    assert {"ramet.Session", "ramet.setup_logging", "ramet.spawn.handle.Handle"} <= set(shown)
    assert len(shown) == len(set(shown))
    assert docstring == ["Return ``x``\\ ."]

    (tmp_path / "README.html").write_text("The index.")
    steps["build-finished"](app, None)
    assert ((tmp_path / "index.html").read_text(), (tmp_path / "llms.txt").exists()) == ("The index.", True)
