"""The characters that make a text in TOML costly to read, counted before it is read."""

from __future__ import annotations

import re

#: A string or a comment of TOML, or the beginning of one that has no end. The alternatives for one start
#: are in the order in which a reader tries them, and none of them gives back what it has taken.
_TEXTS = re.compile(
    r'''
    """ (?: [^"\\]++ | \\(?:.|\Z) | "{1,2}+(?!") )*+ (?: "{3,5} | \Z )
    | \'\'\' (?: [^']++ | '{1,2}+(?!') )*+ (?: '{3,5} | \Z )
    | " (?: [^"\\\n]++ | \\[^\n] )*+ "?
    | ' [^'\n]*+ '?
    | \# [^\n]*+
    ''',
    re.DOTALL | re.VERBOSE,
)


def marks_of(text: str) -> int:
    """Count the characters that make TOML costly to read: dots, which join the parts of keys, and brackets, which nest.

    Python's reader needs time and memory in proportion to the square of the number of parts of a key. The count is
    never less than the number of parts of a key, or the depth of the data, beyond the first.
    """
    code = _TEXTS.sub("", text)
    return sum(map(code.count, ".[{"))
