"""The text of the page's own scripts as browsers get them: without comments and without spaces that mean nothing.

The files of the package stay as they are written. There is no build step: the server does this when it reads them. Each
statement of a module has a line of its own. The lines of a statement are joined: each part of one must end with a
semicolon or a bracket. What remains are the tokens: texts, templates and regular expressions are copied as they are,
but for the indentation of lines in templates, which means nothing in HTML. Tests compare what a browser finds in each
script before and after.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""(?P<space>(?:[ \n]|//[^\n]*|/\*.*?\*/)+)
    | (?P<word>[\w$\#]+)
    | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    | (?P<sign>=>|[-+*/%&|^!~<>=?:;,.(){}\[\]])""",
    re.DOTALL | re.VERBOSE,
)
#: From a backtick, or from the end of a value within a template, to the next value or the end of the template.
_TEMPLATE: Final = re.compile(r"[`}](?:\\.|(?!\$\{)[^`\\])*(?:`|\$\{)", re.DOTALL)
_EXPRESSION: Final = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/[a-z]*")
#: After these, a slash begins a regular expression: no value ends here that it could divide.
_NO_VALUE_BEFORE: Final = re.compile(r"(?:^|[-+*%&|^!~<>=?:;,({\[]|\$\{|\b(?:return|typeof|case|of|in|await|yield))\Z")
#: Tokens that a space must keep apart.
_APART: Final = re.compile(r"[\w$#]{2}|\+\+|--|//|/\*", re.ASCII)
_INDENTATION: Final = re.compile(r"\n +")


class UnknownToken(ValueError):
    """A script has a piece of text that is none of the tokens known here."""


class ScriptToken(NamedTuple):
    """A piece of a script: `kind` is space, word, text, sign, template or expression. Comments are space."""

    kind: str
    text: str


def served_script(text: str) -> str:
    """Return a script without comments, and with only those spaces that keep two tokens apart. Raises UnknownToken."""
    parts, space = [""], ""
    for kind, token in script_tokens(text):
        if kind == "space":
            space = token
            continue
        if space.endswith("\n"):
            parts.append("\n")  # A statement of the module begins: within it, lines are indented.
        elif space and _APART.match(parts[-1][-1:] + token[:1]):
            parts.append(" ")
        space = ""
        parts.append(_INDENTATION.sub("\n", token) if kind == "template" else token)
    return "".join([*parts, "\n"])


def script_tokens(text: str) -> Iterator[ScriptToken]:
    """Yield all pieces of a script; of a template, those between its values. Raises UnknownToken."""
    last, place = "", 0
    braces = list[int]()  # of each open template: how many braces are open in the value that is being read
    while place < len(text):
        if text[place] == "`" or (text[place] == "}" and braces and braces[-1] == 0):
            kind, found = "template", _TEMPLATE.match(text, place)
            if text[place] == "}":
                braces.pop()
            if found is not None and found[0].endswith("${"):
                braces.append(0)
        elif text[place] == "/" and text[place + 1] not in "/*" and _NO_VALUE_BEFORE.search(last):
            kind, found = "expression", _EXPRESSION.match(text, place)
        else:
            found = _TOKEN.match(text, place)
            kind = str(found.lastgroup) if found is not None else ""
        if found is None:
            line = text.count("\n", 0, place) + 1
            raise UnknownToken(f"line {line}: {text[place : place + 20]!a} is no token of a script")
        if braces and kind == "sign" and found[0] in "{}":
            braces[-1] += 1 if found[0] == "{" else -1
        if kind != "space":
            last = found[0]
        place = found.end()
        yield ScriptToken(kind, found[0])
