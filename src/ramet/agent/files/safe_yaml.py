"""YAML as plain data and nothing more: nothing is built by name, nothing multiplies, nothing can contain itself.

No tags, no anchors, no aliases (the "billion laughs"), no merge keys. A key that stands twice is refused, not
overwritten. The bounds hold while it is read, not only afterwards.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import yaml

MAX_NODES = 5_000
MAX_DEPTH = 24
_MERGE = "tag:yaml.org,2002:merge"


class Plain(NamedTuple):
    """What a text says; None if it says nothing."""

    data: Any
    lines: Mapping[str, int]  #: where each key stands, by its dotted path, if that was asked; lines count from 1


class NotPlain(Exception):
    """A text that is no YAML, or YAML that is not taken. `reason` does not quote it; `line` counts from 1."""

    def __init__(self, reason: str, line: int | None) -> None:
        self.reason, self.line = reason[:80], line
        super().__init__(self.reason)


def read(text: str, *, lines: bool = False) -> Plain:
    """The data of a text. Raises NotPlain, and nothing else.

    `lines` is for a text of one's own: below a long key, the paths of all keys take far more memory than the text.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            data = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except NotPlain:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise NotPlain(error.problem or "it is not YAML", None if mark is None else mark.line + 1) from None
    except yaml.YAMLError:
        raise NotPlain("a character that YAML does not have", None) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise NotPlain(str(error), None) from None
    return Plain(data, dict(_lines(node, "")) if lines and node is not None else {})


class _Loader(yaml.SafeLoader):
    """SafeLoader without references, and with bounds."""

    nodes = 0
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # types-PyYAML leaves it out
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise NotPlain("anchors (&) and aliases (*) are not taken", line)
        if getattr(event, "tag", None) is not None:
            raise NotPlain("tags (!) are not taken", line)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise NotPlain(f"more than {MAX_NODES} values", line)
        if self.depth >= MAX_DEPTH:
            raise NotPlain(f"nested deeper than {MAX_DEPTH}", line)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == _MERGE:
                raise NotPlain("merge keys (<<) are not taken", key.start_mark.line + 1)
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise NotPlain("a key stands twice", key.start_mark.line + 1)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _lines(node: yaml.Node, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                here = f"{path}.{key.value}" if path else key.value
                yield here, key.start_mark.line + 1
                yield from _lines(value, here)
