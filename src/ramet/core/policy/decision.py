"""The request to a policy adapter at a spawn, its possible answers, and how an answer narrows a grant.

An answer never widens: `clamp_grant` intersects rights and takes the smaller of two limits, whatever the answer says.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from ramet.core.errors import InvalidValue
from ramet.core.limits import NO_LIMITS, Limits
from ramet.core.policy import rights
from ramet.core.policy.mount_rights import clamp_mounts
from ramet.core.policy.policy import LIMIT_FIELDS, Grant, Policy

#: The number of characters of a reason that are recorded.
MAX_REASON: Final = 1_000
#: The number of characters of a prompt that an adapter is shown.
MAX_PROMPT: Final = 10_000


class PolicyRequest(Struct, frozen=True, kw_only=True):
    """A requested spawn, as plain data for JSON.

    The request holds names of variables and secrets, never their values.
    """

    agent: str  #: name of the definition, or of the function
    name: str = ""  #: the name under which the new run is to be addressed
    root: str = ""  #: id of the tree; empty if a root is to be spawned
    parent: str = ""  #: id of the run that requests the spawn; empty for a root
    parent_agent: str = ""
    parent_path: str = ""
    depth: int = 0  #: of the new run: 0 for a root
    session: str = ""
    prompt: str = ""  #: the first characters
    mode: str = "fresh"  #: fresh | fork
    model: str = ""  #: requested by name; empty: the object of the definition, or the model of the parent
    tools: tuple[str, ...] = ()  #: names; for a root, the tools of its definition
    background: bool = False
    detached: bool = False
    limits: dict[str, Any] = {}  #: limits of its budget, after narrowing
    asked: dict[str, Any] | None = None  #: the requested policy; None: no policy was requested
    inherited: dict[str, Any] | None = None  #: the grant of the run above; None: that run works in the host
    granted: dict[str, Any] | None = None  #: the grant of the new run if it is allowed; None: it works in the host


class Allow(Struct, frozen=True):
    """An answer that allows the spawn unchanged."""

    reason: str = ""


class Narrow(Struct, frozen=True, kw_only=True):
    """An answer that allows the spawn with less: at most this policy, and at most these limits of its budget.

    An absent field of `policy` leaves the grant unchanged. A number is the maximum. A list holds the entries that may
    remain. `allow_sub_agents=False` takes the right away. `isolation` is the minimum. A run that would work in the host
    works in a sandbox with this policy.

    Raises InvalidValue if a field cannot narrow: values of variables and secrets, a delay, a reservation.
    """

    policy: Policy | None = None
    limits: Limits = NO_LIMITS
    reason: str = ""

    def __post_init__(self) -> None:
        check_narrow(self)


class Refuse(Struct, frozen=True):
    """An answer that refuses the spawn. The requesting run receives the reason."""

    reason: str


PolicyAnswer = Allow | Narrow | Refuse


class PolicyDecision(NamedTuple):
    """The answer of an adapter.

    If the adapter gave none, `failure` says what went wrong, and `answer` is a Refuse.
    """

    adapter: str
    answer: PolicyAnswer
    failure: str = ""


def check_narrow(answer: Narrow) -> None:
    """Raise InvalidValue, naming the field, if an answer cannot narrow."""
    policy, limits = answer.policy, answer.limits
    if policy is not None and not isinstance(policy, Policy):
        raise InvalidValue("narrow.policy", policy, "a ramet.Policy, or None")
    if not isinstance(limits, Limits):
        raise InvalidValue("narrow.limits", limits, "ramet.Limits")
    if policy is None:
        return
    if policy.env_vars:
        accepted = "names in allowed_env_vars: an answer sets no values"
        raise InvalidValue("narrow.policy.env_vars", sorted(policy.env_vars), accepted)
    if isinstance(policy.secrets, dict) and any(value is not None for value in policy.secrets.values()):
        raise InvalidValue("narrow.policy.secrets", "(values, not shown)", "names alone: an answer sets no values")
    for field in ("retry_delay_seconds", "reservation"):
        if getattr(policy, field) is not None:
            raise InvalidValue(f"narrow.policy.{field}", getattr(policy, field), "nothing: it cannot be narrowed")


def clamp_grant(grant: Grant, maximum: Policy) -> Grant:
    """Return the grant, narrowed to this policy; an absent field of the policy leaves the field of the grant."""
    changes: dict[str, Any] = {}
    for name in (*LIMIT_FIELDS, "retry_count"):
        if (limit := getattr(maximum, name)) is not None:
            changes[name] = min(getattr(grant, name), limit)
    if maximum.network == "disabled":
        changes["allowed_endpoints"] = ()
    elif maximum.allowed_endpoints is not None:
        changes["allowed_endpoints"] = _intersection(
            grant.allowed_endpoints, tuple(maximum.allowed_endpoints), rights.uncovered_endpoints
        )
    if maximum.models is not None:
        changes["models"] = _intersection(grant.models, tuple(maximum.models), rights.uncovered_models)
    if maximum.ports is not None:
        ports = dict(maximum.ports)
        changes["ports"] = {name: port for name, port in grant.ports.items() if ports.get(name) == port}
    mounts = clamp_mounts(grant.mounts, maximum.readonly_mounts, maximum.writable_mounts)
    changes["readonly_mounts"], changes["writable_mounts"] = mounts
    if maximum.allowed_env_vars is not None or maximum.env_vars is not None:
        names = set(maximum.allowed_env_vars or ())
        changes["allowed_env_vars"] = tuple(name for name in grant.allowed_env_vars if name in names)
        changes["env_vars"] = {name: value for name, value in grant.env_vars.items() if name in names}
    if maximum.secrets is not None:
        changes["secrets"] = {name: value for name, value in grant.secrets.items() if name in maximum.secrets}
    if maximum.allow_sub_agents is False:
        changes["allow_sub_agents"] = False
    if maximum.isolation is not None and maximum.isolation.rank > grant.isolation.rank:
        changes["isolation"] = maximum.isolation
    return msgspec.structs.replace(grant, **changes)


def _intersection(
    granted_items: tuple[str, ...], allowed_items: tuple[str, ...], find_uncovered: Any
) -> tuple[str, ...]:
    """Return the common coverage of both lists: the entries of either list that the other list covers."""
    covered_items = [each for each in granted_items if not find_uncovered(allowed_items, [each])]
    return tuple(
        dict.fromkeys([*covered_items, *(each for each in allowed_items if not find_uncovered(granted_items, [each]))])
    )
