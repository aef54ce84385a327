"""The operator's rules: what agents that are asked for over HTTP may have of the server's machine."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from ramet.core.errors import InvalidValue, SpawnRefused
from ramet.core.policy import rights
from ramet.core.policy.policy import Grant, Policy, resolve_root_policy
from ramet.host.egress.addresses import is_own_endpoint
from ramet.isolation.mounts import roots_of, sources_of

WEEK_S: Final = 7 * 86_400.0
#: A failed agent holds nothing of its team, but its folder and, while the server lives, its conversation.
MOST_FAILED: Final = 100
_MOST_SHOWN: Final = 5


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The operator's limits on what agents get of the host. None sets no limit.

    Without a rule for `sandboxed` an agent works in a sandbox as soon as something of it touches the machine.
    """

    agents: int | None = None  #: that hold a part at once, of all teams
    sandboxed: bool | None = None  #: True: every agent. False: only those that are asked for with a policy
    mounts: Collection[str] | None = ()  #: folders, with all below
    variables: Collection[str] | None = ()  #: of the server's own environment
    endpoints: Collection[str] | None = None  #: canonical; None: every public one, as "*"
    backends: Collection[str] | None = None  #: by one of which the server makes its sandboxes
    models: Collection[str] | None = None  #: that agents, and all below them, may ask
    tools: Collection[str] | None = None  #: that agents of the type "llm" may have
    bundles: Literal["operator", "teams"] = "operator"  #: who may upload them
    failed_agents: int = MOST_FAILED  #: of a team, that stay to be looked at; beyond that the oldest go
    keep_failed_s: float = WEEK_S  #: that a failed agent may be kept

    @cached_property
    def mount_roots(self) -> Mapping[str, str]:
        """The real paths of the mounts. Symbolic links are followed here, once, and never below a mount."""
        return roots_of(map(os.path.normpath, self.mounts or ()))

    def policy_of(self, policy: Policy | None, *, needs_sandbox: bool) -> Policy | None:
        """Return the policy that an agent works by, which asked for `policy`; None is to work in the host."""
        if policy is not None or self.sandboxed is False:
            return policy
        return Policy() if needs_sandbox or self.sandboxed else None

    def grant_of(self, policy: Policy | None) -> Grant | None:
        """Return what a policy comes to on this server. Raises InvalidValue, SpawnRefused."""
        if policy is None:
            return None
        grant = resolve_root_policy(policy)
        if self.mounts is not None:
            self._check_mounts(self.mounts, grant.readonly_mounts)
        self._check_endpoints(grant.allowed_endpoints)
        if self.variables is not None:
            refused = [name for name in grant.allowed_env_vars if name not in self.variables]
            if refused:
                why = f"more of the environment than this server gives: {_listed(refused)}"
                raise SpawnRefused("policy.allowed_env_vars", f"{why}; rules.variables: {_listed(self.variables)}")
        return grant

    def _check_mounts(self, allowed: Collection[str], asked: Collection[str]) -> None:
        """Raise SpawnRefused for a mount outside of those allowed, or led out of them by a symbolic link."""
        field, accepted = "policy.readonly_mounts", f"rules.mounts: {_listed(allowed)}"
        if refused := rights.uncovered_mounts(allowed, asked):
            raise SpawnRefused(field, f"more of the host than this server gives: {_listed(refused)}; {accepted}")
        try:
            sources_of(asked, self.mount_roots, "")
        except InvalidValue as problem:
            raise SpawnRefused(field, f"{problem.value}: {problem.accepted}; {accepted}") from problem

    def _check_endpoints(self, asked: Collection[str]) -> None:
        """Raise SpawnRefused for an endpoint outside of those allowed.

        A private address, or one of this machine, is allowed only where it is listed by its number.
        """
        allowed = ("*",) if self.endpoints is None else self.endpoints
        lacking = rights.uncovered_endpoints(allowed, asked)
        refused = lacking or [each for each in asked if each not in allowed and is_own_endpoint(each)]
        if refused:
            accepted = "any public one" if "*" in allowed else _listed(allowed)
            if more := [each for each in allowed if each != "*"] if "*" in allowed else []:
                accepted += f", {_listed(more)}"
            why = f"more of the network than this server gives: {_listed(refused)}"
            raise SpawnRefused("policy.allowed_endpoints", f"{why}; rules.endpoints: {accepted}")

    def check_backend(self, name: str) -> None:
        """Raise InvalidValue for the name of a backend that is not among `backends`."""
        if self.backends is not None and name not in self.backends:
            raise InvalidValue("backend", name, f"a backend of rules.backends: {_listed(self.backends)}")

    def check_model(self, field: str, name: str) -> None:
        """Raise InvalidValue for the name of a model that is not among `models`."""
        if self.models is not None and name not in self.models:
            raise InvalidValue(field, name, f"a model of rules.models: {_listed(self.models)}")

    def check_tools(self, field: str, names: Iterable[str]) -> None:
        """Raise InvalidValue for the first tool that is not among `tools`."""
        if self.tools is None:
            return
        for name in names:
            if name not in self.tools:
                raise InvalidValue(field, name, f"a tool of rules.tools: {_listed(self.tools)}")


def _listed(names: Collection[str]) -> str:
    shown = [each[:100] for each in list(names)[:_MOST_SHOWN]]
    more = [f"and {len(names) - _MOST_SHOWN} more"] if len(names) > _MOST_SHOWN else []
    return ", ".join([*shown, *more]) or "none"
