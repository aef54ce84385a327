"""Sanitize foreign text for printing: text of models and files cannot control a terminal, hide, or deceive."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

#: Escape sequences are removed as a whole, otherwise their ends would be read as text. A string sequence without an end
#: loses only its introducer, so that it cannot swallow the following text. None goes beyond the next introducer, so
#: that hostile text is read twice at most.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,256}[ -/]{0,16}[@-~]"  # CSI: colours, cursor, screen
    # OSC, DCS, …: titles, links
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]{0,4096}+(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]{0,4}[0-~]"  # the rest
)
_INVISIBLE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, except tab and newline
    # invisible, or reversing the text direction
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f"  # tags: text that only machines see
    "]"
)
_LINE_ENDS = re.compile("\r\n?|[\u2028\u2029\x85]")
_SURROGATES = re.compile("[\ud800-\udfff]")


def sanitize(text: str) -> str:
    """Return the text for a reader: lines kept, tabs as spaces, all control sequences removed."""
    text = _LINE_ENDS.sub("\n", _SEQUENCES.sub("", text))
    return _SURROGATES.sub("\ufffd", _INVISIBLE.sub("", text)).replace("\t", "    ")


def one_line(text: str, limit: int = 200) -> str:
    """Return the text on one line, at most `limit` characters, with an ellipsis if truncated."""
    short = " ".join(sanitize(text[: 8 * limit]).split())
    return short if len(short) <= limit else short[: limit - 1].rstrip() + "…"


def format_arguments(args: Mapping[str, Any], limit: int = 400) -> str:
    """Return the arguments of a call as JSON on one line; "" for none."""
    return one_line(json.dumps(args, ensure_ascii=False, separators=(",", ":"), default=str), limit) if args else ""


def question_text(tool: str, args: Mapping[str, Any], question: str) -> str:
    """Return a run's question to a person: the tool, its arguments, and the question, on one line."""
    call = f"{one_line(tool, 40)} {format_arguments(args)}".rstrip()
    return f"{call}: {one_line(question)}"
