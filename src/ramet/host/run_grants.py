"""Answers that a person gave for later calls of a run, too, and the calls that such an answer covers.

An answer for the run covers a later call of the same run if its tool is the same, the question about it is the same,
and so are the arguments that say what is run or who is reached (`SAME_ARGUMENTS`). It counts only where a person would
be asked: behind hooks and permission rules, so it cannot allow what these deny, and before the safety gate.
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlsplit

from ramet.core.ids import RunId
from ramet.core.tool_names import EXIT_PLAN_MODE
from ramet.host.argument_preview import preview, shorten

#: Arguments that must be equal, because they contain a command or code, or name a recipient.
SAME_ARGUMENTS: Final = ("command", "cmd", "script", "code", "sql", "to", "subagent_type", "skill")
_URL: Final = "url"  #: an argument of which the scheme and the host must be equal


def describe_grant(tool: str, question: str, args: dict[str, Any]) -> str:
    """Return which later calls an answer for the run would cover; "" if the question can be answered only once.

    So can a plan, and a call whose question or arguments are too long to be shown whole.
    """
    fields = _same_arguments(args)
    if fields is None or tool == EXIT_PLAN_MODE or _key(tool, question, args) is None:
        return ""
    names = [f"{name} (its host)" if name == _URL else name for name in fields]
    return f"{shorten(tool)} with the same {' and '.join(names)}" if names else f"{shorten(tool)} with any arguments"


class RunGrants:
    """The answers that were given for a run, by run."""

    def __init__(self) -> None:
        self._keys: dict[RunId, set[str]] = {}

    def add(self, run: RunId, tool: str, question: str, args: dict[str, Any]) -> None:
        """Cover the later calls of a run that are like this one."""
        if (key := _key(tool, question, args)) is not None:
            self._keys.setdefault(run, set()).add(key)

    def covers(self, run: RunId, tool: str, question: str, args: dict[str, Any]) -> bool:
        """Return whether a person's earlier answer covers a call."""
        keys = self._keys.get(run)
        return keys is not None and _key(tool, question, args) in keys


def _key(tool: str, question: str, args: dict[str, Any]) -> str | None:
    """Return a text that is equal for calls of which one answer covers all; None for a call that no answer covers."""
    fields = _same_arguments(args)
    if fields is None or shorten(question) != question or shorten(tool) != tool:
        return None
    return json.dumps([tool, question, fields], sort_keys=True)


def _same_arguments(args: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments that must be equal, or None if a person is not shown all of them whole."""
    shown, fields = preview(args), dict[str, Any]()
    for name in SAME_ARGUMENTS:
        if name in args:
            if name not in shown or json.dumps(shown[name]) != json.dumps(args[name], default=repr):
                return None
            fields[name] = args[name]
    if _URL in args:
        if not isinstance(args[_URL], str) or shown.get(_URL) != args[_URL]:
            return None
        fields[_URL] = _host(args[_URL])
    return fields


def _host(url: str) -> str:
    """Return the scheme and the authority of a URL; a text that is no plain URL stands for itself."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    is_plain = parts.scheme and parts.netloc and url.isascii() and url.isprintable() and not {*url} & {*"\\ %@"}
    return f"{parts.scheme}://{parts.netloc.lower()}" if is_plain else url
