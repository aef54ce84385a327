"""What an agent may use, as its primer lists it: as much of each as its visibility says."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final

from ramet.core.policy.capabilities import Capability

#: Characters of a whole listing, of one docstring, and of one signature.
MAX_LISTING: Final = 16_000
MAX_DOC: Final = 1_000
MAX_SIGNATURE: Final = 300
MAX_PARTS: Final = 200  #: names of one module or class


def catalogue(resolved: Iterable[tuple[Capability, Any]], *, max_chars: int = MAX_LISTING) -> str:
    """Capabilities with what they stand for, as text: high with signature and docstring, medium with signature, low by
    name. What no longer fits is listed by its name, and then only counted.
    """
    lines: list[str] = []
    room, left = max_chars, 0
    for capability, thing in resolved:
        text = None if left else _within(room, _lines(capability, thing)) or f"- {capability.key}"
        if text is None or len(text) > room:
            left += 1
            continue
        lines.append(text)
        room -= len(text) + 1
    return "\n".join([*lines, f"- and {left} more"] if left else lines)


def _within(room: int, lines: Iterable[str]) -> str | None:
    """The lines as text, if there is room for them."""
    text = ""
    for line in lines:
        text += f"\n{line}" if text else line
        if len(text) > room:
            return None
    return text


def _lines(capability: Capability, thing: Any) -> Iterator[str]:
    if capability.visibility == "low":
        yield f"- {capability.key}"
        return
    high = capability.visibility == "high"
    if capability.type == "tool":
        yield _tool(capability, thing, high)
        return
    name = capability.name.rpartition(":")[2]
    signature = "" if isinstance(thing, ModuleType) else _signature(thing)
    yield f"- {capability.type} {name}{signature}" + (_doc(thing, "  ") if high else "")
    if isinstance(thing, ModuleType) or capability.include is not None or capability.exclude:
        yield from _parts(capability, thing, high)


def _parts(capability: Capability, thing: Any, high: bool) -> Iterator[str]:
    """What is meant of a module, or of a class of which not all is."""
    names = [each for each in sorted(set(dir(thing))) if capability.has(each)]
    for name in names[:MAX_PARTS]:
        try:
            part = getattr(thing, name)
        except Exception:  # a module that makes its names when they are asked for, and fails
            continue
        if isinstance(part, ModuleType) and not (capability.include and name in capability.include):
            continue
        shown = _signature(part) if callable(part) else ""
        yield f"  - {name}{shown}" + (_doc(part, "    ") if high and callable(part) else "")
    if len(names) > MAX_PARTS:
        yield f"  - and {len(names) - MAX_PARTS} more"


def _tool(capability: Capability, tool: Any, high: bool) -> str:
    try:
        arguments = ", ".join(tool.args)
    except Exception:  # a tool whose schema cannot be made
        arguments = "…"
    said = f"- tool {capability.name}({arguments})"
    description = getattr(tool, "description", "") or ""
    return said + (_indented(description, "  ") if high else "")


def _signature(thing: Any) -> str:
    try:
        text = str(inspect.signature(thing))
    except Exception:  # much of what is built in has none, and a class of the user's may fail in any way
        return "(…)" if callable(thing) else ""
    return text if len(text) <= MAX_SIGNATURE else "(…)"


def _doc(thing: Any, indent: str) -> str:
    try:
        text = inspect.getdoc(thing) or ""
    except Exception:
        text = ""
    return _indented(text if isinstance(text, str) else "", indent)


def _indented(text: str, indent: str) -> str:
    text = text.strip()
    if len(text) > MAX_DOC:
        text = text[:MAX_DOC] + "…"
    return "".join(f"\n{indent}{line}".rstrip(" ") for line in text.splitlines())
