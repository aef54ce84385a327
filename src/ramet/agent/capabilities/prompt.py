"""List an agent's capabilities for its primer, each in the detail of its visibility."""

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


def capability_listing(resolved: Iterable[tuple[Capability, Any]], *, max_chars: int = MAX_LISTING) -> str:
    """Return capabilities with their objects as text, in the detail of their visibility.

    High has signature and docstring, medium the signature, low only the name. A capability that does not fit is listed
    by name, and further ones are only counted.
    """
    lines: list[str] = []
    remaining_chars, omitted = max_chars, 0
    for capability, thing in resolved:
        text = None if omitted else _joined_within(remaining_chars, _lines(capability, thing)) or f"- {capability.key}"
        if text is None or len(text) > remaining_chars:
            omitted += 1
            continue
        lines.append(text)
        remaining_chars -= len(text) + 1
    return "\n".join([*lines, f"- and {omitted} more"] if omitted else lines)


def _joined_within(max_chars: int, lines: Iterable[str]) -> str | None:
    """Return the lines as text; None if there is no room for them."""
    text = ""
    for line in lines:
        text += f"\n{line}" if text else line
        if len(text) > max_chars:
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
    """Yield the included names of a module, or of a partially included class."""
    names = [each for each in sorted(set(dir(thing))) if capability.has(each)]
    for name in names[:MAX_PARTS]:
        try:
            part = getattr(thing, name)
        except Exception:  # a module that creates its names on access, and fails
            continue
        if isinstance(part, ModuleType) and not (capability.include and name in capability.include):
            continue
        signature = _signature(part) if callable(part) else ""
        yield f"  - {name}{signature}" + (_doc(part, "    ") if high and callable(part) else "")
    if len(names) > MAX_PARTS:
        yield f"  - and {len(names) - MAX_PARTS} more"


def _tool(capability: Capability, tool: Any, high: bool) -> str:
    try:
        arguments = ", ".join(tool.args)
    except Exception:  # a tool whose schema cannot be created
        arguments = "…"
    line = f"- tool {capability.name}({arguments})"
    description = getattr(tool, "description", "") or ""
    return line + (_indented(description, "  ") if high else "")


def _signature(thing: Any) -> str:
    try:
        text = str(inspect.signature(thing))
    except Exception:  # many built-ins have none, and a user's class may fail in any way
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
