"""Promises about the text of the page's own scripts."""

from __future__ import annotations

import posixpath
import re
import zlib

import pytest

from ramet.web.script_text import UnknownToken, served_script
from ramet.web.static_files import FOLDER, prepare_files, static_files
from tests.support.waiting import eventually

STATIC_IMPORT = re.compile(r"""^(?:import|export)\b(?:[^;]*?from)? ?"([^"]+)";""", re.MULTILINE)
PRELOADED = re.compile(r"""rel="modulepreload" href="([^"]+)\"""")
MAX_FIRST = 65_000  #: bytes of the scripts that the page loads before its first drawing
MAX_ALL = 100_000  #: bytes of all scripts
MAX_COMPRESSED = 46_000  #: bytes of all scripts, compressed one by one as they are sent
MAX_LINES = 300
#: A script in which slashes, braces and comments are as hard to tell apart as they can be, and what is left of it.
HARD = r"""
/** A comment with "quotes", `${backticks}` and // slashes. */
const word = /[/"`]\/* no comment/g.test(x) ? 8 / y / +z : - -y + ++z; // Gone: "all of it" `
const text = "// no comment" + '/* nor this */', half = (a + b) / c / 2_000;
const nested = html`<a  title="x // y" class="z" href=${a} rel="b" >${list.map(({id}) => html`
  <b>${{id}.id}  </b>`)} // text class="z" > /* text */
  ${`<i class="z" />  ${1 / 2}`} <i />
  a
  b</a>`;
const early = [(a) => { for (;;); }, async (b) => { if (b) ; }, [, ,], (c, d) => { for (;;) f(c); }, {e: 1,},
];
return
  /* a comment
   of two lines */ x in {};
"""
SERVED = r"""
const word=/[/"`]\/* no comment/g.test(x)?8/y/+z:- -y+ ++z;
const text="// no comment"+'/* nor this */',half=(a+b)/c/2000;
const nested=html`<a  title="x // y" class=z href=${a} rel=b>${list.map(({id})=>html`<b>${{id}.id}  </>`)} \
// text class="z" > /* text */${`<i class="z" />  ${1/2}`} <i/>a
b</>`;
const early=[a=>{for(;;);},async b=>{if(b);},[,,],(c,d)=>{for(;;)f(c)},{e:1}];
return x in{};
""".replace("\\\n", "")
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


def test_scripts_are_served_without_comments_and_spaces_only() -> None:
    """Texts, templates and regular expressions stay, and libraries are served as they are.

    `tests/web/test_modules.py` compares what a browser finds in the scripts of the package before and after.
    """

    assert served_script(HARD) == SERVED
    with pytest.raises(UnknownToken, match=r"line 2: .* no token"):
        served_script('\n"open')
    with pytest.raises(UnknownToken, match="not closed before the next value"):
        served_script('html`<a title="${x}">`')
    for name, text in scripts().items():
        written = (FOLDER / name).read_text()
        assert (text == written) is name.startswith("vendor/"), name


def test_scripts_stay_small() -> None:
    """As a browser gets them, scripts of the first drawing are below 65 kB, all below 100 kB, and 46 kB compressed."""
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
    assert sum(len(all_scripts[name].encode()) for name in first) < MAX_FIRST
    assert sum(len(text.encode()) for text in all_scripts.values()) < MAX_ALL
    assert sum(len(zlib.compress(text.encode(), 9)) for text in all_scripts.values()) < MAX_COMPRESSED


async def test_files_are_ready_before_the_first_page() -> None:
    """Files are read and compressed in a thread, since the first page of a server would wait for that."""
    static_files.cache_clear()
    prepare_files()
    await eventually(lambda: all("gzip_content" in vars(each) for each in static_files().values()))
