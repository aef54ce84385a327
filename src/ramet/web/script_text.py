"""The text of the page's own scripts as browsers get them: without comments and without spaces that mean nothing.

The files of the package stay as they are written. There is no build step: the server does this when it reads them. Each
line keeps its number, and thereby its line break, which can end a statement in JavaScript. What remains are the tokens:
texts, templates and regular expressions are copied as they are.
"""

from __future__ import annotations

import re
from typing import Final

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


class UnknownToken(ValueError):
    """A script has a piece of text that is none of the tokens known here."""


def served_script(text: str) -> str:
    """Return a script without comments, and with only those spaces that keep two tokens apart. Raises UnknownToken."""
    tokens, last, place = list[str](), "", 0
    braces = list[int]()  # of each open template: how many braces are open in the value that is being read
    while place < len(text):
        if text[place] == "`" or (text[place] == "}" and braces and braces[-1] == 0):
            found = _TEMPLATE.match(text, place)
            if text[place] == "}":
                braces.pop()
            if found is not None and found[0].endswith("${"):
                braces.append(0)
        elif text[place] == "/" and text[place + 1] not in "/*" and _NO_VALUE_BEFORE.search(last):
            found = _EXPRESSION.match(text, place)
        else:
            found = _TOKEN.match(text, place)
        if found is None:
            line = text.count("\n", 0, place) + 1
            raise UnknownToken(f"line {line}: {text[place : place + 20]!a} is no token of a script")
        place, token = found.end(), found[0]
        if found.lastgroup == "space":
            tokens.append("\n" * token.count("\n") or " ")
            continue
        if braces and token in ("{", "}"):
            braces[-1] += 1 if token == "{" else -1
        if tokens and tokens[-1] == " " and not _APART.match(last[-1:] + token[:1]):
            tokens.pop()
        tokens.append(token)
        last = token
    return "".join(tokens)
