"""The checks of a spawn request, before anything is reserved."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from ramet.core.arguments import unknown_field
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.ids import checked_name
from ramet.core.limits import Limits
from ramet.core.policy import rights
from ramet.core.policy.policy import Policy
from ramet.core.policy.reservation import MAXIMUM, MINIMUM, Reservation
from ramet.core.team import CONSUMED_RESOURCES, INTEGER_RESOURCES, amount, missing_limits
from ramet.host.runtime import AgentRuntime
from ramet.services.contract import (
    AgentSpec,
    AgentType,
    CompletesPolicy,
    Image,
    ImageStore,
    SpawnAgent,
    decode,
    formats_of,
    needs_sandbox,
)
from ramet.services.rules import Rules
from ramet.services.teams.loaded_bundles import AgentImportDir
from ramet.services.teams.tables import AgentRow
from ramet.services.teams.team_state import RESERVED
from ramet.services.validation_errors import hide

_COUNTED_LIMITS = ("tokens", "model_calls", "tool_calls", "agents")  #: limits of a run that have no parts
_LIMITS = (*_COUNTED_LIMITS, "usd", "seconds")
_MACHINE_RESOURCES = tuple(RESERVED)  #: resources that a policy states
MAX_WAIT_S = 600  #: of a spawn in the queue of its team: it holds a connection meanwhile
MAX_NOTE_BYTES = 16 * 1024  #: of labels and metadata together: every list of agents contains them
_SPARE_LEVELS = 200  #: levels of nesting that stay free in stored JSON


class AgentPlan(NamedTuple):
    """The specification and type with which an agent is opened, and what it needs of its team."""

    policy: Policy | None  #: the policy that applies: the requested one, or the default
    type: AgentType
    spec: AgentSpec
    need: dict[str, float]
    images: ImageStore
    team: str

    async def check_image(self) -> None:
        """Check that the image of a recorded agent still exists. Raises Unknown if it was deleted before.

        From the record on, the image cannot be deleted.
        """
        await self.images.image(self.spec.image.id, self.team)


class Checks:
    """The checks of requests against this server's agent types, images and policies."""

    def __init__(
        self,
        runtime: AgentRuntime,
        types: Mapping[str, AgentType],
        images: ImageStore,
        folder: pathlib.Path,
        rules: Rules,
    ) -> None:
        self._runtime, self._types, self._images, self._folder, self._rules = runtime, types, images, folder, rules
        runtime.sandboxes.mount_rules = rules.mount_roots

    def type(self, name: str) -> AgentType:
        """Return the agent type of that name. Raises Unknown."""
        if name not in self._types:
            raise Unknown("agent type", name, tuple(sorted(self._types)))
        return self._types[name]

    def transport_format(self, request: SpawnAgent) -> str:
        """Return the transport format of an agent: the requested one, or the first of its type. Raises InvalidValue."""
        type = self.type(request.agent_type)
        formats = formats_of(type, _info(type, request.spawn_info))
        if request.transport_format and request.transport_format not in formats:
            raise InvalidValue("transport_format", request.transport_format, f"one of {', '.join(formats)}")
        return request.transport_format or formats[0]

    async def __call__(self, row: AgentRow, counted_resources: Mapping[str, float]) -> AgentPlan:
        """Check everything about an agent, except whether there is room for it. `counted_resources` is what its team
        counts.

        Raises InvalidValue, SpawnRefused, Unknown, and the errors of its type.
        """
        type = self.type(row.agent_type)
        checked_name("name", row.name)
        info = _info(type, row.spawn_info)
        env = rights.variable_values("env", row.env)
        limits = limits_of(row.limits, counted_resources)
        image = await self._images.image(row.image, row.team)
        policy = self._policy(row, type, info, image)
        _check_required(row, policy, counted_resources)
        need = self._need(policy, row.limits, counted_resources)
        spec = AgentSpec(
            id=row.id,
            name=row.name,
            path=row.path,
            info=info,
            runtime=self._runtime,
            folder=self._folder / row.id,
            image=image,
            policy=_with_reservation(policy, row.team, counted_resources),
            limits=limits,
            env=env,
            run=row.run,
            loaded_bundles=self._loaded_bundles(row, image) if policy is not None else None,
            rules=self._rules,
        )
        await type.check(spec)
        return AgentPlan(policy, type, spec, need, self._images, row.team)

    def _policy(self, row: AgentRow, type: AgentType, info: Any, image: Image) -> Policy | None:
        """Return the policy that applies.

        Raises InvalidValue for a recorded agent that an earlier server ran in the host.
        """
        uses_code = bool(image.folders or image.packages or row.env)
        policy = self._rules.policy_of(row.policy, needs_sandbox=uses_code or needs_sandbox(type, info, image))
        if row.run and policy is not None and row.policy is None:
            accepted = "a policy; it worked in the host, and rules.sandboxed of this server is not false"
            raise InvalidValue("policy", None, accepted)
        return type.complete_policy(info, policy) if isinstance(type, CompletesPolicy) else policy

    def _loaded_bundles(self, row: AgentRow, image: Image) -> AgentImportDir:
        return AgentImportDir(
            row.id, row.team, lambda: self._runtime.sandboxes.folders, self._images, image, row.bundles
        )

    def _need(
        self, policy: Policy | None, limits: Mapping[str, float], counted_resources: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the need of an agent: one agent, its policy's share of the machine, and the rest from its limits."""
        need = {name: value for name, value in limits.items() if name in counted_resources} | {"agents": 1.0}
        grant = self._rules.grant_of(policy)
        if grant is not None:
            return need | {"cpu": grant.cpu_cores, "memory_mb": float(grant.memory_mb)}
        return need


def _check_required(row: AgentRow, policy: Policy | None, counted_resources: Mapping[str, float]) -> None:
    """Raise MissingValue, which names everything that a team counts and its agent does not state."""
    missing = [f"limits.{name}" for name in CONSUMED_RESOURCES if name in counted_resources and name not in row.limits]
    if policy is None and any(name in counted_resources for name in _MACHINE_RESOURCES):
        missing.append("policy")
    if missing:
        raise missing_limits(row.path.rpartition("/")[0], missing)


def checked_defaults(defaults: Mapping[str, float], counted_resources: Mapping[str, float]) -> dict[str, float]:
    """Return the default limits of a team's agents.

    Raises InvalidValue for a resource that is not counted, or too large.
    """
    accepted = tuple(name for name in counted_resources if name not in ("agents", *_MACHINE_RESOURCES))
    for name, value in defaults.items():
        if name not in accepted:
            raise unknown_field(f"defaults.{name}", name, accepted)
        amount(f"defaults.{name}", value, whole=name in INTEGER_RESOURCES)
        if value > counted_resources[name]:
            raise InvalidValue(
                f"defaults.{name}", value, f"at most {counted_resources[name]:.12g}, the amount that the team has"
            )
    return dict(defaults)


def _with_reservation(policy: Policy | None, team: str, counted_resources: Mapping[str, float]) -> Policy | None:
    """Return a policy with the reservation that the agent shares with its team. Raises InvalidValue."""
    if policy is None:
        return None
    if policy.reservation is not None:
        raise InvalidValue("policy.reservation", policy.reservation.name, "none: an agent has its team's")
    reservation = reservation_of(team, counted_resources)
    return policy if reservation is None else replace(policy, reservation=reservation)


def reservation_of(team: str, counted_resources: Mapping[str, float]) -> Reservation | None:
    """Return the resources of the machine that a team has, for all its agents together; None if it counts none."""
    # A team may count more than any machine has, or less than an agent can need: its own accounting decides about that.
    amounts = {
        field: min(max(counted_resources[name], MINIMUM), MAXIMUM)
        for name, field in RESERVED.items()
        if counted_resources.get(name)
    }
    if not amounts:
        return None
    return Reservation(name=team, sandboxes=int(min(max(counted_resources["agents"], 1), MAXIMUM)), **amounts)


def copy_json(field: str, data: Raw) -> Raw:
    """Return a copy of JSON for a record. Raises InvalidValue for invalid JSON, and for JSON that is nested too deeply.

    A later server reads it with a different stack depth. JSON that is only just accepted here could not be read there,
    and neither could the rest of its record.
    """
    try:
        msgspec.json.decode(b"[" * _SPARE_LEVELS + bytes(data) + b"]" * _SPARE_LEVELS, type=Raw)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise InvalidValue(field, hide(bytes(data)), f"JSON in few levels ({problem})") from None
    return data.copy()


def check_notes(labels: Mapping[str, str], metadata: Mapping[str, str]) -> None:
    """Raise InvalidValue if labels and metadata are larger than the limit for an agent."""
    sizes = {"labels": _size(labels), "metadata": _size(metadata)}
    if (size := sum(sizes.values())) > MAX_NOTE_BYTES:
        larger = max(sizes, key=sizes.__getitem__)
        accepted = f"at most {MAX_NOTE_BYTES} bytes of names and values in labels and metadata together"
        raise InvalidValue(larger, f"{size} bytes in labels and metadata", accepted)


def _size(notes: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in notes.items())


def checked_wait(wait_s: object) -> float:
    """Return for how many seconds a spawn may wait in the queue. Raises InvalidValue."""
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 <= wait_s <= MAX_WAIT_S:
        raise InvalidValue("wait_s", wait_s, f"a number of seconds from 0 to {MAX_WAIT_S}")
    return wait_s


def _info(type: AgentType, spawn_info: Raw) -> Any:
    data = bytes(spawn_info).strip()
    return decode(type.spawn_info, b"{}" if data in (b"", b"null") else data, "spawn_info")


def limits_of(limits: Mapping[str, float], counted_resources: Mapping[str, float]) -> Limits:
    """Return limits by their names; a limit may also name a resource that the team counts. Raises InvalidValue."""
    accepted = (*_LIMITS, *(name for name in counted_resources if name not in (*_LIMITS, *_MACHINE_RESOURCES)))
    for name, value in limits.items():
        if name not in accepted:
            raise InvalidValue(f"limits.{name}", value, f"one of {', '.join(accepted)}")
        amount(f"limits.{name}", value, whole=name in _COUNTED_LIMITS)
    run_limits: dict[str, Any] = {name: value for name, value in limits.items() if name in _LIMITS}
    return Limits(**run_limits | {name: int(run_limits[name]) for name in _COUNTED_LIMITS if name in run_limits})
