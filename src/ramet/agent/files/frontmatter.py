"""Parse YAML front matter: the keys above a Markdown text, read only as plain data.

Anything that `safe_yaml` does not accept is refused, and any value that is not a mapping of names.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from ramet.agent.files import safe_yaml
from ramet.agent.files.safe_yaml import NotPlain
from ramet.core.errors import InvalidValue

MAX_HEADER = 64 * 1024
#: Real agent files contain `description: Use this when: …` unquoted, which is invalid YAML and is accepted here.
_PROSE = re.compile(r"(?m)^(description|initialPrompt|initial_prompt):[ \t]+([^\s\"'|>\[\]{}&*!#%@`].*)$")


class FrontMatter(NamedTuple):
    """The keys above the text, and the text."""

    keys: dict[str, Any]
    body: str
    notes: tuple[str, ...] = ()  #: notes on tolerated errors


def parse(text: str, *, source: object) -> FrontMatter:
    """Split and parse a text. Raises InvalidValue, with `source` and the line, without quoting the file."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        raise InvalidValue(f"{source}: first line", "another text", "--- (front matter between two lines of ---)")
    end = next((index for index, line in enumerate(lines) if index and line.rstrip() == "---"), None)
    if end is None:
        raise InvalidValue(f"{source}: front matter", "without an end", "a closing line of ---")
    header, body = "\n".join(lines[1:end]) + "\n", "\n".join(lines[end + 1 :]).strip()
    if len(header) > MAX_HEADER:
        raise InvalidValue(f"{source}: front matter", f"{len(header)} characters", f"at most {MAX_HEADER}")
    notes: tuple[str, ...] = ()
    try:
        keys = safe_yaml.read(header).data
    except NotPlain as error:
        quoted, names = _quote_prose(header)
        try:
            if not names:
                raise error
            keys = safe_yaml.read(quoted).data
        except NotPlain:
            raise InvalidValue(f"{source}: front matter", _sentence(error), "YAML as plain data") from None
        notes = tuple(f"{name}: contains ': ' or ' #' and should be in quotes; used as written" for name in names)
    keys = {} if keys is None else keys
    if not isinstance(keys, dict):
        raise InvalidValue(f"{source}: front matter", type(keys).__name__, "lines of `key: value`")
    for key in keys:
        if not isinstance(key, str):
            raise InvalidValue(f"{source}: key", key, "text; YAML reads on, off, yes and no as true and false")
    return FrontMatter(keys, body, notes)


def _quote_prose(header: str) -> tuple[str, list[str]]:
    names: list[str] = []

    def quote(match: re.Match[str]) -> str:
        key, value = match.groups()
        if ": " not in value and " #" not in value and not value.rstrip().endswith(":"):
            return match.group()
        names.append(key)
        return f"{key}: {json.dumps(value.rstrip(), ensure_ascii=False)}"

    return _PROSE.sub(quote, header), names


def _sentence(error: NotPlain) -> str:
    """Return the reason and the line in the file; not the line itself, which may be confidential."""
    # The header begins in the file's second line.
    return error.reason if error.line is None else f"line {error.line + 1}: {error.reason}"
