"""Write the texts of the site: the navigation, `llms.txt`, `llms-full.txt`, and the Markdown beside every page.

All come from the pages below `docs/`. `docs/README.md` lists every page, and so decides order and titles.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

INDEX = "README.md"
FOLDERS = ("casts", "pictures", "plots")  # what the Markdown pages show
SUMMARY = (
    "ramet is a Python runtime for agents that spawn agents. It keeps the whole tree isolated, bounded by one budget, "
    "stoppable, durable and visible."
)


class Entry(NamedTuple):
    """A page as the index lists it. `path` is relative to `docs/`; `group` is empty outside the guides."""

    part: str
    group: str
    title: str
    path: str
    note: str


def change_links(text: str, change: Callable[[str, str], str]) -> str:
    """Return `text` with each link `[label](target)` inside the project replaced by `change(label, target)`.

    A label may hold code spans. Links in code, and those with a scheme, stay.
    """
    spans: list[str] = []

    def hide(found: re.Match[str]) -> str:
        spans.append(found[0])
        return f"\0{len(spans) - 1}\0"

    def show(text: str) -> str:
        return re.sub(r"\0(\d+)\0", lambda found: spans[int(found[1])], text)

    def replace(found: re.Match[str]) -> str:
        return found[0] if re.match(r"[a-z]+:", found[2]) else change(show(found[1]), found[2])

    hidden = re.sub(r"(?ms)^ *```.*?^ *```[ \t]*$|`[^`\n]*`", hide, text)
    return show(re.sub(r"\[([^\[\]]*)\]\(([^)\s]+)\)", replace, hidden))


def read_index(text: str) -> list[Entry]:
    """Return the pages that the index lists, in its order.

    Raises ValueError for a list item below a heading that is not a link with a note.
    """
    entries, part, group = [], "", ""
    for line in text.splitlines():
        if line.startswith("## "):
            part, group = line[3:].strip(), ""
        elif part and re.fullmatch(r"[A-Z][^.]*:", line):
            group = line[:-1]
        elif part and line.startswith("- "):
            if not (found := re.fullmatch(r"- \[([^\]]+)\]\(([^)#]+\.md)\): (.+)", line)):
                raise ValueError(f"docs/{INDEX}: {line!r} is not `- [title](page.md): note`")
            entries.append(Entry(part, group, found[1], found[2], found[3]))
    return entries


def navigation(text: str) -> str:
    """Return the index with a hidden `toctree` for each part, and for each group of the guides."""
    trees: dict[str, list[str]] = {}
    for entry in read_index(text):
        caption = f"{entry.part}: {entry.group[0].lower()}{entry.group[1:]}" if entry.group else entry.part
        trees.setdefault(caption, []).append(f"{entry.title} <{entry.path.removesuffix('.md')}>")
    blocks = [
        "\n".join(["```{toctree}", ":hidden:", f":caption: '{caption}'", "", *pages, "```"])
        for caption, pages in trees.items()
    ]
    return text + "\n" + "\n\n".join(blocks) + "\n"


def mark_outside_links(text: str, page: str) -> str:
    """Return a page with each link that leaves `docs/` replaced by its label and the path in the repository."""

    def change(label: str, target: str) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        inside = target.startswith("#") or path.startswith("docs/")
        name = path.partition("#")[0]
        return f"[{label}]({target})" if inside else label if name in label else f"{label} (`{name}` in the repository)"

    return change_links(text, change)


def as_rst(docstring: str) -> str:
    """Return a docstring, whose only marks are `code spans`, as reStructuredText."""
    pieces = re.split(r"`([^`\n]+)`", docstring)
    return "".join(
        f"``{piece}``\\ " if number % 2 else re.sub(r"([*_|`\\])", r"\\\1", piece)
        for number, piece in enumerate(pieces)
    )


def llms(entries: list[Entry]) -> str:
    """Return `llms.txt`: what ramet is, and each page as a link to its Markdown, in the parts of the index."""
    lines = ["# ramet", "", f"> {SUMMARY}", "", "All pages in one file: [llms-full.txt](llms-full.txt)"]
    part = ""
    for entry in entries:
        if entry.part != part:
            part = entry.part
            lines += ["", f"## {part}", ""]
        lines.append(f"- [{entry.title}]({entry.path}): {entry.note}")
    return "\n".join(lines) + "\n"


def llms_full(entries: list[Entry], docs: Path) -> str:
    """Return `llms-full.txt`: all pages in the order of the index. Links are relative to the root of the site."""
    pages = []
    for entry in entries:
        folder = posixpath.dirname(entry.path)

        def from_root(label: str, target: str, folder: str = folder, path: str = entry.path) -> str:
            if target.startswith("#"):
                return f"[{label}]({path}{target})"
            return f"[{label}]({posixpath.normpath(posixpath.join(folder, target))})"

        text = mark_outside_links((docs / entry.path).read_text(encoding="utf-8"), entry.path)
        pages.append(f"<!-- {entry.path} -->\n\n{change_links(text, from_root).strip()}\n")
    return f"# ramet\n\n> {SUMMARY}\n\n" + "\n".join(pages)


def write_text_files(docs: Path, site: Path) -> None:
    """Write `llms.txt`, `llms-full.txt`, each page as Markdown and its pictures into the folder of the site."""
    entries = read_index((docs / INDEX).read_text(encoding="utf-8"))
    for path in [INDEX, *(entry.path for entry in entries)]:
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(docs / path, site / path)
    for folder in FOLDERS:
        shutil.copytree(docs / folder, site / folder, dirs_exist_ok=True)
    (site / "llms.txt").write_text(llms(entries), encoding="utf-8")
    (site / "llms-full.txt").write_text(llms_full(entries, docs), encoding="utf-8")


if __name__ == "__main__":
    write_text_files(Path(sys.argv[1]), Path(sys.argv[2]))
