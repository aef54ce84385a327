"""Read one agent's file into an `Agent`: Markdown with YAML front matter, as in `.claude/agents`.

Every key is used, refused, or named in a note; none is silently ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ramet.agent.definition import Agent, Scope
from ramet.agent.external.external import PRESETS
from ramet.agent.files import frontmatter
from ramet.agent.schemas.schema import JsonSchema
from ramet.agent.tool_entry import SPAWNERS, parse_entry, split_entries
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.limits import Limits
from ramet.core.mcp.server_entry import McpServer, as_servers
from ramet.core.policy.permissions import Mode, ModeRule, Permissions

MAX_FILE = 256 * 1024
MAX_ENTRIES = 500
#: camelCase spellings of Claude's files, and ramet's names.
_SPELLINGS = {
    "disallowedTools": "disallowed_tools",
    "permissionMode": "permission_mode",
    "maxTurns": "max_turns",
    "mcpServers": "mcp_servers",
    "toolSearch": "tool_search",
    "initialPrompt": "initial_prompt",
    "budgetNote": "budget_note",
    "siblingList": "sibling_list",
    "omitInstructions": "omit_instructions",
    "omitClaudeMd": "omit_instructions",
}
_UNSUPPORTED_KEYS = ("color",)
#: Keys that name commands, and the fields of an agent that they set.
_RUNNING_KEYS = {"hooks": "hooks", "mcpServers": "mcp"}
_MODES: tuple[Mode, ...] = ("plan", "acceptEdits", "dontAsk")
_LIMITS = tuple(each.name for each in fields(Limits))


class AgentFile(NamedTuple):
    """A definition from a file, and notes for its author."""

    agent: Agent
    notes: tuple[str, ...] = ()
    is_disabled: bool = False  #: the file says that there is no such agent


def has_user_authority(scope: Scope, *, trusted: bool) -> bool:
    """Return whether a file may name commands and use the user's notes: a folder or plugin does not speak for one."""
    return scope in ("managed", "call", "user") or (scope == "project" and trusted)


def parse_agent(
    text: str,
    *,
    source: Path,
    scope: Scope,
    trusted: bool = False,
    servers: Mapping[str, McpServer] = MappingProxyType({}),
) -> AgentFile:
    """Parse one file's text; `servers` are those that it may name.

    Raises InvalidValue, with the file, the key, the value and the accepted values.
    """
    front = frontmatter.parse(text, source=source)
    reader = _Reader(source, _rename_keys(front.keys, source), servers)
    notes = [*front.notes]
    for key in reader.keys:
        if key not in _READERS and key not in _UNSUPPORTED_KEYS:
            raise InvalidValue(
                f"{source}: key",
                key,
                "one of " + ", ".join(sorted(_READERS.keys() | {*_UNSUPPORTED_KEYS, *_SPELLINGS})),
            )
    for key in ("name", "description"):
        if reader.keys.get(key) in (None, ""):
            raise InvalidValue(f"{source}: {key}", reader.keys.get(key), "text; every agent file must have it")
    values: dict[str, Any] = {}
    for key in reader.keys:
        if key in _UNSUPPORTED_KEYS:
            notes.append(f"{key}: known, but not supported yet")
        elif reader.keys[key] is not None or key == "tools":
            values.update(_READERS[key](reader, key))
    has_authority = has_user_authority(scope, trusted=trusted)
    if values.get("memory") == "user" and not has_authority:
        scope_hint = "; user once the folder is trusted: ramet trust DIR" if scope == "project" else ""
        raise InvalidValue(f"{source}: memory", "user", f"project or local{scope_hint}")
    for key, field in _RUNNING_KEYS.items():
        if values.get(field) and not has_authority:
            del values[field]
            notes.append(
                f"{key}: off until the folder is trusted (ramet trust DIR)"
                if scope == "project"
                else f"{key}: off in a plugin"
            )
    if "permissions" in values and values["permissions"].mode("acceptEdits") and not has_authority:
        del values["permissions"]
        notes.append(
            "permission_mode: acceptEdits: off until the folder is trusted (ramet trust DIR)"
            if scope == "project"
            else "permission_mode: acceptEdits: off in a plugin"
        )
    try:
        agent = Agent(**values, instructions=front.body, scope=scope, source=source)
    except InvalidValue as error:
        raise InvalidValue(f"{source}: {error.field}", error.value, error.accepted) from None
    return AgentFile(agent, (*notes, *reader.notes))


