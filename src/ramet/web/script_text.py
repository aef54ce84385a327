"""The text of the page's own scripts as browsers get them: without comments, spaces and signs that mean nothing.

The files of the package stay as they are written. There is no build step: the server does this when it reads them. Each
statement of a module has a line of its own. The lines of a statement are joined: each part of one must end with a
semicolon or a bracket. What remains are the tokens, and all names: texts, plain templates and regular expressions are
copied as they are. Templates of HTML lose what htm does not look at. Tests compare what a browser finds in each script
before and after.
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
_NUMBER: Final = re.compile(r"\d[\d_]*")
#: The body of a statement that begins so can be a lone semicolon, which must stay.
_HEADERS: Final = frozenset({"if", "for", "while", "with", "await"})
#: What is left of a tag at the place where one begins or goes on: its end, or the end of the piece.
_TAG: Final = re.compile(r'<?(?:"[^"]*"|[^">])*(?:>|\Z)')
#: Space that htm drops from a text between tags and values.
_EDGES: Final = re.compile(r"\A\s*\n\s*|\s*\n\s*\Z")
#: Quotes around a word; space at the end of a tag; the name of the element that a tag closes, which htm does not read.
_UNREAD: Final = (
    (re.compile(r'(?<==)"([\w-]+)"(?=[\s>])'), r"\1"),
    (re.compile(r"\s+(?=/?>\Z)"), ""),
    (re.compile(r"\A</[\w/]*>"), "</>"),
)


class UnknownToken(ValueError):
    """A script has a piece of text that is none of the tokens known here."""


class ScriptToken(NamedTuple):
    """A piece of a script: `kind` is space, word, text, sign, template, html or expression. Comments are space."""

    kind: str
    text: str


def served_script(text: str) -> str:
    """Return a script without comments, and spaces and signs that mean nothing. Raises UnknownToken."""
    tokens, spaces, space = list[ScriptToken](), list[str](), ""
    for each in script_tokens(text):
        if each.kind == "space":
            space = each.text
        else:
            tokens.append(each)
            spaces.append(space)
            space = ""
    parts, inside = [""], [False]  # inside: of each open template of HTML, whether its next piece begins within a tag
    without = _idle_signs(tokens)
    for at, (kind, token) in enumerate(tokens):
        if at in without:
            continue
        if spaces[at].endswith("\n") and token not in ("}", "]", ")"):
            parts.append("\n")  # A statement of the module begins: within it, lines are indented.
        elif _APART.match(parts[-1][-1:] + token[:1]) and (spaces[at] or at - 1 in without):
            parts.append(" ")
        if kind == "html":
            parts.append(_markup(token, inside))
        else:
            parts.append(token.replace("_", "") if kind == "word" and _NUMBER.fullmatch(token) else token)
    return "".join([*parts, "\n"])


def _idle_signs(tokens: list[ScriptToken]) -> set[int]:
    """Return the places of signs without which the script is the same.

    These are commas and semicolons before the end of a list or block, and brackets around one parameter.
    """
    found, opened, last_header = set[int](), list[int](), -1
    words = ["", "", *(each.text if each.kind in ("word", "sign") else "" for each in tokens), "", "", ""]
    for at in range(len(tokens)):
        before, this, after = words[at + 1 : at + 4]
        if this == "(":
            opened.append(at)
            if tokens[at + 1].kind == "word" and words[at + 4 : at + 6] == [")", "=>"]:
                found |= {at, at + 2}
        elif this == ")" and words[opened.pop() + 1] in _HEADERS:
            last_header = at
        elif this == "," and after in ("}", "]", ")") and before not in (",", "["):
            found.add(at)
        elif this == ";" and after == "}" and last_header != at - 1 and before not in ("else", "do", ":"):
            found.add(at)
    return found


def _markup(piece: str, inside: list[bool]) -> str:
    """Return a piece of a template of HTML without what htm does not look at. Raises UnknownToken."""
    begin, end = piece[0], "`" if piece.endswith("`") else "${"
    if begin == "`":
        inside.append(False)
    rest, parts = piece[1 : -len(end)], [begin]
    while rest:
        if inside[-1] or rest[0] == "<":
            found = _TAG.match(rest)
            if found is None:
                raise UnknownToken(f"{rest[:20]!a} has a quote that is not closed before the next value")
            tag, inside[-1] = found[0], not found[0].endswith(">")
            for what, instead in _UNREAD:
                tag = what.sub(instead, tag)
            parts.append(_INDENTATION.sub("\n", tag))
            rest = rest[found.end() :]
        else:
            words = rest.partition("<")[0]
            parts.append(_INDENTATION.sub("\n", _EDGES.sub("", words)))
            rest = rest[len(words) :]
    if end == "`":
        inside.pop()
    return "".join([*parts, end])


def script_tokens(text: str) -> Iterator[ScriptToken]:
    """Yield all pieces of a script; of a template, those between its values. Raises UnknownToken."""
    last, place = "", 0
    braces = list[int]()  # of each open template: how many braces are open in the value that is being read
    kinds = list[str]()  # of each open template
    while place < len(text):
        if text[place] == "`" or (text[place] == "}" and braces and braces[-1] == 0):
            found = _TEMPLATE.match(text, place)
            if text[place] == "`":
                kind = "html" if last == "html" else "template"
            else:
                kind = kinds.pop()
                braces.pop()
            if found is not None and found[0].endswith("${"):
                kinds.append(kind)
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
