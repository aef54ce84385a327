"""Validators for the settings of a server.

Every `…_of` takes the name of the setting and its value as it was written. It raises InvalidValue with both. The caller
must show the value only through `redact`, as it may be a secret in the wrong place.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import pathlib
import re
import shlex
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final, get_args
from urllib.parse import urlsplit

from ramet.core.errors import InvalidValue, Unknown
from ramet.core.ids import checked_name
from ramet.core.policy import rights
from ramet.core.team import resources
from ramet.host.observability.redaction import STARS, Redaction
from ramet.host.sandbox.sandboxes import BackendName
from ramet.models import resolve
from ramet.services.config.adapters import BACKENDS_GROUP, OBJECT, POLICY_ADAPTERS_GROUP, STORES_GROUP, is_adapter_named
from ramet.services.config.settings import (
    ModelAlias,
    PostgresUrl,
    SecretReference,
    StoreAdapter,
    TcpAddress,
    UnixSocket,
)
from ramet.wire.authority import checked_authority

#: The backend that needs more settings than a name (`ramet.services.config.kubernetes`).
KUBERNETES: Final = "kubernetes"
MAX_SOCKET: Final = 100  #: bytes of the path of a Unix socket: files beside it must fit into the 107, too
_REFERENCE: Final = "env:NAME or file:/path, where the secret is; never the secret itself"
_LISTEN: Final = f"the path of a Unix socket, of at most {MAX_SOCKET} bytes and with a slash in it, or host:port"
_STORE: Final = (
    "the path of a SQLite file, or postgresql://user@host/database, or a store of another package: scheme://… where "
    "an entry point of 'ramet.stores' has the name of the scheme, or package.module:Name"
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}\Z")
_FUNCTION: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,254}:[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
_MCP_SERVER: Final = re.compile(r"mcp__[A-Za-z0-9][A-Za-z0-9_-]{0,31}\Z")
#: The names in `spawn_info.tools` of an agent of the type "llm"; a rule must name each tool.
TOOLS: Final = ("Read", "Write", "Edit", "Glob", "Grep", "Bash", "python")
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252})\Z")
_KEYWORDS: Final = re.compile(r"\s*\w+\s*=")  #: libpq's other syntax for the address of a server
_SERVERS: Final = re.compile(r"(?:(?:\[[0-9A-Fa-f:.]+\]|[^\s:,@\[\]]*)(?::\d*)?(?:,|\Z))+\Z")
_looks_so = Redaction((), {})


def redact(value: Any) -> Any:
    """Return a form of the value that may be shown to anyone."""
    if isinstance(value, str):
        return _looks_so.clean(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return "a mapping" if isinstance(value, dict) else f"a {type(value).__name__}"


def plain_text(field: str, value: Any) -> str:
    """Check a text of one line that does not look like a secret."""
    if not isinstance(value, str) or not value.strip() or len(value) > 1_000 or not value.isprintable():
        raise InvalidValue(field, value, "text of 1 to 1000 printable characters")
    if _looks_so.clean(value) != value:
        raise InvalidValue(field, value, "text without a secret in it")
    return value.strip()


def namespace_of(field: str, value: Any) -> str:
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise InvalidValue(field, value, "1 to 63 lowercase letters, digits and '-', with no '-' at either end")
    return value


def path_of(field: str, value: Any, base: pathlib.Path) -> pathlib.Path:
    """Return a path; a relative one begins at `base`, and `~` is the home folder."""
    accepted = "a path"
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidValue(field, value, accepted)
    try:
        return base / pathlib.Path(value).expanduser()
    except RuntimeError:  # no such user, no home
        raise InvalidValue(field, value, f"{accepted}; there is no such home folder") from None


def folder_of(field: str, value: Any, base: pathlib.Path) -> pathlib.Path:
    """Return the path of a folder, which need not exist yet."""
    path = path_of(field, value, base)
    if _path_satisfies(pathlib.Path.exists, path) and not _path_satisfies(pathlib.Path.is_dir, path):
        raise InvalidValue(field, value, "a folder, not a file")
    return path


def backend_of(field: str, value: Any) -> str:
    known = (*get_args(BackendName), KUBERNETES, *sorted(entry_points(group=BACKENDS_GROUP).names))
    if value not in known:
        raise InvalidValue(field, value, f"one of {', '.join(known)}")
    return str(value)


def policy_adapter_of(field: str, value: Any) -> str:
    """Check the name of a policy adapter: an entry point, or "package.module:Name"."""
    if isinstance(value, str) and is_adapter_named(POLICY_ADAPTERS_GROUP, value.strip()):
        return value.strip()
    installed = sorted(entry_points(group=POLICY_ADAPTERS_GROUP).names)
    known = f"one of {', '.join(installed)}" if installed else f"an entry point of {POLICY_ADAPTERS_GROUP!r}"
    raise InvalidValue(field, value, f"package.module:Name, or {known}")


def store_of(field: str, value: Any, base: pathlib.Path) -> pathlib.Path | PostgresUrl | StoreAdapter:
    """Return the place of the journal."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(field, value, _STORE)
    value = value.strip()
    if not re.match(r"postgres(ql)?://", value):
        scheme, separator, _ = value.partition("://")
        if OBJECT.match(value):
            return StoreAdapter(value)
        if separator and value.isprintable() and is_adapter_named(STORES_GROUP, scheme):
            return StoreAdapter(scheme, value)
        if "://" in value or _KEYWORDS.match(value):
            raise InvalidValue(field, STARS, _STORE)
        path = path_of(field, value, base)
        if _path_satisfies(pathlib.Path.is_dir, path):
            raise InvalidValue(field, value, f"{_STORE}; this is a folder")
        return path
    try:
        parts = urlsplit(value)
        servers = parts.netloc.rpartition("@")[2]
    except ValueError:
        raise InvalidValue(field, STARS, _STORE) from None
    rest = value[value.index("://") + 3 + len(parts.netloc) :]
    if "@" in rest or parts.fragment or not value.isprintable() or not _SERVERS.match(servers):
        accepted = f"{_STORE}; in a password the characters : / ? # @ are written as %3A %2F %3F %23 %40"
        raise InvalidValue(field, STARS, accepted)
    return PostgresUrl(value)


