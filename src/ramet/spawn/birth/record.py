"""A birth as data, for the journal: all that it takes to go on with a run in another process, and nothing secret.

What is no data is named instead: a function by its reference, a model object and a tool by their names, a secret and a
variable by its name. Whoever resumes supplies what only a process can hold, or is told what is missing.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from ramet.core.budget import Limits
from ramet.core.errors import DefinitionMissing, InvalidValue, NotShippable, ProtocolError
from ramet.core.ids import RunId
from ramet.core.policy.policy import Grant, Policy, from_json
from ramet.models.json_values import to_json_value
from ramet.spawn.ports import TreePorts
from ramet.spawn.run import Run
from ramet.tools.context import SpawnRequest
from ramet.wire.code.capsule import PackedCall
from ramet.wire.values.annotations import parameter_types
from ramet.wire.values.journal_values import from_record, to_record


def to_data(
    run: Run, brief: str, services: TreePorts, *, shared: int = 0, answers: tuple[Any, ...] = ()
) -> dict[str, Any]:
    """What goes on record beside the birth itself. A fork has `shared` messages of its parent's, then `answers`."""
    request, agent = run.request, run.agent
    birth: dict[str, Any] = {
        "agent": services.recipe(agent),
        "brief": brief,
        "cwd": str(run.context.cwd),
        "system": [str.__str__(message.text) for message in run.context.system_messages],
        "max_turns": run.max_turns,
        "limits": run.limits.as_data(),
        "owns": run.own_budget is not None,
        "persistent": run.persistent,
        "key": key_of(request),
    }
    if request.asked:
        birth["asked"] = request.asked
    if run.worktree is not None:
        birth["worktree"] = {"path": str(run.worktree.path), "branch": run.worktree.branch, "base": run.worktree.base}
    if request.begins_at:
        birth["begins_at"] = request.begins_at
    if request.state_owner:
        birth["state_owner"] = request.state_owner
    if shared or answers:
        birth |= {"shared": shared, "answers": list(answers)}
    if agent.function is not None and run.capsule is None:
        birth["args"], birth["kwargs"] = _data("args", list(request.args)), _data("kwargs", dict(request.kwargs))
    if request.late_args is not None:
        birth["late_args"] = True
    if run.grant is not None:
        birth["grant"] = _without_values(run, run.grant)
    if run.narrowed is not None:
        birth["narrowed"] = msgspec.to_builtins(run.narrowed)
    if run.bound is not None:
        birth["bound"] = _without_values(run, run.bound)
    if run.capsule is not None:
        name, tag, data, is_heavy = run.capsule
        birth["capsule"] = {"name": name, "tag": tag, "data": base64.b64encode(data).decode(), "is_heavy": is_heavy}
    return birth


def with_dedupe_key(run: Run, request: SpawnRequest) -> SpawnRequest:
    """The request with the key by which the same one is known when a function is run again.

    That is what is asked for, and how often it was before: after a checkpoint, or side by side, not all are asked for
    again, nor in the same order, and none must be taken for another.
    """
    if request.call_id is not None or request.key or run.agent.function is None or run.context.durable is None:
        return request  # A call or a step tells by itself, a model has no births without one, and no journal asks.
    content = _content_of(request)
    run.spawned[content] += 1
    return dataclasses.replace(request, key=f"{content}#{run.spawned[content]}")


def restore_counters(run: Run, known: Iterable[tuple[RunId, str]]) -> None:
    """Go on with counting what a run asks for, behind births on `known` (parents and keys): it is not run again."""
    for parent, key in known:
        content, _, number = key.rpartition("#")
        if parent == run.info.id and number.isdecimal():
            run.spawned[content] = max(run.spawned[content], int(number))


def _content_of(request: SpawnRequest) -> str:
    """A name for what is asked for: the same in every process."""
    agent, packed = request.agent, b""
    function = getattr(agent, "function", agent)
    capsule = getattr(function, "capsule", None)
    if isinstance(capsule, PackedCall):
        packed = capsule.data
    name = getattr(agent, "name", None) or getattr(function, "__qualname__", "")
    asked = [name, request.subagent_type, request.prompt, request.name, _data("args", list(request.args))]
    text = msgspec.json.encode([*asked, _data("kwargs", dict(request.kwargs))])
    return hashlib.sha256(text + b"\0" + packed).hexdigest()[:16]


def key_of(request: SpawnRequest) -> str:
    """What a birth is known by to the run that asked for it; empty if it is to be another one each time."""
    return request.call_id or request.key


def request_of(
    birth: Mapping[str, Any], function: Callable[..., Any] | None, *, prompt: str, description: str, name: str
) -> SpawnRequest:
    """What was asked for then, of this function. Raises DefinitionMissing for an argument that was no data."""
    for field in ("args", "kwargs"):
        if isinstance(birth.get(field), dict) and "@missing" in birth[field]:
            raise DefinitionMissing("argument", birth[field]["@missing"])
    placed, named = parameter_types(function) if function is not None else ((), {})
    args, kwargs = birth.get("args", ()), birth.get("kwargs", {})
    return SpawnRequest(
        prompt=prompt,
        name=name,
        description=description,
        args=tuple(_value(each, placed[at] if at < len(placed) else None) for at, each in enumerate(args)),
        kwargs={key: _value(each, named.get(key)) for key, each in kwargs.items()},
        late_args=missing_late_args if birth.get("late_args") else None,
        branch="begins_at" in birth,
        begins_at=birth.get("begins_at", ""),
        state_owner=birth.get("state_owner", ""),
    )


