"""Policies and grants of a run's process.

A child's grant is its parent's, narrowed: limits are clamped and reported, rights that exceed the parent's are refused.
A `Policy` is a request: an absent field inherits, an empty one means nothing, an unknown one is an error. A `Grant` is
what a run has: every field is decided. `resolve_root_policy` and `narrow` are the only ways from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct, StructMeta, field
from msgspec.structs import force_setattr

from ramet.core.arguments import KnownFields, unknown_field
from ramet.core.errors import InvalidValue, SpawnRefused
from ramet.core.policy import mount_rights, rights
from ramet.core.policy import reservation as reservations
from ramet.core.policy.mount_rights import Mounts
from ramet.core.policy.numbers import Integer, Number
from ramet.core.policy.reservation import Reservation


class Isolation(StrEnum):
    """The isolation level between a run and the host, weakest first.

    The order of definition is the order of strength.
    """

    L0 = "L0"  #: a process of its own, nothing else
    L1 = "L1"  #: rlimits, no_new_privs, Landlock, seccomp
    L2 = "L2"  #: L1, all namespaces, a minimal root, an unprivileged uid of the host
    FRESH = "fresh"  #: L2, and no address space shared with a zygote
    L3 = "L3"  #: a kernel in user space (gVisor)
    L4 = "L4"  #: a virtual machine

    @property
    def rank(self) -> int:
        """The strength of the level as a number; greater is stronger."""
        return _RANKS[self]


_RANKS = {level: rank for rank, level in enumerate(Isolation)}

Network = Literal["disabled", "allow_list"]
T = TypeVar("T")


class _TermsMeta(KnownFields, StructMeta):
    """A metaclass of policies and grants, whose constructors name an unknown field."""


class PolicyFields(Struct, metaclass=_TermsMeta, frozen=True, kw_only=True):
    """The common base of policies and grants; neither ever shows a value of `env_vars` or `secrets`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(to_public_dict(self).items())


