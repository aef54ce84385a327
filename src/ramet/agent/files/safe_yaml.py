"""Parse YAML as plain data only: no construction by name, no expansion, no self-reference.

No tags, no anchors, no aliases (the "billion laughs"), no merge keys. A duplicate key is refused, not overwritten. The
bounds apply during parsing, not only afterwards.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import yaml

MAX_NODES = 5_000
MAX_DEPTH = 24
_MERGE = "tag:yaml.org,2002:merge"


class Plain(NamedTuple):
    """The data of a text; None if the text is empty."""

    data: Any
    lines: Mapping[str, int]  #: line of each key, by dotted path, if requested; lines count from 1


class NotPlain(Exception):
    """The error for a text that is not YAML, or not accepted. `reason` does not quote it; `line` counts from 1."""

    def __init__(self, reason: str, line: int | None) -> None:
        self.reason, self.line = reason[:80], line
        super().__init__(self.reason)


def read(text: str, *, lines: bool = False) -> Plain:
    """Return the data of a text. Raises NotPlain, and no other error.

    Use `lines` only for trusted texts: below a long key, the paths of all keys take far more memory than the text.
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
            raise NotPlain("anchors (&) and aliases (*) are not accepted", line)
        if getattr(event, "tag", None) is not None:
            raise NotPlain("tags (!) are not accepted", line)
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
        known_keys = set()
        for key, _ in node.value:
            if key.tag == _MERGE:
                raise NotPlain("merge keys (<<) are not accepted", key.start_mark.line + 1)
            if isinstance(key, yaml.ScalarNode):
                if key.value in known_keys:
                    raise NotPlain("a key occurs twice", key.start_mark.line + 1)
                known_keys.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _lines(node: yaml.Node, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                key_path = f"{path}.{key.value}" if path else key.value
                yield key_path, key.start_mark.line + 1
                yield from _lines(value, key_path)