def missing_late_args() -> tuple[Any, ...]:
    """Stand for the late arguments of a run on record, until they are supplied again. Raises DefinitionMissing."""
    raise DefinitionMissing("late arguments", "of its function")


def limits_of(birth: Mapping[str, Any]) -> Limits:
    """The limits as they were narrowed."""
    return Limits(**birth.get("limits", {}))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Values:
    """Values of secrets and variables that are supplied again, for the run at `path`, below runs with these grants."""

    path: str
    secrets: Mapping[str, str]
    env_vars: Mapping[str, str]  #: by name, or by path, colon and name, for one run alone
    above: tuple[Grant, ...] = ()  #: nearest first

    def variable(self, name: str, *, is_own: bool) -> str | None:
        """A value; None for one that nobody supplied. A value of a child's own is supplied for that child alone."""
        special = self.env_vars.get(f"{self.path}:{name}")
        if special is not None or (is_own and self.above):
            return special
        inherited = (grant.env_vars[name] for grant in self.above if name in grant.env_vars)
        return next(inherited, self.env_vars.get(name))


class Granted(NamedTuple):
    """A grant again, and the variables in it whose values nobody supplied."""

    grant: Grant | None
    lacking: tuple[str, ...] = ()


def grant_of(birth: Mapping[str, Any], values: Values, field: str = "grant") -> Granted:
    """What its sandbox, or those of its steps, may do. Raises DefinitionMissing for a secret not supplied again."""
    if field not in birth:
        return Granted(None)
    data = dict(birth[field])
    for name in data["secrets"]:
        if name not in values.secrets:
            raise DefinitionMissing("secret", name)
    data["secrets"] = {name: values.secrets[name] for name in data["secrets"]}
    own = data.pop("own_env_vars", ())
    if isinstance(data["env_vars"], dict):  # An older ramet wrote it, with the values.
        return Granted(msgspec.convert(data, Grant, strict=False))
    found = {name: values.variable(name, is_own=name in own) for name in data["env_vars"]}
    data["env_vars"] = {name: value for name, value in found.items() if value is not None}
    lacking = tuple(_key(values, name, own) for name, value in found.items() if value is None)
    return Granted(msgspec.convert(data, Grant, strict=False), lacking)


def narrowed_in(birth: Mapping[str, Any]) -> Policy | None:
    """Return what a policy adapter had allowed it at most. Raises InvalidValue for what is no policy."""
    return from_json(birth["narrowed"]) if "narrowed" in birth else None


def _key(values: Values, name: str, own: Collection[str]) -> str:
    """How the value of a variable is to be supplied."""
    return f"{values.path}:{name}" if name in own and values.above else name


def capsule_in(birth: Mapping[str, Any]) -> PackedCall | None:
    """Its function as it travelled; never opened here."""
    packed = birth.get("capsule")
    if packed is None:
        return None
    return PackedCall(packed["name"], packed["tag"], base64.b64decode(packed["data"]), packed["is_heavy"])


def cwd_of(birth: Mapping[str, Any]) -> pathlib.Path:
    """Where it worked. Raises DefinitionMissing if that is gone."""
    cwd = pathlib.Path(birth.get("cwd", "."))
    if not cwd.is_dir():
        raise DefinitionMissing("folder", str(cwd))
    return cwd


def _data(field: str, value: Any) -> Any:
    """Arguments as data; what is none can only be named."""
    try:
        return to_json_value(value, field)
    except InvalidValue as refusal:
        missing = {"@missing": str(refusal)[:300]}
    try:
        if isinstance(value, dict):
            return {name: to_record(each, what=f"{field}.{name}") for name, each in value.items()}
        return [to_record(each, what=f"{field}[{index}]") for index, each in enumerate(value)]
    except NotShippable:
        return missing


def _value(data: Any, hint: Any) -> Any:
    """An argument again, as its function has it; one that is not what the annotation says stays as it was written."""
    try:
        return from_record(data, hint)
    except (InvalidValue, ProtocolError):
        return data


def grants_above(run: Run | None) -> tuple[Grant, ...]:
    """The grants of a run and of all runs above it, nearest first."""
    found = list[Grant]()
    while run is not None:
        found += [grant for grant in (run.grant, run.bound) if grant is not None]
        run = run.parent
    return tuple(found)


def _without_values(run: Run, grant: Grant) -> dict[str, Any]:
    """A grant as data: of secrets and variables the names, and which variables differ from those above."""
    data: dict[str, Any] = msgspec.to_builtins(grant)
    data["secrets"], data["env_vars"] = sorted(grant.secrets), sorted(grant.env_vars)
    above = grants_above(run.parent)
    inherited = {name: each.env_vars[name] for each in reversed(above) for name in each.env_vars}
    own = [name for name, value in sorted(grant.env_vars.items()) if inherited.get(name) != value]
    return data | ({"own_env_vars": own} if own and above else {})
