"""What is asked for when an agent is spawned, checked before anything is reserved."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from ramet.core.arguments import unknown_field
from ramet.core.budget import Limits
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.ids import checked_name
from ramet.core.policy import rights
from ramet.core.policy.policy import Policy
from ramet.core.policy.reservation import LEAST, MOST, Reservation
from ramet.core.team import USED_UP, WHOLE, amount, unstated
from ramet.host.runtime import AgentRuntime
from ramet.services.contract import (
    AgentSpec,
    AgentType,
    Image,
    ImageStore,
    SpawnAgent,
    decoded,
    formats_of,
    needs_sandbox,
)
from ramet.services.rules import Rules
from ramet.services.teams.loaded_bundles import AgentShelf
from ramet.services.teams.tables import AgentRow
from ramet.services.teams.team_state import RESERVED
from ramet.services.validation_errors import hidden

_COUNTS = ("tokens", "model_calls", "tool_calls", "agents")  #: limits of a run that have no parts
_LIMITS = (*_COUNTS, "usd", "seconds")
_MACHINE = tuple(RESERVED)  #: which a policy says
MOST_WAIT_S = 600  #: of a spawn in the line of its team: it holds a connection meanwhile
MOST_NOTE_BYTES = 16 * 1024  #: of labels and metadata together: every list of agents has them
_SPARE = 200  #: levels of nesting that are left free in what is kept


class Checked(NamedTuple):
    """What an agent is to be opened with, by which type, and what it needs of its team."""

    policy: Policy | None  #: by which it works: that it asked for, or the default one
    type: AgentType
    opening: AgentSpec
    need: dict[str, float]
    images: ImageStore
    team: str

    async def see_that_its_image_is_there(self) -> None:
        """For an agent that is on record: from now on its image is not deleted. Until now it may have been: Unknown."""
        await self.images.image(self.opening.image.id, self.team)


class Checks:
    """Reads what is asked for as what this server knows: agent types, images, policies."""

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
        """Raises Unknown."""
        if name not in self._types:
            raise Unknown("agent type", name, tuple(sorted(self._types)))
        return self._types[name]

    def transport_format(self, asked: SpawnAgent) -> str:
        """The format that an agent is to be talked with in: by default its first. Raises InvalidValue."""
        type = self.type(asked.agent_type)
        formats = formats_of(type, _info(type, asked.spawn_info))
        if asked.transport_format and asked.transport_format not in formats:
            raise InvalidValue("transport_format", asked.transport_format, f"one of {', '.join(formats)}")
        return asked.transport_format or formats[0]

    async def __call__(self, row: AgentRow, counted: Mapping[str, float]) -> Checked:
        """Everything about an agent, but whether there is room for it. `counted` is what its team counts.

        Raises InvalidValue, SpawnRefused, Unknown, and what its type finds wrong.
        """
        type = self.type(row.agent_type)
        checked_name("name", row.name)
        info = _info(type, row.spawn_info)
        env = rights.values_of_variables("env", row.env)
        limits = limits_of(row.limits, counted)
        image = await self._images.image(row.image, row.team)
        policy = self._policy(row, type, info, image)
        _check_stated(row, policy, counted)
        need = self._need(policy, row.limits, counted)
        opening = AgentSpec(
            id=row.id,
            name=row.name,
            path=row.path,
            info=info,
            runtime=self._runtime,
            folder=self._folder / row.id,
            image=image,
            policy=_sharing(policy, row.team, counted),
            limits=limits,
            env=env,
            run=row.run,
            shelf=self._shelf(row, image) if policy is not None else None,
            rules=self._rules,
        )
        await type.check(opening)
        return Checked(policy, type, opening, need, self._images, row.team)

    def _policy(self, row: AgentRow, type: AgentType, info: Any, image: Image) -> Policy | None:
        """The policy by which it works. Raises InvalidValue for one that an earlier server let work in the host."""
        uses_code = bool(image.folders or image.packages or row.env)
        policy = self._rules.policy_of(row.policy, needs_sandbox=uses_code or needs_sandbox(type, info, image))
        if row.run and policy is not None and row.policy is None:
            accepted = "a policy; it worked in the host, and rules.sandboxed of this server does not say false"
            raise InvalidValue("policy", None, accepted)
        return policy

    def _shelf(self, row: AgentRow, image: Image) -> AgentShelf:
        return AgentShelf(row.id, row.team, lambda: self._runtime.sandboxes.folders, self._images, image, row.bundles)

    def _need(
        self, policy: Policy | None, limits: Mapping[str, float], counted: Mapping[str, float]
    ) -> dict[str, float]:
        """What an agent needs: it counts as one, its policy says how much of the machine, its limits all else."""
        need = {name: value for name, value in limits.items() if name in counted} | {"agents": 1.0}
        grant = self._rules.grant_of(policy)
        if grant is not None:
            return need | {"cpu": grant.cpu_cores, "memory_mb": float(grant.memory_mb)}
        return need


def _check_stated(row: AgentRow, policy: Policy | None, counted: Mapping[str, float]) -> None:
    """Raise MissingValue, which names all that a team counts and its agent does not state."""
    missing = [f"limits.{name}" for name in USED_UP if name in counted and name not in row.limits]
    if policy is None and any(name in counted for name in _MACHINE):
        missing.append("policy")
    if missing:
        raise unstated(row.path.rpartition("/")[0], missing)


def checked_defaults(defaults: Mapping[str, float], counted: Mapping[str, float]) -> dict[str, float]:
    """Limits that a team states for its agents. Raises InvalidValue for what it does not count, and for too much."""
    known = tuple(name for name in counted if name not in ("agents", *_MACHINE))
    for name, value in defaults.items():
        if name not in known:
            raise unknown_field(f"defaults.{name}", name, known)
        amount(f"defaults.{name}", value, whole=name in WHOLE)
        if value > counted[name]:
            raise InvalidValue(f"defaults.{name}", value, f"at most {counted[name]:.12g}, which is all that it has")
    return dict(defaults)


def _sharing(policy: Policy | None, team: str, counted: Mapping[str, float]) -> Policy | None:
    """A policy by which an agent shares, with all of its team, what that counts of the machine. Raises InvalidValue."""
    if policy is None:
        return None
    if policy.reservation is not None:
        raise InvalidValue("policy.reservation", policy.reservation.name, "none: an agent has its team's")
    reservation = reservation_of(team, counted)
    return policy if reservation is None else replace(policy, reservation=reservation)


def reservation_of(team: str, counted: Mapping[str, float]) -> Reservation | None:
    """What a team has of the machine, all its agents together; None if it counts nothing of it."""
    # A team may count more than any machine has, or less than an agent can: that is for its book to say.
    amounts = {field: min(max(counted[name], LEAST), MOST) for name, field in RESERVED.items() if counted.get(name)}
    if not amounts:
        return None
    return Reservation(name=team, sandboxes=int(min(max(counted["agents"], 1), MOST)), **amounts)


def copy_json(field: str, data: Raw) -> Raw:
    """A copy of JSON that goes on record. Raises InvalidValue for what is none, and for what is nested too deeply.

    A later server reads it with other functions on the stack than this one has: what only just fits here would not be
    read there, and nothing that stands beside it either.
    """
    try:
        msgspec.json.decode(b"[" * _SPARE + bytes(data) + b"]" * _SPARE, type=Raw)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise InvalidValue(field, hidden(bytes(data)), f"JSON in few levels ({problem})") from None
    return data.copy()


def check_notes(labels: Mapping[str, str], metadata: Mapping[str, str]) -> None:
    """Raise InvalidValue where labels and metadata are more than is kept of an agent."""
    sizes = {"labels": _size(labels), "metadata": _size(metadata)}
    if (size := sum(sizes.values())) > MOST_NOTE_BYTES:
        larger = max(sizes, key=sizes.__getitem__)
        accepted = f"at most {MOST_NOTE_BYTES} bytes of names and values in labels and metadata together"
        raise InvalidValue(larger, f"{size} bytes in labels and metadata", accepted)


def _size(notes: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in notes.items())


def checked_wait(wait_s: object) -> float:
    """How long to stand in line. Raises InvalidValue."""
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 <= wait_s <= MOST_WAIT_S:
        raise InvalidValue("wait_s", wait_s, f"a number of seconds from 0 to {MOST_WAIT_S}")
    return wait_s


def _info(type: AgentType, spawn_info: Raw) -> Any:
    given = bytes(spawn_info).strip()
    return decoded(type.spawn_info, b"{}" if given in (b"", b"null") else given, "spawn_info")


def limits_of(limits: Mapping[str, float], counted: Mapping[str, float]) -> Limits:
    """Limits by their names; beside those of a run there may be what a team counts. Raises InvalidValue."""
    accepted = (*_LIMITS, *(name for name in counted if name not in (*_LIMITS, *_MACHINE)))
    for name, value in limits.items():
        if name not in accepted:
            raise InvalidValue(f"limits.{name}", value, f"one of {', '.join(accepted)}")
        amount(f"limits.{name}", value, whole=name in _COUNTS)
    known: dict[str, Any] = {name: value for name, value in limits.items() if name in _LIMITS}
    return Limits(**known | {name: int(known[name]) for name in _COUNTS if name in known})
