"""Checks of rights by name: endpoints, models, ports, mounts, variables, secrets; and when one right covers another.

Every check takes the name of its field, and returns the value in its one canonical form or raises InvalidValue. No
error shows a value of a variable or a secret.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Any

from ramet.core.addresses import address_of, objection
from ramet.core.arguments import is_unicode
from ramet.core.errors import InvalidValue

MAX_ENTRIES = 256  #: of any list: a guest writes the entries, and each is compared with its parent's
MAX_NON_ASCII = 16  #: endpoints that are not ASCII: each costs the host 250 microseconds or more
MAX_PORTS = 16  #: of one policy: each needs a socket of the host while the run lives
PROXY_PORT = 3128  #: port on a sandbox's loopback on which the forwarder to its proxy listens
MAX_ENV_BYTES = 128 * 1024  #: of names and values together; Linux accepts no longer string (MAX_ARG_STRLEN)
MAX_SECRET_BYTES = 1024 * 1024  #: of all secrets together, the limit of Kubernetes
MAX_PATH_BYTES = 4095  #: PATH_MAX, less its NUL
MAX_NAME_BYTES = 255  #: NAME_MAX

_LISTS = (list, tuple, set, frozenset)

_ENDPOINT = 'host:port, such as "api.example.org:443", "*.example.org:443" or "[2001:db8::1]:443", or "*"'
_MODEL = 'provider:model, such as "anthropic:claude-sonnet-5-5" or "openai:*", or "*"'
_MODEL_NAME = re.compile(
    r"(\*|(anthropic|openai|google_genai):[A-Za-z0-9][A-Za-z0-9._:/@-]{0,199}\*?|(anthropic|openai|google_genai):\*)\Z"
)
_PORT = re.compile(r"[1-9][0-9]{0,4}\Z")
_PORTS = "names of ports with their numbers, such as {'web': 8000}"
_PORT_NAME = re.compile(r"[a-z](-?[a-z0-9]){0,14}\Z")  #: as RFC 6335 names services, and Kubernetes ports
_MAX_PORT_NAME = 15
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")  #: a last label that some resolvers read as an address
_UPPER = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}

_MOUNT = "an absolute path without '..', not the root, not /tmp, nothing of /proc, /sys, /dev or /run"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_RESERVED_TREES = ("/proc", "/sys", "/dev", "/run", "/var/run")  #: trees of the kernel, and trees that hold sockets

#: A variable of a sandbox. It names folders that Python inside imports from, after everything that is installed there.
IMPORTS = "RAMET_IMPORTS"
#: A variable of a sandbox, set by its backend: the numbers of the descriptors that its program gets, as "3" or "3,4,5".
STDIO = "RAMET_STDIO"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}\Z")
#: Variables that make a loader, an interpreter, a shell or a resolver execute or apply the setter's code or rules.
_LOADERS = re.compile(
    r"""(LD_|DYLD_|PYTHON|PERL5|RUBY|GLIBC_|MALLOC_|BASH_FUNC_|LUA_INIT|OPENSSL_).*
    | (?i:.*_PROXY)
    | ENV | BASH_ENV | BASHOPTS | SHELLOPTS | IFS | PS4 | PROMPT_COMMAND | PERLLIB | NODE_OPTIONS | NODE_PATH
    | GCONV_PATH | LOCPATH | NLSPATH | GETCONF_DIR | HOSTALIASES | LOCALDOMAIN | RES_OPTIONS | RESOLV_HOST_CONF
    | JAVA_TOOL_OPTIONS | JDK_JAVA_OPTIONS | _JAVA_OPTIONS""",
    re.VERBOSE,
)
_SECRET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")


def endpoints(field: str, entries: object) -> tuple[str, ...]:
    """Return canonical endpoints.

    An empty text matches nothing and is left out. Raises InvalidValue for an invalid endpoint.
    """
    texts = _texts(field, entries, _ENDPOINT)
    if (foreign := sum(not each.isascii() for each in texts)) > MAX_NON_ASCII:
        raise InvalidValue(field, f"{foreign} entries that are not ASCII", f"at most {MAX_NON_ASCII}, the rest as xn--")
    return tuple(dict.fromkeys(_endpoint(field, each) for each in texts if each))


def uncovered_endpoints(granted: Collection[str], requested: Collection[str]) -> list[str]:
    """Return the endpoints of `requested` that no endpoint of `granted` covers; both canonical.

    "*" covers every name and every public address. A private address in numeric form is covered only by itself: a list
    that contains it means that address, wherever it leads.
    """
    granted_suffixes = tuple(each.removeprefix("*") for each in granted if each.startswith("*."))
    lacking = [each for each in requested if each not in granted and not each.endswith(granted_suffixes)]
    return [each for each in lacking if _is_private(each)] if "*" in granted else lacking


def models(field: str, entries: object) -> tuple[str, ...]:
    """Return names of models as they are written with their providers; "*" at the end stands for any rest."""
    names = tuple(dict.fromkeys(_texts(field, entries, _MODEL)))
    for name in names:
        if not _MODEL_NAME.match(name):
            raise InvalidValue(field, name, _MODEL)
    return names


def uncovered_models(granted: Collection[str], requested: Collection[str]) -> list[str]:
    """Return the models of `requested` that no entry of `granted` covers."""
    prefixes = tuple(each[:-1] for each in granted if each.endswith("*"))
    return [each for each in requested if each not in granted and not (prefixes and each.startswith(prefixes))]


def ports(field: str, entries: object) -> dict[str, int]:
    """Return named TCP ports in the given order, from a mapping or from pairs of a name and a number.

    No name or number may occur twice. Only the host reaches a port, by its name. PROXY_PORT is not available. Raises
    InvalidValue otherwise.
    """
    ports_by_name: dict[str, int] = {}
    for name, port in _pairs(field, entries):
        if not isinstance(name, str) or len(name) > _MAX_PORT_NAME or not _PORT_NAME.match(name):
            accepted = f"names of at most {_MAX_PORT_NAME} letters a-z, digits and single '-', a letter first"
            raise InvalidValue(field, name, accepted)
        port_field = f"{field}.{name}"
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
            raise InvalidValue(port_field, port, "a whole number from 1 to 65535")
        if port == PROXY_PORT:
            raise InvalidValue(port_field, port, "another number: the forwarder to a sandbox's proxy uses this one")
        name, port = str(name), int(port)  # Plain types, not subclasses that a program defined.
        if name in ports_by_name:
            raise InvalidValue(port_field, port, f"each name once: it already has the number {ports_by_name[name]}")
        if (other_name := next((each for each, number in ports_by_name.items() if number == port), None)) is not None:
            raise InvalidValue(port_field, port, f"each number once: {other_name!r} already uses this one")
        ports_by_name[name] = port
    return ports_by_name


def mounts(field: str, entries: object) -> tuple[str, ...]:
    """Return absolute, normalized paths of the host.

    Whether they exist, and where links lead, is checked when a run starts.
    """
    return tuple(dict.fromkeys(_mount(field, each) for each in _texts(field, entries, _MOUNT)))


def uncovered_mounts(granted: Collection[str], requested: Collection[str]) -> list[str]:
    """Return the paths of `requested` that are neither in `granted` nor below one of `granted`; all normalized."""
    tops = tuple(f"{top.rstrip('/')}/" for top in granted)
    return [each for each in requested if not f"{each}/".startswith(tops)]


def variables(field: str, entries: object) -> tuple[str, ...]:
    """Return names of environment variables; a name that a loader reads raises InvalidValue."""
    return tuple(dict.fromkeys(_variable(field, each) for each in _texts(field, entries, "names of variables")))


def variable_values(field: str, entries: object) -> dict[str, str]:
    """Return environment variables with their values, checked."""
    values = _mapping(field, entries, "names of variables with their values")
    for name, value in values.items():
        _variable(field, name)
        if not isinstance(value, str) or "\0" in value or not is_unicode(value):
            raise InvalidValue(field, f"{name}={_redact(value)}", "text without NUL")
    if sum(len(name) + len(value.encode()) for name, value in values.items()) > MAX_ENV_BYTES:
        raise InvalidValue(field, f"{len(values)} variables", f"at most {MAX_ENV_BYTES} bytes together")
    return values


def secrets(field: str, entries: object) -> dict[str, str | None]:
    """Return secrets by file name.

    A list of names takes the values of the parent, as does None for a value.
    """
    if isinstance(entries, _LISTS) and all(isinstance(each, str) for each in entries):
        entries = dict.fromkeys(sorted(entries))
    values = _mapping(field, entries, "names of secrets, alone or with their values")
    for name, value in values.items():
        if not isinstance(name, str) or not _SECRET.match(name):
            raise InvalidValue(
                field, _redact(name), "file names of at most 128 letters, digits, '_', '-' and '.', no '.' first"
            )
        if value is not None and (not isinstance(value, str) or not value or not is_unicode(value)):
            raise InvalidValue(field, f"{name}={_redact(value)}", "text that is not empty, or None: the parent's")
    if sum(len(value.encode()) for value in values.values() if value is not None) > MAX_SECRET_BYTES:
        raise InvalidValue(field, f"{len(values)} secrets", f"at most {MAX_SECRET_BYTES} bytes together")
    return values


def _endpoint(field: str, text: str) -> str:
    """Return the one canonical spelling of an endpoint, so that equal endpoints compare equal."""
    if text == "*":
        return text
    host, _, port = text.rpartition(":")
    canonical = _host(host) if len(text) <= 300 and _PORT.match(port) and int(port) <= 65535 else None
    if canonical is None:
        raise InvalidValue(field, text, _ENDPOINT)
    return f"{canonical}:{port}"


def _host(host: str) -> str | None:
    if host.startswith("["):
        return _ipv6(host)
    star, name = ("*.", host[2:]) if host.startswith("*.") else ("", host)
    name = name.translate(_UPPER).removesuffix(".")
    if not name.isascii():
        try:
            encoded_name = name.encode("idna")
            # A name that does not survive the round trip has a twin: another host that a reader takes it for.
            if encoded_name.decode("idna") != name:
                return None
        except UnicodeError:
            return None
        name = encoded_name.decode("ascii")
    labels = name.split(".")
    if len(name) > 253 or not all(map(_LABEL.match, labels)):
        return None
    if _NUMBER.match(labels[-1]) and (star or not _is_ipv4(name)):
        return None
    return star + name


def _is_private(endpoint: str) -> bool:
    address = address_of(endpoint)
    return address is not None and objection(address) is not None


def _ipv6(host: str) -> str | None:
    try:
        address = ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return None
    if not host.endswith("]") or address.scope_id is not None or address.ipv4_mapped is not None:
        return None
    return f"[{address.compressed}]"


def _is_ipv4(name: str) -> bool:
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return False
    return True


def _mount(field: str, text: str) -> str:
    parts = [part for part in text.split("/") if part not in ("", ".")]
    path = "/" + "/".join(parts)
    if (
        not text.startswith("/")
        or not is_unicode(text)
        or len(text.encode()) > MAX_PATH_BYTES
        or any(part == ".." or part.startswith("~") or len(part.encode()) > MAX_NAME_BYTES for part in parts)
        or _CONTROL.search(text)
        or path in ("/", "/tmp")
        or not uncovered_mounts(_RESERVED_TREES, [path])
    ):
        raise InvalidValue(field, text, _MOUNT)
    return path


def _variable(field: str, name: object) -> str:
    if not isinstance(name, str) or not _VARIABLE.match(name):
        raise InvalidValue(field, name, "names of variables: letters, digits and '_', no digit first")
    if _LOADERS.fullmatch(name):
        raise InvalidValue(field, name, "no variable that a loader, interpreter, shell or proxy client listens to")
    return name


def _texts(field: str, entries: object, accepted: str) -> list[str]:
    if isinstance(entries, _LISTS) and len(entries) > MAX_ENTRIES:
        raise InvalidValue(field, f"{len(entries)} entries", f"at most {MAX_ENTRIES}")
    if not isinstance(entries, _LISTS) or not all(isinstance(each, str) for each in entries):
        raise InvalidValue(field, entries, f"a list of {accepted}")
    return sorted(entries) if isinstance(entries, set | frozenset) else list(entries)


def _pairs(field: str, entries: object) -> list[Any]:
    pairs: object = list(entries.items()) if isinstance(entries, Mapping) else entries
    pair = (list, tuple)
    if not isinstance(pairs, pair) or not all(isinstance(each, pair) and len(each) == 2 for each in pairs):
        raise InvalidValue(field, entries, _PORTS)
    if len(pairs) > MAX_PORTS:
        raise InvalidValue(field, f"{len(pairs)} entries", f"at most {MAX_PORTS}")
    return list(pairs)


def _mapping(field: str, entries: object, accepted: str) -> dict[Any, Any]:
    if not isinstance(entries, Mapping):
        raise InvalidValue(field, _redact(entries), accepted)
    if len(entries) > MAX_ENTRIES:
        raise InvalidValue(field, f"{len(entries)} entries", f"at most {MAX_ENTRIES}")
    return dict(entries)


def _redact(value: object) -> str:
    return f"({type(value).__name__}, not shown)"
