"""YAML front matter: the keys above a Markdown text, read as plain data and nothing more.

Plain data only: no tags of Python, no anchors, no aliases, no merge keys. So nothing is built by name, nothing
multiplies (the "billion laughs"), and nothing can contain itself. A key that stands twice is refused, not overwritten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any, NamedTuple

import yaml

from ramet.core.errors import InvalidValue

MAX_HEADER = 64 * 1024
MAX_NODES = 5_000
MAX_DEPTH = 24
_MERGE = "tag:yaml.org,2002:merge"
#: Agent files in the wild hold `description: Use this when: …` unquoted, which is no YAML and is read all the same.
_PROSE = re.compile(r"(?m)^(description|initialPrompt|initial_prompt):[ \t]+([^\s\"'|>\[\]{}&*!#%@`].*)$")


class FrontMatter(NamedTuple):
    """What stood above the text, and the text."""

    keys: dict[str, Any]
    body: str
    notes: tuple[str, ...] = ()  #: what had to be understood with good will


def parse(text: str, *, source: object) -> FrontMatter:
    """Split and read. Raises InvalidValue, naming `source` and the line, never quoting the file."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        raise InvalidValue(f"{source}: first line", "another text", "--- (front matter between two lines of ---)")
    end = next((at for at, line in enumerate(lines) if at and line.rstrip() == "---"), None)
    if end is None:
        raise InvalidValue(f"{source}: front matter", "without an end", "a closing line of ---")
    header, body = "\n".join(lines[1:end]) + "\n", "\n".join(lines[end + 1 :]).strip()
    if len(header) > MAX_HEADER:
        raise InvalidValue(f"{source}: front matter", f"{len(header)} characters", f"at most {MAX_HEADER}")
    notes: tuple[str, ...] = ()
    try:
        keys = _load(header)
    except _ERRORS as error:
        quoted, names = _quote_prose(header)
        try:
            if not names:
                raise error
            keys = _load(quoted)
        except _ERRORS:
            raise InvalidValue(f"{source}: front matter", _sentence(error), "YAML as plain data") from None
        notes = tuple(f"{name}: holds ': ' or ' #' and should be in quotes; taken as written" for name in names)
    if not isinstance(keys, dict):
        raise InvalidValue(f"{source}: front matter", type(keys).__name__, "lines of `key: value`")
    for key in keys:
        if not isinstance(key, str):
            raise InvalidValue(f"{source}: key", key, "text; YAML reads on, off, yes and no as true and false")
    return FrontMatter(keys, body, notes)


class _Refused(Exception):
    """Valid YAML that we do not take."""

    def __init__(self, reason: str, mark: yaml.Mark | None) -> None:
        self.reason, self.mark = reason, mark
        super().__init__(reason)


_ERRORS = (yaml.YAMLError, _Refused, ValueError, OverflowError, RecursionError)


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader without references and with bounds, which hold while it reads and not only afterwards."""

    nodes = 0
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # types-PyYAML leaves it out
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _Refused("anchors (&) and aliases (*) are not taken", mark)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _Refused(f"more than {MAX_NODES} values", mark)
        if self.depth >= MAX_DEPTH:
            raise _Refused(f"nested deeper than {MAX_DEPTH}", mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == _MERGE:
                raise _Refused("merge keys (<<) are not taken", key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _Refused("a key stands twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _load(header: str) -> Any:
    loader = _PlainLoader(header)
    try:
        found = loader.get_single_data()
        return {} if found is None else found
    finally:
        loader.dispose()


def _quote_prose(header: str) -> tuple[str, list[str]]:
    names: list[str] = []

    def quote(found: re.Match[str]) -> str:
        key, value = found.groups()
        if ": " not in value and " #" not in value and not value.rstrip().endswith(":"):
            return found.group()
        names.append(key)
        return f"{key}: {json.dumps(value.rstrip(), ensure_ascii=False)}"

    return _PROSE.sub(quote, header), names


def _sentence(error: BaseException) -> str:
    """Why it cannot be read and in which line of the file; not the line itself, which may be nobody's business."""
    if isinstance(error, _Refused):
        mark, reason = error.mark, error.reason
    elif isinstance(error, yaml.MarkedYAMLError):
        mark, reason = error.problem_mark, error.problem or "it is not YAML"
    else:
        mark, reason = None, "a character that YAML does not have" if isinstance(error, yaml.YAMLError) else str(error)
    where = f"line {mark.line + 2}: " if mark is not None else ""  # the header begins in the file's second line
    return where + reason[:80]
