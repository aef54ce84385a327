"""The amounts that a command adds to limits, as options."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from ramet.core.errors import InvalidValue

#: The names of limits that differ from those of their options.
_NAMES = {"calls": "model_calls"}
COUNTED = ("usd", "tokens", "calls", "tool_calls", "agents")


def amounts(options: Namespace, names: Sequence[str] = COUNTED) -> dict[str, float]:
    """Return the requested amounts, by name of the limit."""
    return {_NAMES.get(name, name): value for name in names if (value := getattr(options, name))}


def required_amounts(options: Namespace) -> dict[str, float]:
    """Return the requested amounts, time included, by name of the limit. Raises InvalidValue if there are none."""
    names = (*COUNTED, "seconds")
    if not (found := amounts(options, names)):
        accepted = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise InvalidValue("limits", None, f"at least one of {accepted}")
    return found
