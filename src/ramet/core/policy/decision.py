"""What a policy adapter is asked at a birth, what it may answer, and how an answer narrows a grant.

An answer never widens: `within` intersects rights and takes the smaller of two limits, whatever the answer says.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from ramet.core.budget import NO_LIMITS, Limits
from ramet.core.errors import InvalidValue
from ramet.core.policy import rights
from ramet.core.policy.policy import LIMIT_FIELDS, Grant, Policy

#: Characters of a reason that are recorded.
MAX_REASON: Final = 1_000
#: Characters of a prompt that an adapter is shown.
MAX_PROMPT: Final = 10_000


class PolicyRequest(Struct, frozen=True, kw_only=True):
    """A birth that is asked for. Plain data, which JSON can hold: of variables and secrets it has names, no values."""

    agent: str  #: name of the definition, or of the function
    name: str = ""  #: that the newborn is to be addressed by
    root: str = ""  #: id of the tree; empty where a root is to be born
    parent: str = ""  #: id of the run that asks; empty for a root
    parent_agent: str = ""
    parent_path: str = ""
    depth: int = 0  #: of the newborn: 0 for a root
    session: str = ""
    prompt: str = ""  #: the first characters
    mode: str = "fresh"  #: fresh | fork
    model: str = ""  #: asked for by name; empty: the definition's object, or the parent's
    tools: tuple[str, ...] = ()  #: names; of a root, those of its definition
    background: bool = False
    detached: bool = False
    limits: dict[str, Any] = {}  #: of its budget, after narrowing
    asked: dict[str, Any] | None = None  #: the policy as it was asked for; None: none was
    inherited: dict[str, Any] | None = None  #: what the run above may do; None: that one works in the host
    granted: dict[str, Any] | None = None  #: what the newborn gets if it is allowed; None: it works in the host


class Allow(Struct, frozen=True):
    """Let the birth go on as it is."""

    reason: str = ""


class Narrow(Struct, frozen=True, kw_only=True):
    """Let the birth go on with less: at most this policy, and at most these limits of its budget.

    A field of `policy` that is absent leaves what there is. A number is the most; a list holds all that is left of what
    there is; `allow_sub_agents=False` takes the right away; `isolation` is the least. A run that would work in the host
    works in a sandbox with this policy.

    Raises InvalidValue for a field that cannot narrow: values of variables and secrets, a delay, a reservation.
    """

    policy: Policy | None = None
    limits: Limits = NO_LIMITS
    reason: str = ""

    def __post_init__(self) -> None:
        check_narrow(self)


class Refuse(Struct, frozen=True):
    """Let nothing be born. The run that asks is told the reason."""

    reason: str


PolicyAnswer = Allow | Narrow | Refuse


class PolicyDecision(NamedTuple):
    """The answer of an adapter. `failure` says what went wrong where the adapter gave none: `answer` is a Refuse."""

    adapter: str
    answer: PolicyAnswer
    failure: str = ""


def check_narrow(answer: Narrow) -> None:
    """Raise InvalidValue, which names the field, for an answer that cannot narrow."""
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


def within(grant: Grant, most: Policy) -> Grant:
    """Return a grant that is at most this policy; an absent field of the policy leaves the grant's."""
    less: dict[str, Any] = {}
    for name in (*LIMIT_FIELDS, "retry_count"):
        if (bound := getattr(most, name)) is not None:
            less[name] = min(getattr(grant, name), bound)
    if most.network == "disabled":
        less["allowed_endpoints"] = ()
    elif most.allowed_endpoints is not None:
        less["allowed_endpoints"] = _common(
            grant.allowed_endpoints, tuple(most.allowed_endpoints), rights.uncovered_endpoints
        )
    if most.ports is not None:
        ports = dict(most.ports)
        less["ports"] = {name: port for name, port in grant.ports.items() if ports.get(name) == port}
    if most.readonly_mounts is not None:
        less["readonly_mounts"] = _common(grant.readonly_mounts, tuple(most.readonly_mounts), rights.uncovered_mounts)
    if most.allowed_env_vars is not None or most.env_vars is not None:
        names = set(most.allowed_env_vars or ())
        less["allowed_env_vars"] = tuple(name for name in grant.allowed_env_vars if name in names)
        less["env_vars"] = {name: value for name, value in grant.env_vars.items() if name in names}
    if most.secrets is not None:
        less["secrets"] = {name: value for name, value in grant.secrets.items() if name in most.secrets}
    if most.allow_sub_agents is False:
        less["allow_sub_agents"] = False
    if most.isolation is not None and most.isolation.rank > grant.isolation.rank:
        less["isolation"] = most.isolation
    return msgspec.structs.replace(grant, **less)


def _common(held: tuple[str, ...], most: tuple[str, ...], uncovered: Any) -> tuple[str, ...]:
    """Return what both lists cover: entries of either that the other one covers."""
    kept = [each for each in held if not uncovered(most, [each])]
    return tuple(dict.fromkeys([*kept, *(each for each in most if not uncovered(held, [each]))]))