class _Reader:
    """A reader of one file's keys, which collects notes."""

    def __init__(self, source: Path, keys: dict[str, Any], known_servers: Mapping[str, McpServer]) -> None:
        self.source, self.keys, self.notes = source, keys, list[str]()
        self._known_servers = known_servers

    def refuse(self, key: str, accepted: str, value: object = None) -> InvalidValue:
        """Return the error for a key whose value, or part of it, is invalid."""
        return InvalidValue(f"{self.source}: {key}", self.keys[key] if value is None else value, accepted)

    def text(self, key: str) -> dict[str, Any]:
        if not isinstance(self.keys[key], str):
            raise self.refuse(key, "text (in quotes, if YAML would read it as another type)")
        return {key: self.keys[key].strip()}

    def flag(self, key: str) -> dict[str, Any]:
        if not isinstance(self.keys[key], bool):
            raise self.refuse(key, "true or false")
        return {key: self.keys[key]}

    def raw_value(self, key: str) -> dict[str, Any]:
        return {key: self.keys[key]}  # Agent validates it.

    def names(self, key: str) -> dict[str, Any]:
        value = self.keys[key]
        entries = split_entries(value) if isinstance(value, str) else value
        if not isinstance(entries, list | tuple) or not all(isinstance(each, str) and each.strip() for each in entries):
            raise self.refuse(key, "names separated by commas, or a list of names")
        if len(entries) > MAX_ENTRIES:
            raise self.refuse(key, f"at most {MAX_ENTRIES} names", f"{len(entries)} names")
        return {key: tuple(each.strip() for each in entries)}

    def tools(self, key: str) -> dict[str, Any]:
        if self.keys[key] is None:
            if key == "tools":  # An empty key could mean all or none, and all is dangerous.
                raise self.refuse(key, "names; [] for no tool; leave the key out to inherit all")
            return {}
        names = self.names(key)
        for text in names[key]:
            try:
                entry = parse_entry(text)
            except InvalidValue as error:
                raise self.refuse(key, error.accepted, text) from None
            if entry.arguments is not None and entry.name not in SPAWNERS:
                effect = "the whole tool is denied" if key == "disallowed_tools" else "it selects no tool"
                self.notes.append(f"{key}: {text}: parts of a tool are not supported yet; {effect}")
        return names

    def model(self, key: str) -> dict[str, Any]:
        model = self.text(key)[key]
        return {key: None if model in ("inherit", "") else model}

    def mode(self, key: str) -> dict[str, Any]:
        mode = self.keys[key]
        if isinstance(mode, str) and mode in _MODES:
            return {"permissions": Permissions(modes=(ModeRule(mode=mode, source=str(self.source)),))}
        if mode != "default":  # bypassPermissions above all: a file cannot free itself from the gates.
            raise self.refuse(key, f"default, {', '.join(_MODES)}")
        return {}

    def limits(self, key: str) -> dict[str, Any]:
        value = self.keys[key]
        if not isinstance(value, dict):
            raise self.refuse(key, f"a mapping with any of {', '.join(_LIMITS)}")
        for each in value:
            if each not in _LIMITS:
                raise self.refuse(key, f"any of {', '.join(_LIMITS)}", each)
        try:
            return {key: Limits(**value)}
        except InvalidValue as error:
            raise InvalidValue(f"{self.source}: {error.field}", error.value, error.accepted) from None

    def hooks(self, key: str) -> dict[str, Any]:
        if not isinstance(self.keys[key], dict):
            raise self.refuse(key, "a mapping from events to hooks, as in .claude/settings.json")
        from ramet.agent.hooks import config  # here, so that files without hooks do not import langchain

        hooks = self.plain(key)
        try:
            config.read(hooks)
        except (InvalidValue, Unknown) as error:
            raise InvalidValue(f"{self.source}: {key}", "its hooks", str(error)) from None
        return {key: hooks}

    def servers(self, key: str) -> dict[str, Any]:
        """Return the servers of a mapping from names to entries of `.mcp.json`, or of a list of names and mappings.

        A name is one of the project's `.mcp.json`.
        """
        value = self.plain(key)
        entries: list[dict[str, Any] | McpServer] = []
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                if each in self._known_servers:
                    entries.append(self._known_servers[each])
                else:
                    self.notes.append(f"mcpServers: {each}: no server of .mcp.json in a trusted folder")
                continue
            if not isinstance(each, dict) or not all(isinstance(entry, dict) for entry in each.values()):
                accepted = "names of servers, or a mapping from names to their command, args and env"
                raise self.refuse(key, accepted, each)
            entries += [{**entry, "name": name} for name, entry in each.items()]
        try:
            return {"mcp": as_servers(entries)}
        except InvalidValue as error:
            raise InvalidValue(f"{self.source}: {error.field}", error.value, error.accepted) from None

    def schema(self, key: str) -> dict[str, Any]:
        if not isinstance(self.keys[key], dict):
            raise self.refuse(key, "a JSON schema, as a mapping")
        schema = self.plain(key)
        problem = _schema_problem(schema)
        if problem:
            raise self.refuse(key, problem, "this schema")
        return {key: schema}

    def program(self, key: str) -> dict[str, Any]:
        """Return the name of a known program: a command in a file could be any program of the host."""
        if self.keys[key] not in PRESETS:
            raise self.refuse(key, f"one of {', '.join(PRESETS)}; another program is defined in code: ramet.External")
        return {key: self.keys[key]}

    def plain(self, key: str) -> Any:
        """Return the value as JSON data, so that dates, NaN and similar values are found early."""
        try:
            return json.loads(json.dumps(self.keys[key], allow_nan=False))
        except (TypeError, ValueError):
            raise self.refuse(
                key, "a value that JSON can represent: no dates, no bytes, no NaN", "this value"
            ) from None


