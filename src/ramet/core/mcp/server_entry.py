"""`McpServer`: a server of the Model Context Protocol that an agent uses, and the names of its tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from msgspec import to_builtins

from ramet.core.arguments import KnownFields, is_unicode
from ramet.core.errors import InvalidValue
from ramet.core.mcp.server_url import checked_headers, checked_url, endpoint_of, recorded_header
from ramet.core.policy.policy import Policy, from_json

PREFIX: Final = "mcp__"
MAX_SERVERS: Final = 16  #: of one agent
MAX_TEXTS, MAX_TEXT = 200, 16 * 1024  #: arguments or variables of a server, and characters of each
MAX_TIMEOUT_S: Final = 24 * 3600.0
DEFAULT_TIMEOUT_S: Final = 300.0
ANNOTATED: Final = "annotated"
SHARED_IN_TREE: Final = "tree"
_NAME: Final = re.compile(r"(?!.*__)(?!.*_\Z)[A-Za-z0-9][A-Za-z0-9_-]{0,31}\Z")
_ACCEPTED_NAME: Final = (
    "1 to 32 letters, digits, '_' or '-', starting with a letter or digit, without '__' and without '_' at the end"
)
_REFERENCE: Final = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_.-]*\}\Z")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}\Z")
#: The field of an entry of `.mcp.json` that says how a server is reached, besides the fields of the server.
_TYPE: Final = "type"
_TYPES: Final = {"stdio": "command", "http": "url", "streamable-http": "url"}  #: and the field that belongs to each
_PROGRAM_FIELDS: Final = ("args", "env")
_HOST_FIELDS: Final = frozenset({"headers", "repeatable"})


@dataclass(frozen=True, kw_only=True)
class McpServer(metaclass=KnownFields):
    """A server of the Model Context Protocol: a program at its standard input and output, or one at an address.

    A program runs in the sandbox of its agent. The host connects to an address (streamable HTTP), which the policy of
    the agent has to list. A shared server is one for all agents of a tree with the same entry. In `command`, `args`,
    `env` and `headers`, `${NAME}` stands for a variable or a secret of that sandbox, and `${NAME:-text}` for the text
    if there is neither. Values of `env` and `headers` are not recorded, unless they are `${NAME}`, after "Bearer " for
    example; everything else here is. Raises InvalidValue.
    """

    name: str
    command: str = ""  #: the program; or
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)  #: variables, besides those of the sandbox
    url: str = ""  #: the address
    headers: Mapping[str, str] = field(default_factory=dict)  #: of each request to the address
    timeout_s: float = DEFAULT_TIMEOUT_S  #: for the answer to one call
    policy: Policy | None = None  #: runs in a sandbox of its own, with these rights of its agent's and no others
    #: Names of tools whose interrupted calls begin again; ANNOTATED: the tools that the server says are repeatable.
    repeatable: Sequence[str] | Literal["annotated"] = ()
    shared: str = ""  #: "tree": all agents of a tree with this same entry use one server; else each has its own

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise InvalidValue("mcp.name", self.name, _ACCEPTED_NAME)
        if self.url:
            self._check_address()
        else:
            self._check_program()
        object.__setattr__(self, "args", _texts(self._field("args"), self.args))
        object.__setattr__(self, "env", _variables(self._field("env"), self.env))
        seconds: object = self.timeout_s
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            raise InvalidValue(self._field("timeout_s"), seconds, f"seconds above 0, at most {MAX_TIMEOUT_S:g}")
        if self.policy is not None:
            _check_policy(self._field("policy"), self.policy)
        if self.repeatable != ANNOTATED:
            object.__setattr__(self, "repeatable", _repeatable_tools(self._field("repeatable"), self.repeatable))
        if self.shared not in ("", SHARED_IN_TREE):
            raise InvalidValue(self._field("shared"), self.shared, f"{SHARED_IN_TREE!r}, or nothing")
        if self.shared and not self.url and self.policy is None:
            accepted = "a policy with all rights of the server: one that is shared runs in a sandbox of its own"
            raise InvalidValue(self._field("policy"), None, accepted)

    def _check_program(self) -> None:
        _check_text(self._field("command"), self.command)
        if not self.command.strip():
            raise InvalidValue(self._field("command"), self.command, "the name or the path of a program, or a url")
        if self.headers:
            raise InvalidValue(self._field("headers"), "its value", "none for a program: they belong to a url")

    def _check_address(self) -> None:
        _check_text(self._field("url"), self.url)
        object.__setattr__(self, "url", checked_url(self._field("url"), self.url))
        for name in ("command", *_PROGRAM_FIELDS, "policy"):
            if getattr(self, name):
                raise InvalidValue(
                    self._field(name), "its value", "none for a server with a url: no program is started"
                )
        object.__setattr__(self, "headers", checked_headers(self._field("headers"), self.headers))

    @property
    def endpoint(self) -> str:
        """The host and port of its address, as a list of endpoints has them; empty for a program."""
        return endpoint_of(self.url) if self.url else ""

    def _field(self, name: str) -> str:
        return f"mcp.{self.name}.{name}"

    def as_data(self) -> dict[str, Any]:
        """Return the fields that are not their defaults: `as_server(data)` equals this object."""
        data: dict[str, Any] = {"name": self.name}
        if self.command:
            data["command"] = self.command
        if self.url:
            data["url"] = self.url
        if self.headers:
            data["headers"] = dict(self.headers)
        if self.args:
            data["args"] = list(self.args)
        if self.env:
            data["env"] = dict(self.env)
        if self.timeout_s != DEFAULT_TIMEOUT_S:
            data["timeout_s"] = self.timeout_s
        if self.policy is not None:
            data["policy"] = to_builtins(self.policy)
        if self.repeatable:
            data["repeatable"] = self.repeatable if isinstance(self.repeatable, str) else list(self.repeatable)
        if self.shared:
            data["shared"] = self.shared
        return data

    def as_guest_data(self) -> dict[str, Any]:
        """Return the fields that a sandbox needs: the others stay in the host."""
        return {name: value for name, value in self.as_data().items() if name not in _HOST_FIELDS}

    @property
    def runs_with_agent(self) -> bool:
        """True if the guest of its agent runs the program, or asks the host to connect to the address."""
        return self.policy is None and not self.shared

    def as_record(self) -> dict[str, Any]:
        """Return the fields that are not their defaults; a value of `env` or `headers` that may be secret is None."""
        data = self.as_data()
        if self.headers:
            data["headers"] = {name: recorded_header(value) for name, value in self.headers.items()}
        if self.env:
            data["env"] = {name: value if _REFERENCE.match(value) else None for name, value in self.env.items()}
        return data

    def tool_name(self, tool: str) -> str:
        """Return the name under which a model calls a tool of this server; characters that it may not have become _."""
        return f"{PREFIX}{self.name}__{re.sub(r'[^A-Za-z0-9_-]', '_', tool)}"

    def may_repeat(self, name: str, *, is_annotated: bool) -> bool:
        """Return whether an interrupted call of a tool may begin again; `name` is the one that a model calls.

        `is_annotated` is what the server says of the tool. It counts only if this entry says so.
        """
        if self.repeatable == ANNOTATED:
            return is_annotated and self.covers(name)
        return name in map(self.tool_name, self.repeatable)

    def covers(self, entry: str) -> bool:
        """Return whether an entry of a list of tools is about this server: of all its tools, or of one of them."""
        return entry == f"{PREFIX}{self.name}" or entry.startswith(f"{PREFIX}{self.name}__")


def as_server(value: object) -> McpServer:
    """Return a server from an entry of `.mcp.json` with its name. Raises InvalidValue."""
    if isinstance(value, McpServer):
        return value
    if not isinstance(value, Mapping):
        raise InvalidValue("mcp", value, "entries with a name, and a command or a url")
    fields = dict(value)
    place = f"mcp.{fields.get('name', '?')}.{_TYPE}"
    kind = fields.pop(_TYPE, "http" if "url" in fields else "stdio")
    if kind == "sse":
        raise InvalidValue(place, kind, "'http': the transport of 2024 (sse) is not supported; servers offer http too")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise InvalidValue(place, kind, "'stdio' with a command, or 'http' with a url")
    if not fields.get(_TYPES[kind]):
        raise InvalidValue(place, kind, f"a {_TYPES[kind]} with this type")
    if isinstance(policy := fields.get("policy"), Mapping):
        try:
            fields["policy"] = from_json(policy)
        except InvalidValue as problem:
            field = f"mcp.{fields.get('name', '?')}.{problem.field}"
            raise InvalidValue(field, problem.value, problem.accepted) from None
    return McpServer(**fields)


def as_servers(values: object) -> tuple[McpServer, ...]:
    """Return the servers of an agent, from a list of entries. Raises InvalidValue."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise InvalidValue("mcp", values, "a list of entries with a name, and a command or a url")
    servers = tuple(as_server(each) for each in values)
    if len(servers) > MAX_SERVERS:
        raise InvalidValue("mcp", f"{len(servers)} servers", f"at most {MAX_SERVERS}")
    names = [each.name for each in servers]
    for name in names:
        if names.count(name) > 1:
            raise InvalidValue("mcp", name, "one server of each name")
    return servers


