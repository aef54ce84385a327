"""The operator's rules: the limits on the server's machine for agents that are requested over HTTP."""

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
from ramet.isolation.writable_mounts.refusals import check_writable

WEEK_S: Final = 7 * 86_400.0
#: A failed agent holds no part of its team. It keeps its folder and, until the server ends, its conversation.
MOST_FAILED: Final = 100
_MOST_SHOWN: Final = 5


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The operator's limits on the use of the host by agents. None sets no limit.

    Without a rule for `sandboxed`, an agent runs in a sandbox as soon as a part of it touches the machine.
    """

    agents: int | None = None  #: agents of all teams that hold a part concurrently
    sandboxed: bool | None = None  #: True: every agent. False: only agents that are requested with a policy
    mounts: Collection[str] | None = ()  #: folders, with everything below them
    writable_mounts: Collection[str] | None = ()  #: folders likewise, to which agents may also write
    variables: Collection[str] | None = ()  #: variables of the server's own environment
    endpoints: Collection[str] | None = None  #: canonical; None: every public endpoint, like "*"
    backends: Collection[str] | None = None  #: the allowed backends of the server's sandboxes
    models: Collection[str] | None = None  #: models that agents, and all below them, may use
    tools: Collection[str] | None = None  #: tools that agents of the type "llm" may have
    bundles: Literal["operator", "teams"] = "operator"  #: who may upload bundles
    failed_agents: int = MOST_FAILED  #: failed agents that a team keeps; beyond that the oldest are removed
    keep_failed_s: float = WEEK_S  #: seconds for which a failed agent may be kept

    @cached_property
    def mount_roots(self) -> Mapping[str, str]:
        """The real paths of the mounts. Symbolic links are followed here, once, and never below a mount."""
        return roots_of(map(os.path.normpath, (*(self.mounts or ()), *(self.writable_mounts or ()))))

    def policy_of(self, policy: Policy | None, *, needs_sandbox: bool) -> Policy | None:
        """Return the policy for an agent that requested `policy`; None means that it runs in the host."""
        if policy is not None or self.sandboxed is False:
            return policy
        return Policy() if needs_sandbox or self.sandboxed else None

    def grant_of(self, policy: Policy | None) -> Grant | None:
        """Return the grant for a policy on this server. Raises InvalidValue, SpawnRefused."""
        if policy is None:
            return None
        grant = resolve_root_policy(policy)
        writable = self.writable_mounts
        if self.mounts is not None:
            self._check_mounts("mounts", (*self.mounts, *(writable or ())), grant.readonly_mounts)
        if writable is not None:
            check_writable(self._check_mounts("writable_mounts", writable, grant.writable_mounts), "")
        self._check_endpoints(grant.allowed_endpoints)
        if self.models is not None and (refused := rights.uncovered_models(self.models, grant.models)):
            why = f"more models than this server gives: {_join_names(refused)}"
            raise SpawnRefused("policy.models", f"{why}; rules.models: {_join_names(self.models)}")
        if self.variables is not None:
            refused = [name for name in grant.allowed_env_vars if name not in self.variables]
            if refused:
                why = f"more of the environment than this server gives: {_join_names(refused)}"
                raise SpawnRefused("policy.allowed_env_vars", f"{why}; rules.variables: {_join_names(self.variables)}")
        return grant

    def _check_mounts(
        self, rule: Literal["mounts", "writable_mounts"], allowed_mounts: Collection[str], mounts: Collection[str]
    ) -> Mapping[str, str]:
        """Return the sources of mounts.

        Raises SpawnRefused for a mount that is not below an allowed one, or that a symbolic link leads out of it.
        """
        right = "readonly_mounts" if rule == "mounts" else rule
        field, accepted = f"policy.{right}", f"rules.{rule}: {_join_names(allowed_mounts)}"
        if uncovered := rights.uncovered_mounts(allowed_mounts, mounts):
            raise SpawnRefused(field, f"more of the host than this server gives: {_join_names(uncovered)}; {accepted}")
        try:
            return sources_of(mounts, self.mount_roots, "", right)
        except InvalidValue as problem:
            raise SpawnRefused(field, f"{problem.value}: {problem.accepted}; {accepted}") from problem

    def _check_endpoints(self, endpoints: Collection[str]) -> None:
        """Raise SpawnRefused for an endpoint that is not allowed.

        A private address, or an address of this machine, is allowed only if it is listed by its number.
        """
        allowed_endpoints = ("*",) if self.endpoints is None else self.endpoints
        lacking = rights.uncovered_endpoints(allowed_endpoints, endpoints)
        refused = lacking or [each for each in endpoints if each not in allowed_endpoints and is_own_endpoint(each)]
        if refused:
            accepted = "any public one" if "*" in allowed_endpoints else _join_names(allowed_endpoints)
            if more := [each for each in allowed_endpoints if each != "*"] if "*" in allowed_endpoints else []:
                accepted += f", {_join_names(more)}"
            why = f"more of the network than this server gives: {_join_names(refused)}"
            raise SpawnRefused("policy.allowed_endpoints", f"{why}; rules.endpoints: {accepted}")

    def check_backend(self, name: str) -> None:
        """Raise InvalidValue for the name of a backend that is not in `backends`."""
        if self.backends is not None and name not in self.backends:
            raise InvalidValue("backend", name, f"a backend of rules.backends: {_join_names(self.backends)}")

    def check_model(self, field: str, name: str) -> None:
        """Raise InvalidValue for the name of a model that is not in `models`."""
        if self.models is not None and name not in self.models:
            raise InvalidValue(field, name, f"a model of rules.models: {_join_names(self.models)}")

    def check_tools(self, field: str, names: Iterable[str]) -> None:
        """Raise InvalidValue for the first tool that is not in `tools`."""
        if self.tools is None:
            return
        for name in names:
            if name not in self.tools:
                raise InvalidValue(field, name, f"a tool of rules.tools: {_join_names(self.tools)}")


def _join_names(names: Collection[str]) -> str:
    shown_names = [each[:100] for each in list(names)[:_MOST_SHOWN]]
    more = [f"and {len(names) - _MOST_SHOWN} more"] if len(names) > _MOST_SHOWN else []
    return ", ".join([*shown_names, *more]) or "none"