def address_of(field: str, value: Any, base: pathlib.Path) -> UnixSocket | TcpAddress:
    """Return the address to listen at."""
    if not isinstance(value, str) or not value.isprintable():
        raise InvalidValue(field, value, _LISTEN)
    value = value.strip()
    if "/" in value:
        path = path_of(field, value, base)
        if len(str(path).encode("utf-8", "replace")) > MAX_SOCKET:
            raise InvalidValue(field, str(path), _LISTEN)
        return UnixSocket(path)
    host, _, port = value.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or int(port) > 65_535:
        raise InvalidValue(field, value, f"{_LISTEN}, with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        try:
            return TcpAddress(str(ipaddress.IPv6Address(host[1:-1])), int(port))
        except ValueError:
            host = ""
    if not _HOST.match(host):
        raise InvalidValue(field, value, f"{_LISTEN}; an IPv6 address is in brackets: [::1]:8080")
    return TcpAddress(host, int(port))


def tcp_of(field: str, value: Any) -> TcpAddress:
    """Return a TCP address to listen at; a Unix socket is refused."""
    listen_address = None if isinstance(value, str) and "/" in value else address_of(field, value, pathlib.Path())
    if not isinstance(listen_address, TcpAddress) or not listen_address.port:
        raise InvalidValue(field, value, "host:port, with a port from 1 to 65535")
    return listen_address


def parse_dial_address(field: str, value: Any) -> TcpAddress:
    """Return an address that pods can dial: an IP address, since pods have no name server."""
    dial_address = tcp_of(field, value)
    try:
        ip = ipaddress.ip_address(dial_address.host)
    except ValueError:
        ip = None
    if ip is None or ip.is_unspecified:
        raise InvalidValue(field, value, "address:port with an IP address: pods have no name server")
    return dial_address


def reachable_of(field: str, value: Any) -> str:
    """Return the address at which others reach a server: a URL without a path, or the path of its socket."""
    accepted = "http://host:port or https://host:port, or the whole path of a Unix socket"
    text = plain_text(field, value)
    if text.startswith("/"):
        return text
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        fits = False
    if not fits or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InvalidValue(field, value, accepted)
    return text.rstrip("/")


def page_host_of(field: str, value: Any) -> str:
    """Return a host, with or without a port, as browsers send it in `Host`."""
    return checked_authority(field, plain_text(field, value))


def reference_of(field: str, value: Any, base: pathlib.Path) -> SecretReference:
    """Return the reference to a secret. An error does not show the value, as it may be the secret itself."""
    kind, _, name = value.strip().partition(":") if isinstance(value, str) else ("", "", "")
    if kind == "env" and _VARIABLE.match(name) and _looks_so.clean(name) == name:
        return SecretReference("env", name)
    if kind == "file" and name.strip() and name.isprintable():
        return SecretReference("file", str(path_of(field, name, base)))
    raise InvalidValue(field, STARS, _REFERENCE)


def model_of(field: str, value: Any, base: pathlib.Path) -> ModelAlias:
    """Return the model of an alias: its name, or a mapping of `model` and `key`."""
    _checked_alias(field)
    if not isinstance(value, dict):
        return ModelAlias(_model(field, value))
    known_keys(field, value, ModelAlias.__struct_fields__)
    if "model" not in value:
        raise InvalidValue(f"{field}.model", None, "provider:model")
    key = value.get("key")
    return ModelAlias(
        _model(f"{field}.model", value["model"]), None if key is None else reference_of(f"{field}.key", key, base)
    )


def team_of(field: str, value: Any, _: pathlib.Path) -> Mapping[str, float]:
    """Return the resources that a team reserves: amounts by the names of resources."""
    checked_name(field, field.partition(".")[2])
    if not isinstance(value, dict):
        raise InvalidValue(field, value, "amounts by the names of resources, agents among them")
    amounts = resources(field, names_in(field, value))
    if not amounts["agents"]:
        raise InvalidValue(f"{field}.agents", 0, "a whole number from 1: how many agents may live")
    return amounts


def level_of(field: str, value: Any) -> str:
    """Check a level of logging, in upper or lower case."""
    known = logging.getLevelNamesMapping()
    if not isinstance(value, str) or value.strip().upper() not in known:
        raise InvalidValue(field, value, ", ".join(known))
    return value.strip().upper()


def choice_of(*choices: str) -> Callable[[str, Any], str]:

    def take(field: str, value: Any) -> str:
        if value not in choices:
            raise InvalidValue(field, value, " or ".join(choices))
        return str(value)

    return take


def parse_int(minimum: int, maximum: int) -> Callable[[str, Any], int]:
    """Return a check for whole numbers from `minimum` to `maximum`."""

    def take(field: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise InvalidValue(field, value, f"a whole number from {minimum} to {maximum}")
        return value

    return take


def parse_bool(field: str, value: Any) -> bool:
    """Parse true or false, also as a text: variables of the environment are texts."""
    values = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.strip().lower() not in values:
        raise InvalidValue(field, value, "true or false")
    return values[value.strip().lower()]


def list_of(check: Callable[[str, Any], str], kind: str = "names") -> Callable[[str, Any], tuple[str, ...]]:
    """Return a check for a list, or for a text that is split as in a shell.

    The text form is needed for the environment, whose variables are texts.
    """

    def take(field: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            try:
                value = shlex.split(value)
            except ValueError as problem:
                raise InvalidValue(field, value, f"{kind} as a shell takes them ({problem})") from None
        if not isinstance(value, list):
            raise InvalidValue(field, value, f"a list of {kind}")
        return tuple(check(field, each) for each in value)

    return take


def mounts_of(field: str, value: Any, base: pathlib.Path) -> tuple[str, ...]:
    """Return the folders that agents may mount, with everything below them; relative ones begin at `base`."""

    def folder(field: str, each: Any) -> str:
        return os.path.normpath(path_of(field, each, base).absolute())

    return rights.mounts(field, list_of(folder, "folders")(field, value))


def variable_of(field: str, value: Any) -> str:
    """Check the name of an environment variable that an agent may have."""
    return rights.variables(field, [value])[0]


def endpoint_of(field: str, value: Any) -> str:
    """Return an endpoint that an agent may use, in its canonical form."""
    return rights.endpoints(field, [plain_text(field, value)])[0]


def tool_of(field: str, value: Any) -> str:
    """Check the name of a tool that an agent of the type "llm" may use, or of a function of an image."""
    if value in TOOLS or (isinstance(value, str) and (_FUNCTION.match(value) or _MCP_SERVER.match(value))):
        return str(value)
    accepted = f"one of {', '.join(TOOLS)}, module:function of an image, or mcp__server with an MCP server's name"
    raise InvalidValue(field, value, accepted)


def names_in(field: str, value: Mapping[Any, Any]) -> Mapping[str, Any]:
    """Return a mapping after a check that all its keys are texts."""
    for key in value:
        if not isinstance(key, str):
            raise no_name(field, key)
    return value


def no_name(field: str, key: Any) -> InvalidValue:
    """Return the refusal of a key that is no text."""
    return InvalidValue(f"{field} key", key, "text; YAML reads on, off, yes and no as true and false")


def known_keys(field: str, value: Mapping[Any, Any], known: tuple[str, ...]) -> None:
    """Refuse an unknown key, by its dotted path."""
    for key in names_in(field, value):
        if key not in known:
            raise unknown_key(field, key, known)


def unknown_key(field: str, key: str, known: tuple[str, ...]) -> InvalidValue:
    """Return the refusal of an unknown key, with the known ones."""
    of, path = (f" of {field}", f"{field}.{key}") if field else ("", key)
    return InvalidValue(path, key, f"a key{of}: {', '.join(known)}")


def _checked_alias(field: str) -> None:
    name = checked_name(field, field.partition(".")[2])
    if name in ("inherit", "offline"):
        raise InvalidValue(field, name, "another name: this one has its own meaning")


def _model(field: str, value: Any) -> str:
    accepted = "provider:model, such as anthropic:claude-sonnet-5-5, or offline"
    if not isinstance(value, str) or value.strip() == "inherit" or _looks_so.clean(value) != value:
        raise InvalidValue(field, value, accepted)
    if value.strip() == "offline":
        return "offline"
    try:
        resolve.parse(value)
    except (InvalidValue, Unknown):
        raise InvalidValue(field, value, accepted) from None
    return value.strip()


def _path_satisfies(predicate: Callable[[pathlib.Path], bool], path: pathlib.Path) -> bool:
    try:
        return predicate(path)
    except OSError:  # a name too long
        return False