def _check_policy(name: str, policy: object) -> None:
    """Raise InvalidValue for a policy with values: an entry is recorded, and its values are in `env`."""
    if not isinstance(policy, Policy):
        raise InvalidValue(name, type(policy).__name__, "a policy, as a mapping of its fields")
    if policy.env_vars:
        raise InvalidValue(f"{name}.env_vars", sorted(policy.env_vars), "none: write them into env of the entry")
    if isinstance(policy.secrets, Mapping) and any(each is not None for each in policy.secrets.values()):
        raise InvalidValue(f"{name}.secrets", sorted(policy.secrets), "names of secrets of its agent, without values")


def _repeatable_tools(name: str, values: object) -> tuple[str, ...]:
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise InvalidValue(name, values, f"a list of names of tools, or {ANNOTATED!r}")
    return _texts(name, values)


def _texts(name: str, values: object) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidValue(name, values, "a list of texts")
    texts = tuple(values)
    if len(texts) > MAX_TEXTS:
        raise InvalidValue(name, f"{len(texts)} texts", f"at most {MAX_TEXTS}")
    for each in texts:
        _check_text(name, each)
    return texts


def _variables(name: str, values: object) -> dict[str, str]:
    if not isinstance(values, Mapping):
        raise InvalidValue(name, type(values).__name__, "a mapping of names to texts")
    for key, value in zip(_texts(name, values.keys()), values.values(), strict=True):
        if not _VARIABLE.match(key):
            raise InvalidValue(name, key, "names of letters, digits and '_'")
        _check_text(f"{name}.{key}", value, is_shown=False)
    return dict(values)


def _check_text(name: str, value: object, *, is_shown: bool = True) -> None:
    if not isinstance(value, str) or "\0" in value or len(value) > MAX_TEXT or not is_unicode(value):
        shown = value if is_shown else "its value"
        raise InvalidValue(name, shown, f"text of at most {MAX_TEXT} characters, without NUL")