class Policy(PolicyFields, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A requested policy.

    Absent (None) inherits from the parent, or takes the default of a root; empty is nothing. A root's default is
    nothing, too, where a field names no other.

    Two fields differ when absent: `memory_mb` and `cpu_cores` of a child are the default, at most its parent's; and
    `secrets` of a child are none, because a secret is given only on request by name.

    A child's numbers are limits, and clamped (`retry_delay_seconds` is not a limit: it is given as requested).
    Endpoints, models, ports, mounts, variables by name, secrets, isolation and `allow_sub_agents` are rights, and
    refused.

    Every field is checked and made canonical on creation. Raises InvalidValue, naming the field. Lists and sets are
    accepted for tuples, names alone for `secrets`, text for `isolation`. `repr` never shows a value of `env_vars` or
    `secrets`.
    """

    cpu_cores: float | None = None  #: seconds of processor time in each second, such as 0.5; of a root 1.0
    memory_mb: int | None = None  #: MiB of private memory; of a root 256
    pids: int | None = None  #: processes and threads together; of a root 64
    timeout_seconds: float | None = None  #: of wall-clock time, children included; of a root 3600
    network: Network | None = None  #: absent with endpoints given: allow_list; of a root disabled
    allowed_endpoints: Sequence[str] | None = None  #: host:port; "*.example.org:443" by label, "*" any public endpoint
    #: What its programs may ask through the host, as "anthropic:claude-sonnet-5-5", "openai:*" or "*".
    models: Sequence[str] | None = None
    ports: Mapping[str, int] | Sequence[tuple[str, int]] | None = None  #: by name, TCP ports that the host may reach
    readonly_mounts: Sequence[str] | None = None  #: absolute paths of the host, seen inside at the same path
    writable_mounts: Sequence[str] | None = None  #: likewise, folders; of nested mounts the innermost decides
    tmpfs_size_mb: int | None = None  #: MiB of /tmp and of /dev/shm, each; of a root 64
    workspace_size_mb: int | None = None  #: MiB of the run's own folder, its working directory; of a root 256
    max_output_bytes: int | None = None  #: of result and artifacts; of stdout and stderr each; of a root 16 MiB
    allowed_env_vars: Sequence[str] | None = None  #: names taken from the host's environment
    env_vars: Mapping[str, str] | None = None  #: further variables, by value
    secrets: Mapping[str, str | None] | Sequence[str] | None = None  #: files in /run/secrets; None: the parent's value
    allow_sub_agents: bool | None = None  #: of a root False
    max_sub_agent_depth: int | None = None  #: levels below this run; of a root 3
    #: Children that this run may start in its lifetime; a conversation in one turn, and no more live concurrently.
    #: Of a root 10.
    max_sub_agents: int | None = None
    isolation: Isolation | None = None  #: the minimum that is accepted; of a root any
    retry_count: int | None = None  #: further attempts after a failed one; of a root 0
    retry_delay_seconds: float | None = None  #: between attempts; of a root 1.0
    reservation: Reservation | None = None  #: shared with other runs; a child has its parent's, and no other

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is not None:
                force_setattr(self, name, check(f"policy.{name}", value))
        if self.allowed_endpoints and self.network == "disabled":
            raise InvalidValue("policy.network", self.network, "'allow_list' where allowed_endpoints has entries")
        if self.allowed_endpoints is not None and self.network is None:
            force_setattr(self, "network", "allow_list")
        if both := {*(self.readonly_mounts or ())}.intersection(self.writable_mounts or ()):
            raise InvalidValue("policy.writable_mounts", min(both), "no folder that readonly_mounts has, too")


class Grant(PolicyFields, frozen=True, kw_only=True):
    """The effective rights and limits of a run: every field of a policy, decided by the host.

    No variable is in both fields for variables.
    """

    cpu_cores: float = 1.0
    memory_mb: int = 256
    pids: int = 64
    timeout_seconds: float = 3600.0
    allowed_endpoints: tuple[str, ...] = ()  #: empty: no network
    models: tuple[str, ...] = ()  #: empty: none
    ports: dict[str, int] = field(default_factory=dict)  #: on its own loopback, reached from the host alone
    readonly_mounts: tuple[str, ...] = ()
    writable_mounts: tuple[str, ...] = ()
    tmpfs_size_mb: int = 64
    workspace_size_mb: int = 256
    max_output_bytes: int = 16 * 1024 * 1024
    allowed_env_vars: tuple[str, ...] = ()
    env_vars: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    allow_sub_agents: bool = False
    max_sub_agent_depth: int = 3
    max_sub_agents: int = 10
    isolation: Isolation = Isolation.L0
    retry_count: int = 0
    retry_delay_seconds: float = 1.0
    reservation: Reservation | None = None

    @property
    def mounts(self) -> Mounts:
        """Return the mounts of both kinds; a path in both lists is read-only."""
        return Mounts(
            self.readonly_mounts, tuple(each for each in self.writable_mounts if each not in self.readonly_mounts)
        )


#: The grant of an agent that requests nothing.
DEFAULTS = Grant()


class ClampedLimit(NamedTuple):
    """A limit that was requested above the parent's, and the value that was given."""

    field: str
    requested: float
    granted: float


def _isolation(field: str, value: object) -> Isolation:
    try:
        return Isolation(value)  # type: ignore[arg-type]  # whatever it is: what is no level is refused
    except ValueError:
        raise InvalidValue(field, value, f"one of {', '.join(Isolation)}") from None


def _network(field: str, value: object) -> Network:
    if value == "disabled" or value == "allow_list":
        return value
    raise InvalidValue(field, value, "'disabled' or 'allow_list'")


def _boolean(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue(field, value, "True or False")
    return value


#: The fields that are clamped. None accepts 0 if 0 means "unlimited" (a tmpfs) or leaves nothing to run with.
_LIMITS: dict[str, Integer | Number] = {
    "cpu_cores": Number(0.01, 4096),  # the least quota of a cgroup is 1 ms of 100 ms
    "memory_mb": Integer(1, 2**24),
    "pids": Integer(1, 2**22),  # PID_MAX_LIMIT of Linux
    "timeout_seconds": Number(0.001, 366 * 86400),
    "tmpfs_size_mb": Integer(1, 2**24),
    "workspace_size_mb": Integer(1, 2**24),
    "max_output_bytes": Integer(1, 2**40),
    "max_sub_agent_depth": Integer(0, 1000),
    "max_sub_agents": Integer(0, 10**6),
}

#: The names of the fields that are clamped.
LIMIT_FIELDS: tuple[str, ...] = tuple(_LIMITS)

_CHECKS: dict[str, Callable[[str, object], object]] = {
    **_LIMITS,
    "retry_count": Integer(0, 1000),
    "retry_delay_seconds": Number(0, 86400),
    "network": _network,
    "allowed_endpoints": rights.endpoints,
    "models": rights.models,
    "ports": rights.ports,
    "readonly_mounts": rights.mounts,
    "writable_mounts": mount_rights.writable_mounts,
    "allowed_env_vars": rights.variables,
    "env_vars": rights.variable_values,
    "secrets": rights.secrets,
    "allow_sub_agents": _boolean,
    "isolation": _isolation,
    "reservation": reservations.parse_reservation,
}


def resolve_root_policy(policy: Policy, *, allow_mounts: Collection[str] | None = None) -> Grant:
    """Return the grant of a root: the requested fields, else the defaults.

    With `allow_mounts=None` the caller decides on mounts. Otherwise SpawnRefused is raised for a mount that is neither
    one of `allow_mounts` nor below one, and for every writable mount.

    Raises InvalidValue if a secret has no value: a root has no parent to take it from.
    """
    requested = {name: getattr(policy, name) for name in Grant.__struct_fields__ if getattr(policy, name) is not None}
    values = msgspec.structs.asdict(DEFAULTS) | requested
    secrets = cast("Mapping[str, str | None]", values["secrets"])
    if None in secrets.values():  # A list of values, given by mistake, would be taken as names: so they are not shown.
        reason = "a value for each name: a root has no parent to take it from"
        raise InvalidValue("policy.secrets", "(a name without a value, not shown)", reason)
    if allow_mounts is not None:
        _refuse("readonly_mounts", rights.uncovered_mounts(allow_mounts, values["readonly_mounts"]))
        _refuse("writable_mounts", values["writable_mounts"])
    return Grant(
        **values | _environment(values["allowed_env_vars"], values["env_vars"], {}) | {"secrets": dict(secrets)}
    )


def narrow(
    parent: Grant, requested: Policy, *, seconds_left: float | None = None
) -> tuple[Grant, tuple[ClampedLimit, ...]]:
    """Return the grant of a child of `parent`, and the limits that were clamped.

    Limits above the parent's become the parent's and are listed. Absent memory or CPU is the agent default, at most the
    parent's; absent secrets are none; any other absent field is the parent's. `seconds_left` of the parent's time
    bounds the child's. A secret has the parent's value, whatever the child says. Retries are not a limit: the time of
    the child bounds them.

    Raises SpawnRefused with `limit="policy.<field>"` if the parent lacks a right (a mount, variable, endpoint, model,
    port, secret, a lower isolation, sub-agents), and if no time or no level is left. Whether and how many children the
    parent may start is checked elsewhere.
    """
    limits, clamped_limits = _limits(parent, requested, seconds_left)
    endpoints = _inherit(
        () if requested.network == "disabled" else requested.allowed_endpoints, parent.allowed_endpoints
    )
    models = _inherit(requested.models, parent.models)
    ports = cast("Mapping[str, int]", _inherit(requested.ports, parent.ports))
    mounts = mount_rights.child_mounts(parent.mounts, requested.readonly_mounts, requested.writable_mounts)
    names = _inherit(requested.allowed_env_vars, parent.allowed_env_vars)
    values = _inherit(requested.env_vars, parent.env_vars)
    secrets = _inherit(requested.secrets, ())
    parent_names = {*parent.allowed_env_vars, *parent.env_vars}
    _refuse("allowed_endpoints", rights.uncovered_endpoints(parent.allowed_endpoints, endpoints))
    _refuse("models", rights.uncovered_models(parent.models, models))
    _refuse("ports", [f"{name}={port}" for name, port in ports.items() if parent.ports.get(name) != port])
    _refuse("readonly_mounts", rights.uncovered_mounts(parent.mounts.paths, mounts.readonly))
    _refuse("writable_mounts", [each for each in mounts.writable if not parent.mounts.is_writable(each)])
    _refuse("allowed_env_vars", [name for name in names if name not in parent_names])
    _refuse("env_vars", [name for name in values if name not in parent_names])
    _refuse("secrets", [name for name in secrets if name not in parent.secrets])
    _refuse("allow_sub_agents", ["True"] if requested.allow_sub_agents and not parent.allow_sub_agents else [])
    is_other_reservation = requested.reservation is not None and requested.reservation != parent.reservation
    _refuse(
        "reservation",
        [requested.reservation.name] if requested.reservation is not None and is_other_reservation else [],
    )
    isolation = _inherit(requested.isolation, parent.isolation)
    _refuse("isolation", [isolation] if isolation.rank < parent.isolation.rank else [])
    child = Grant(
        **limits,
        **_environment(names, values, parent.env_vars),
        allowed_endpoints=tuple(endpoints),
        models=tuple(models),
        ports=dict(ports),
        readonly_mounts=mounts.readonly,
        writable_mounts=mounts.writable,
        secrets={name: parent.secrets[name] for name in secrets},
        allow_sub_agents=_inherit(requested.allow_sub_agents, parent.allow_sub_agents),
        isolation=isolation,
        retry_count=_inherit(requested.retry_count, parent.retry_count),
        retry_delay_seconds=_inherit(requested.retry_delay_seconds, parent.retry_delay_seconds),
        reservation=parent.reservation,
    )
    return child, clamped_limits


def from_json(data: bytes | str | Mapping[str, Any]) -> Policy:
    """Parse a policy from JSON or plain data.

    Raises InvalidValue, naming the field, if a field is invalid or unknown.
    """
    fields = data
    if isinstance(data, bytes | str):
        try:
            fields = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
            raise InvalidValue("policy", f"a text of length {len(data)}", f"JSON ({problem})") from None
    if not isinstance(fields, Mapping):
        raise InvalidValue("policy", f"a {type(fields).__name__}", "an object with the fields of a policy")
    for name in fields:
        if name not in Policy.__struct_fields__:
            raise unknown_field(f"policy.{name}", name, Policy.__struct_fields__)
    return Policy(**fields)


def to_json(policy: Policy) -> bytes:
    """Encode a policy as JSON that `from_json` reads back to an equal one.

    The JSON holds values of secrets: never write it to a log.
    """
    return msgspec.json.encode(policy)


def secrets_of(policy: Policy | None) -> dict[str, str]:
    """Return the secrets of a policy by value, which no journal keeps."""
    secrets = policy.secrets if policy is not None else None
    return {name: value for name, value in secrets.items() if value} if isinstance(secrets, dict) else {}


def variables_of(policy: Policy | None) -> dict[str, str]:
    """Return the variables of a policy by value, which no journal keeps."""
    return dict(policy.env_vars or {}) if policy is not None else {}


def to_public_dict(fields: PolicyFields) -> dict[str, Any]:
    """Return a policy or a grant as plain data for events and logs, with only the names of variables and secrets."""
    plain: dict[str, Any] = {}
    for name in fields.__struct_fields__:
        value = getattr(fields, name)
        if isinstance(value, Mapping):
            plain[name] = dict(value) if name == "ports" else sorted(value)
        elif isinstance(value, tuple):
            plain[name] = list(value)
        elif isinstance(value, Reservation):
            plain[name] = {field: each for field, each in msgspec.structs.asdict(value).items() if each is not None}
        elif value is not None:
            plain[name] = str(value) if isinstance(value, Isolation) else value
    return plain


def _limits(
    parent: Grant, requested_policy: Policy, seconds_left: float | None
) -> tuple[dict[str, Any], tuple[ClampedLimit, ...]]:
    """Return every limit of a child, and the limits that were clamped."""
    maxima = {name: getattr(parent, name) for name in _LIMITS}
    maxima["max_sub_agent_depth"] -= 1
    if maxima["max_sub_agent_depth"] < 0:
        raise SpawnRefused("policy.max_sub_agent_depth", "no level below this agent is allowed", free=0)
    if seconds_left is not None:
        if not seconds_left > 0:
            raise SpawnRefused("policy.timeout_seconds", "its parent has no time left", free=0)
        maxima["timeout_seconds"] = min(maxima["timeout_seconds"], seconds_left)
    requested = {name: getattr(requested_policy, name) for name in _LIMITS}
    defaults = maxima | {name: min(getattr(DEFAULTS, name), maxima[name]) for name in ("cpu_cores", "memory_mb")}
    effective = {
        name: defaults[name] if requested[name] is None else min(requested[name], maxima[name]) for name in _LIMITS
    }
    exceeded_names = (name for name in _LIMITS if requested[name] is not None and requested[name] > maxima[name])
    return effective, tuple(ClampedLimit(name, requested[name], effective[name]) for name in exceeded_names)


def _environment(names: Sequence[str], values: Mapping[str, str], parent_values: Mapping[str, str]) -> dict[str, Any]:
    """Return both fields for variables.

    If the run above has a name by value, the name means that value, never the host's.
    """
    by_value = {name: parent_values[name] for name in names if name in parent_values} | dict(values)
    return {"allowed_env_vars": tuple(name for name in names if name not in by_value), "env_vars": by_value}


def _inherit(requested: T | None, parent_value: T) -> T:
    return parent_value if requested is None else requested


def _refuse(field_name: str, lacking: Sequence[str]) -> None:
    """Raise SpawnRefused naming the first few of what the parent lacks, if it lacks anything."""
    if lacking:
        listing = ", ".join(each[:100] for each in lacking[:5]) + (", …" if len(lacking) > 5 else "")
        raise SpawnRefused(f"policy.{field_name}", f"more than its parent has: {listing}")
