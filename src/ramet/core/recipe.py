"""An agent as data: names, texts, schemas and symbolic references, never objects.

A recipe outlives its process. It is identified by its name *and* the hash of its content: a different content is a
different version, and two agents with equal content and different names are two agents. The names of capabilities are
resolved through an allow-list (`ramet.agent`), never because the recipe says so.
"""

from __future__ import annotations

import hashlib
import json
import keyword
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ramet.core.arguments import is_unicode
from ramet.core.errors import InvalidValue
from ramet.core.ids import checked_name
from ramet.core.policy.capabilities import Capability, sort_key

SCHEMA: Final = 1  #: version of the recipe format; a newer version is refused
MAX_BYTES: Final = 256 * 1024  #: of a recipe encoded as JSON
MAX_CAPABILITIES: Final = 256
MAX_TASKS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDefinition:
    """A task as data: its request, its parameters, its return type (`ramet.agent.typed` defines the forms)."""

    docstring: str
    parameters: Mapping[str, Any] = field(default_factory=dict)  #: name → schema, in order; with "default" if optional
    returns: Mapping[str, Any] | None = None  #: None: no value is expected

    def data(self) -> dict[str, Any]:
        """Return the task in the format of the seed: `{"docstring": …, "signature": {…}}`."""
        signature: dict[str, Any] = {"parameters": dict(self.parameters), "order": list(self.parameters)}
        return {"docstring": self.docstring, "signature": {**signature, "returns": self.returns}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """An agent that another process can create again, from this recipe and its creator's capabilities alone."""

    name: str
    primer: str = ""
    model: str | None = None  #: None: the model of its creator
    capabilities: tuple[Capability, ...] = ()
    tasks: Mapping[str, TaskDefinition] = field(default_factory=dict)
    types: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: dataclasses, models and enums, by name
    limits: Mapping[str, Any] = field(default_factory=dict)
    setup: str = ""  #: Python code that runs in its sandbox before each turn
    version: str = field(init=False, compare=False)  #: the hash of the whole content: SHA-256, in hex

    def __post_init__(self) -> None:
        checked_name("name", self.name)
        if len(self.capabilities) > MAX_CAPABILITIES:
            raise InvalidValue("capabilities", f"{len(self.capabilities)} of them", f"at most {MAX_CAPABILITIES}")
        if len(self.tasks) > MAX_TASKS:
            raise InvalidValue("task_definitions", f"{len(self.tasks)} of them", f"at most {MAX_TASKS}")
        object.__setattr__(self, "capabilities", tuple(sorted(set(self.capabilities), key=sort_key)))
        canonical_bytes = self.canonical()
        if len(canonical_bytes) > MAX_BYTES:
            raise InvalidValue("recipe", f"{len(canonical_bytes)} bytes", f"at most {MAX_BYTES} bytes of JSON")
        object.__setattr__(self, "version", hashlib.sha256(canonical_bytes).hexdigest())

    def canonical(self) -> bytes:
        """Return the canonical JSON form.

        Raises InvalidValue if the content is not JSON data.
        """
        try:
            text = json.dumps(self.data(), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            return text.encode()
        except (TypeError, ValueError, RecursionError) as problem:
            raise InvalidValue("recipe", self.name, f"JSON data only: {problem}") from None

    def data(self) -> dict[str, Any]:
        """Return the recipe as it is stored, without its hash."""
        content = {
            "schema": SCHEMA,
            "name": self.name,
            "primer": self.primer,
            "model": self.model,
            "capabilities": [each.data() for each in self.capabilities],
            "task_definitions": {name: task.data() for name, task in sorted(self.tasks.items())},
            "types": {name: dict(kind) for name, kind in sorted(self.types.items())},
            "limits": dict(self.limits),
        }
        return {**content, "setup": self.setup} if self.setup else content

    @property
    def identity(self) -> str:
        """The hash of everything except the capabilities: identifies the agent, whatever it may use."""
        return replace(self, capabilities=()).version

    def entry(self) -> dict[str, Any]:
        """Return the recipe as a registry stores it: its data and its hash."""
        return {**self.data(), "hash": self.version}

    @classmethod
    def from_entry(cls, entry: object, *, path: str = "recipe") -> Recipe:
        """Parse an entry of a registry.

        Raises InvalidValue, naming the place, if the entry is not a recipe. `hash` may be missing, as in an entry
        written by hand. If present, it must match the content.
        """
        return parse_recipe(entry, path)


_FIELDS = frozenset(
    {"schema", "hash", "name", "primer", "model", "capabilities", "task_definitions", "types", "limits", "setup"}
)


def parse_recipe(entry: object, path: str = "recipe") -> Recipe:
    """Parse a recipe from untrusted data; nothing is trusted, nothing is imported.

    Raises InvalidValue.
    """
    entries = _mapping(entry, path)
    unknown = sorted(set(entries) - _FIELDS)
    if unknown:
        raise InvalidValue(f"{path}.{unknown[0]}", entries[unknown[0]], f"one of {', '.join(sorted(_FIELDS))}")
    schema = entries.get("schema", SCHEMA)
    if schema != SCHEMA or isinstance(schema, bool):
        raise InvalidValue(f"{path}.schema", schema, f"{SCHEMA}: this version of ramet knows no other")
    recipe = Recipe(
        name=_text(entries.get("name"), f"{path}.name"),
        primer=_text(entries.get("primer", ""), f"{path}.primer"),
        model=None if entries.get("model") is None else _text(entries["model"], f"{path}.model"),
        capabilities=tuple(
            capability(each, f"{path}.capabilities[{at}]")
            for at, each in enumerate(_list(entries.get("capabilities", []), f"{path}.capabilities"))
        ),
        tasks={
            checked_task_name(name): _task(each, f"{path}.task_definitions.{name}")
            for name, each in _mapping(entries.get("task_definitions", {}), f"{path}.task_definitions").items()
        },
        types={
            checked_task_name(name, "types"): _mapping(each, f"{path}.types.{name}")
            for name, each in _mapping(entries.get("types", {}), f"{path}.types").items()
        },
        limits=_mapping(entries.get("limits", {}), f"{path}.limits"),
        setup=_text(entries.get("setup", ""), f"{path}.setup"),
    )
    if "hash" in entries and entries["hash"] != recipe.version:
        raise InvalidValue(f"{path}.hash", entries["hash"], f"{recipe.version}, which is the hash of its content")
    return recipe


def checked_task_name(name: object, field: str = "task") -> str:
    """Return a name that is valid for a function or a class.

    Raises InvalidValue if it is not valid.
    """
    if (
        not isinstance(name, str)
        or len(name) > 64
        or not name.isidentifier()
        or keyword.iskeyword(name)
        or name.startswith("__")
    ):
        raise InvalidValue(field, name, "a name of at most 64 letters, digits and '_'")
    return name


def capability(value: object, path: str = "capability") -> Capability:
    """Parse a capability that `Capability.data` wrote.

    Raises InvalidValue.
    """
    parts = _mapping(value, path)
    unknown = sorted(set(parts) - {"type", "name", "visibility", "include", "exclude"})
    if unknown:
        raise InvalidValue(f"{path}.{unknown[0]}", parts[unknown[0]], "type, name, visibility, include, exclude")
    include = parts.get("include")
    return Capability(
        parts.get("type"),  # type: ignore[arg-type]  # checked there
        parts.get("name"),  # type: ignore[arg-type]
        parts.get("visibility", "medium"),
        None if include is None else tuple(_list(include, f"{path}.include")),
        tuple(_list(parts.get("exclude", []), f"{path}.exclude")),
    )


def _task(value: object, path: str) -> TaskDefinition:
    parts = _mapping(value, path)
    signature = _mapping(parts.get("signature", {}), f"{path}.signature")
    parameters = _mapping(signature.get("parameters", {}), f"{path}.signature.parameters")
    order = _list(signature.get("order", list(parameters)), f"{path}.signature.order")
    if set(parts) - {"docstring", "signature"} or set(signature) - {"parameters", "order", "returns"}:
        raise InvalidValue(path, sorted({*parts, *signature}), "docstring, and signature of parameters, order, returns")
    if sorted(map(str, order)) != sorted(parameters):
        raise InvalidValue(f"{path}.signature.order", order, "each parameter once")
    returns = signature.get("returns")
    return TaskDefinition(
        docstring=_text(parts.get("docstring", ""), f"{path}.docstring"),
        parameters={
            checked_task_name(name, "parameter"): _mapping(parameters[name], f"{path}.signature.parameters.{name}")
            for name in order
        },
        returns=None if returns is None else _mapping(returns, f"{path}.signature.returns"),
    )


def _mapping(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidValue(path, value, "an object with text for keys")
    return dict(value)


def _list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidValue(path, value, "a list")
    return list(value)


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidValue(path, value, "text")
    if "\0" in value or not is_unicode(value):
        raise InvalidValue(path, value, "text that can be written as UTF-8, without NUL")
    return value