_READERS: Mapping[str, Callable[[_Reader, str], dict[str, Any]]] = {
    "name": _Reader.text,
    "description": _Reader.text,
    "tools": _Reader.tools,
    "disallowed_tools": _Reader.tools,
    "model": _Reader.model,
    "effort": _Reader.raw_value,
    "permission_mode": _Reader.mode,
    "max_turns": _Reader.raw_value,
    "skills": _Reader.names,
    "hooks": _Reader.hooks,
    "mcp_servers": _Reader.servers,
    "tool_search": _Reader.raw_value,
    "memory": _Reader.raw_value,
    "background": _Reader.flag,
    "omit_instructions": _Reader.flag,
    "isolation": _Reader.raw_value,
    "initial_prompt": _Reader.text,
    "budget_note": _Reader.flag,
    "coordinator": _Reader.flag,
    "peers": _Reader.flag,
    "sibling_list": _Reader.flag,
    "limits": _Reader.limits,
    "output": _Reader.schema,
    "external": _Reader.program,
}


def _rename_keys(keys: dict[str, Any], source: Path) -> dict[str, Any]:
    renamed_keys: dict[str, Any] = {}
    for key, value in keys.items():
        name = _SPELLINGS.get(key, key)
        if name in renamed_keys:
            raise InvalidValue(f"{source}: key", key, f"one spelling of {name}, once")
        renamed_keys[name] = value
    return renamed_keys


def _schema_problem(schema: dict[str, Any]) -> str | None:
    """Return why a schema cannot be used: it is invalid, has external references, or its checks are too much work."""
    if any(not reference.startswith("#") for reference in _references(schema)):
        return "a schema whose every $ref stays inside it (#/…): nothing is fetched"  # a file must not cause requests
    try:
        JsonSchema(schema)
    except InvalidValue as error:
        return f"{error.accepted} ({error.field})"
    return None


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [reference for each in node for reference in _references(each)]
    if not isinstance(node, dict):
        return []
    own = [value for key, value in node.items() if key in ("$ref", "$dynamicRef") and isinstance(value, str)]
    return own + [reference for each in node.values() for reference in _references(each)]
