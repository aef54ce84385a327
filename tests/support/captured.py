"""The variables that are sent with a function."""

from __future__ import annotations

from ramet.wire.code.closure_vars import parts


def captured_names(function: object) -> list[str]:
    """Return the names of the variables that are sent with a function and with the functions that it uses."""
    names: dict[str, None] = {}
    queue = [function]
    while queue:
        for part in parts(queue.pop(), (), {}):  # type: ignore[arg-type]  # any value may be in the queue
            kind, name = part.label.split(" ")[:2]
            if kind == "variable" and name.strip("'") not in names:
                names[name.strip("'")] = None
                queue.append(part.value)
    return list(names)
