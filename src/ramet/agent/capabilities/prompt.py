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


def capability_listing(pairs: Iterable[tuple[Capability, Any]], *, max_chars: int = MAX_LISTING) -> str:
    """Return capabilities with their objects as text, in the detail of their visibility.

    High has signature and docstring, medium the signature, low only the name. A capability that does not fit is listed
    by name, and further ones are only counted.
    """
    lines: list[str] = []
    remaining_chars, omitted_count = max_chars, 0
    for capability, obj in pairs:
        text = (
            None if omitted_count else _join_within(remaining_chars, _lines(capability, obj)) or f"- {capability.key}"
        )
        if text is None or len(text) > remaining_chars:
            omitted_count += 1
            continue
        lines.append(text)
        remaining_chars -= len(text) + 1
    return "\n".join([*lines, f"- and {omitted_count} more"] if omitted_count else lines)


def _join_within(max_chars: int, lines: Iterable[str]) -> str | None:
    """Return the lines as text; None if there is no room for them."""
    text = ""
    for line in lines:
        text += f"\n{line}" if text else line
        if len(text) > max_chars:
            return None
    return text


def _lines(capability: Capability, obj: Any) -> Iterator[str]:
    if capability.visibility == "low":
        yield f"- {capability.key}"
        return
    high = capability.visibility == "high"
    if capability.type == "tool":
        yield _tool(capability, obj, high)
        return
    name = capability.name.rpartition(":")[2]
    signature = "" if isinstance(obj, ModuleType) else _signature(obj)
    yield f"- {capability.type} {name}{signature}" + (_doc(obj, "  ") if high else "")
    if isinstance(obj, ModuleType) or capability.include is not None or capability.exclude:
        yield from _parts(capability, obj, high)


def _parts(capability: Capability, obj: Any, high: bool) -> Iterator[str]:
    """Yield the included names of a module, or of a partially included class."""
    names = [each for each in sorted(set(dir(obj))) if capability.has(each)]
    for name in names[:MAX_PARTS]:
        try:
            part = getattr(obj, name)
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
    return line + (_indent(description, "  ") if high else "")


def _signature(obj: Any) -> str:
    try:
        text = str(inspect.signature(obj))
    except Exception:  # many built-ins have none, and a user's class may fail in any way
        return "(…)" if callable(obj) else ""
    return text if len(text) <= MAX_SIGNATURE else "(…)"


def _doc(obj: Any, indent: str) -> str:
    try:
        text = inspect.getdoc(obj) or ""
    except Exception:
        text = ""
    return _indent(text if isinstance(text, str) else "", indent)


def _indent(text: str, indent: str) -> str:
    text = text.strip()
    if len(text) > MAX_DOC:
        text = text[:MAX_DOC] + "…"
    return "".join(f"\n{indent}{line}".rstrip(" ") for line in text.splitlines())
