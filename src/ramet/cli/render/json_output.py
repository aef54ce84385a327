"""Print JSON on a terminal: what foreign text in it could do there is written as escapes of JSON."""

from __future__ import annotations

import re
import sys

#: What a terminal would obey, hide, or show in another order, and what some programs take for the end of a line. The
#: characters below U+0020 are escapes in any JSON.
_UNSAFE = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def print_json(json: str | bytes) -> None:
    """Print a JSON value on a line of stdout at once, in UTF-8 for any locale."""
    sys.stdout.flush()
    sys.stdout.buffer.write(escape_json(json) + b"\n")
    sys.stdout.buffer.flush()


def escape_json(json: str | bytes) -> bytes:
    """Return the same JSON value for a terminal: characters that control, hide or reorder text are escapes."""
    text = json if isinstance(json, str) else json.decode()
    return _UNSAFE.sub(lambda match: _escape(match[0]), text).encode()


def _escape(character: str) -> str:
    """Return a character as JSON: two escapes, for two halves, above U+FFFF."""
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
