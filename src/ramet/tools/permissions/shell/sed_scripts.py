"""Scripts of sed: the command `e` and the flag `e` of `s` run a text of the script or of the input."""

from __future__ import annotations

import re

MAX_DELIMITERS = 64
_BLANKS = re.compile(r"[ \t]+")
#: Where a command `e` may begin: after an address, a semicolon, a brace or a line end.
_COMMAND = re.compile(r"((?:\A|[^A-Za-z\\_-])[IM]* ?e)")
#: The command without a text: it runs the line that was read.
_BARE = re.compile(_COMMAND.pattern + r" ?(\n|\Z)")
_FLAGS = r"[gpiImM0-9]*e[egpiImM0-9]*\s*"
_RUNNING = re.compile(_FLAGS + "[;}#\nw]")
_RUNNING_AT_END = re.compile(_FLAGS + r"([;}#\nw]|\Z)")
_SUBSTITUTION = re.compile(r"s(?=([^\\\n]))")
#: A script in the same word as its option.
_OPTION = re.compile(r"-[a-zA-Z]*?e(.*)", re.DOTALL)


def separate_commands(word: str) -> str:
    """Return a word of sed with a blank before the text of each command `e`."""
    return _COMMAND.sub(r"\1 ", _BLANKS.sub(" ", word))


def runs_input(word: str) -> bool:
    """Return whether a word of sed may run text that sed reads or composes."""
    word = _BLANKS.sub(" ", word)
    option = _OPTION.match(word)
    scripts = (word, option[1]) if option is not None else (word,)
    return any(_BARE.search(each) or _has_flag(each) for each in scripts if each)


def _has_flag(script: str) -> bool:
    """Return whether a command `s` may have the flag `e`, with any character as its delimiter."""
    delimiters = {*_SUBSTITUTION.findall(script)}
    if len(delimiters) > MAX_DELIMITERS:
        return True
    for delimiter in delimiters:
        pieces = script.split(delimiter)
        inner = _RUNNING_AT_END if delimiter in ";}#w" else _RUNNING
        if any(inner.match(each) for each in pieces[3:-1]):
            return True
        if len(pieces) > 3 and _RUNNING_AT_END.match(pieces[-1]):
            return True
    return False
