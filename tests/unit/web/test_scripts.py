"""Promises about the text of the page's own scripts."""

from __future__ import annotations

import posixpath
import re
import zlib

from ramet.web.static_files import FOLDER, static_files

STATIC_IMPORT = re.compile(r"""^(?:import|export)\b(?:[^;]*?from)? "([^"]+)";""", re.MULTILINE)
PRELOADED = re.compile(r"""rel="modulepreload" href="([^"]+)\"""")
MAX_FIRST = 80_000  #: bytes of the scripts that the page loads before its first drawing
MAX_ALL = 134_000  #: bytes of all scripts
MAX_COMPRESSED = 60_000  #: bytes of all scripts, compressed one by one as in a wheel
MAX_LINES = 300
#: Ways by which a text becomes HTML, a script, or the address of one.
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|DOMParser|document\.write|srcdoc|\beval\b"
    r"|new Function|javascript:|dangerously|createObjectURL|\.src\s*=|\bEventSource\b|document\.cookie|localStorage"
)


def scripts() -> dict[str, str]:
    return {name: file.content.decode() for name, file in static_files().items() if name.endswith(".mjs")}


def test_words_of_agents_can_only_become_text() -> None:
    """No script of ours has a way from a text to HTML or code, uses a cookie, or keeps the token beyond the tab."""
    own = {name: text for name, text in scripts().items() if not name.startswith("vendor/")}

    assert {name: found[0] for name, text in own.items() if (found := FORBIDDEN.search(text))} == {}
    assert {name: text.count("\n") for name, text in own.items() if text.count("\n") > MAX_LINES} == {}


def test_scripts_stay_small() -> None:
    """Scripts of the first drawing are below 80 kB as they are; all scripts are below 134 kB, and 60 kB compressed."""
    all_scripts, first, waiting = scripts(), set[str](), ["app.mjs"]
    while waiting:
        name = waiting.pop()
        if name not in first:
            first.add(name)
            here = posixpath.dirname(name)
            waiting += [
                posixpath.normpath(posixpath.join(here, each)) for each in STATIC_IMPORT.findall(all_scripts[name])
            ]

    assert {"vendor/preact.mjs", "views/tree_table.mjs"} <= first
    assert "views/run_view.mjs" not in first
    # The browser asks for all of them at once, and not for one after the other as it finds their imports.
    assert set(PRELOADED.findall((FOLDER / "index.html").read_text())) == first - {"app.mjs"}
    assert sum(len((FOLDER / name).read_bytes()) for name in first) < MAX_FIRST
    assert sum(len(text.encode()) for text in all_scripts.values()) < MAX_ALL
    assert sum(len(zlib.compress(text.encode(), 9)) for text in all_scripts.values()) < MAX_COMPRESSED
