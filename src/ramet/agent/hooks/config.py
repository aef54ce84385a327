"""The configuration of hooks, in Python or in a settings file, validated before anything runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from ramet.core.errors import InvalidValue, Unknown
from ramet.tools.dispatch import ALIASES

EVENTS = (
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "UserPromptSubmit",
    "PermissionRequest",
    "Notification",
    "SubagentStart",
    "SubagentStop",
    "PreCompact",
    "Stop",
    "SessionStart",
    "SessionEnd",
    "TaskCreated",
    "TaskCompleted",
    "TeammateIdle",
)
#: Events whose hook denies if it cannot answer.
GATES = frozenset({"PreToolUse", "PermissionRequest"})
#: Events whose action does not happen if a hook denies it.
BLOCKABLE = GATES | {"UserPromptSubmit", "PreCompact", "TaskCreated", "TaskCompleted"}

DEFAULT_TIMEOUT_S = 60.0
#: Keys of a hook in settings files. `statusMessage` is for Claude Code's screen.
_COMMAND_KEYS = frozenset({"type", "command", "timeout", "on_error", "statusMessage"})
_GROUP_KEYS = frozenset({"matcher", "hooks"})
_MARK = "__ramet_hooks__"

OnError = Literal["allow", "deny"]
HookFunction = Callable[[dict[str, Any]], Any]
HookConfig = Mapping[str, Any] | Iterable[HookFunction] | None
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Hook:
    """A hook of one event: a function of the payload, or a command line for the shell."""

    event: str
    run: HookFunction | str
    matcher: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S
    on_error: OnError = "allow"

    @property
    def label(self) -> str:
        """Return the name of the hook in events and messages."""
        if isinstance(self.run, str):
            return self.run if len(self.run) <= 120 else self.run[:119] + "…"
        return getattr(self.run, "__qualname__", None) or type(self.run).__qualname__

    def fits(self, value: str) -> bool:
        """Return whether the matcher fits a tool, agent type or trigger: by name, `A|B`, or a full regex match."""
        if self.matcher in ("", "*"):
            return True
        names = _names_of(value)
        if names & {each.strip() for each in self.matcher.split("|")}:
            return True
        return any(re.fullmatch(self.matcher, each) for each in names)


def hook(
    event: str, *, matcher: str = "", timeout: float = DEFAULT_TIMEOUT_S, on_error: OnError | None = None
) -> Callable[[F], F]:
    """Mark a function as a hook of `event`, for `HookRunner([function, …])`. Several marks are allowed."""

    def mark(function: F) -> F:
        new_hook = _hook(event, function, matcher=matcher, timeout=timeout, on_error=on_error)
        setattr(function, _MARK, [*getattr(function, _MARK, ()), new_hook])
        return function

    return mark


def read(config: HookConfig, *, child: bool = False) -> list[Hook]:
    """Return all hooks of a mapping, a settings file's content, or marked functions, in order.

    With `child`, a `Stop` is read as `SubagentStop`: a definition that runs as a child means that. Raises Unknown for
    an unknown event, and InvalidValue for any other error, before any hook exists.
    """
    if config is None:
        return []
    if isinstance(config, Mapping):
        return _from_mapping(config, child=child)
    functions: Any = config
    if isinstance(functions, str | bytes) or not isinstance(functions, Iterable):
        raise InvalidValue("hooks", config, "a mapping of events, or functions marked with @hook")
    hooks: list[Hook] = []
    for each in functions:
        marks: Sequence[Hook] = getattr(each, _MARK, ())
        if not marks:
            raise InvalidValue("hooks", each, "functions marked with @hook")
        hooks += [replace(mark, run=each) for mark in marks]  # a method was marked before it was bound
    return hooks


def gates_of(config: HookConfig) -> tuple[HookConfig, ...]:
    """Return the hooks of a definition that also bind its children: children must not bypass a gate."""
    if not config:
        return ()
    if not isinstance(config, Mapping):  # functions marked with @hook: each is a gate with all its events
        functions = tuple(each for each in config if any(mark.event in GATES for mark in getattr(each, _MARK, ())))
        return (functions,) if functions else ()
    inner = config.get("hooks")
    events = inner if isinstance(inner, Mapping) else config
    gates = {event: groups for event, groups in events.items() if event in GATES}
    return (gates,) if gates else ()


def _from_mapping(config: Mapping[str, Any], *, child: bool) -> list[Hook]:
    inner = config.get("hooks")
    if isinstance(inner, Mapping):  # a whole settings file
        config = inner
    hooks: list[Hook] = []
    for event, groups in config.items():
        _check_event(event)
        hook_event = "SubagentStop" if child and event == "Stop" else event
        if callable(groups):
            groups = [groups]
        for group in _list(f"hooks.{event}", groups):
            hooks += _group(hook_event, group)
    return hooks


def _group(event: str, group: Any) -> list[Hook]:
    if callable(group):
        return [_hook(event, group)]
    path = f"hooks.{event}"
    if not isinstance(group, Mapping):
        raise InvalidValue(path, group, "functions, or {'matcher': …, 'hooks': […]}")
    _keys(path, group, _GROUP_KEYS)
    matcher = group.get("matcher", "")
    return [_entry(event, matcher, each) for each in _list(f"{path}.hooks", group.get("hooks"))]


def _entry(event: str, matcher: Any, entry: Any) -> Hook:
    if callable(entry):
        return _hook(event, entry, matcher=matcher)
    path = f"hooks.{event}.hooks"
    if not isinstance(entry, Mapping) or entry.get("type") != "command":
        raise InvalidValue(path, entry, "a function, or {'type': 'command', 'command': …}")
    _keys(path, entry, _COMMAND_KEYS)
    command = entry.get("command")
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise InvalidValue(f"{path}.command", command, "a command line")
    return _hook(
        event,
        command,
        matcher=matcher,
        timeout=entry.get("timeout", DEFAULT_TIMEOUT_S),
        on_error=entry.get("on_error"),
    )


def _hook(
    event: str, run: HookFunction | str, *, matcher: Any = "", timeout: Any = DEFAULT_TIMEOUT_S, on_error: Any = None
) -> Hook:
    path = f"hooks.{_check_event(event)}"
    if not isinstance(matcher, str):
        raise InvalidValue(f"{path}.matcher", matcher, "a name, 'A|B', a regular expression, or '*'")
    if matcher not in ("", "*"):
        try:
            re.compile(matcher)
        except re.error as error:  # A gate that matches nothing by mistake would stay open.
            raise InvalidValue(f"{path}.matcher", matcher, f"a regular expression: {error}") from None
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not math.isfinite(timeout) or timeout <= 0:
        raise InvalidValue(f"{path}.timeout", timeout, "seconds above 0")
    if on_error not in (None, "allow", "deny"):
        raise InvalidValue(f"{path}.on_error", on_error, "'allow' or 'deny'")
    if on_error == "deny" and event not in BLOCKABLE:
        raise InvalidValue(f"{path}.on_error", on_error, f"'deny' only for events that can be denied: {BLOCKABLE}")
    return Hook(
        event=event,
        run=run,
        matcher=matcher,
        timeout_s=float(timeout),
        on_error=on_error or ("deny" if event in GATES else "allow"),
    )


def _names_of(value: str) -> frozenset[str]:
    """Return a tool's name and its aliases: a hook on `Task` guards `Agent`, and vice versa."""
    canonical_name = ALIASES.get(value, value)
    return frozenset({value, canonical_name, *(alias for alias, name in ALIASES.items() if name == canonical_name)})


def _check_event(event: Any) -> str:
    if event not in EVENTS:
        raise Unknown("hook event", str(event), EVENTS)
    return str(event)


def _list(path: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidValue(path, value, "a list")
    return value


def _keys(path: str, mapping: Mapping[str, Any], known_keys: frozenset[str]) -> None:
    for key in mapping:
        if key not in known_keys:
            raise InvalidValue(f"{path} key", key, ", ".join(sorted(known_keys)))
