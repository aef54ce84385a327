"""A spawn as data for the journal: everything that another process needs to continue the run, without secrets.

An object that is not data is named instead: a function by its reference, a model object and a tool by their names, a
secret and a variable by its name. The resuming process supplies these objects, or receives an error that names what is
missing.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from ramet.core.errors import DefinitionMissing, InvalidValue, NotShippable, ProtocolError
from ramet.core.events import RunSpawned
from ramet.core.ids import RunId
from ramet.core.limits import Limits
from ramet.core.policy.policy import Grant, Policy, from_json
from ramet.isolation.git.clone import Clone
from ramet.isolation.git.git import Git
from ramet.isolation.git.host_repository import confine
from ramet.isolation.git.worktree import Worktree
from ramet.models.json_values import to_json_value
from ramet.spawn.ports import TreePorts
from ramet.spawn.run import Run
from ramet.tools.spawn_request import SpawnRequest
from ramet.wire.code.capsule import PackedCall
from ramet.wire.values.annotations import parameter_types
from ramet.wire.values.journal_values import from_record, to_record


def to_data(
    run: Run, brief: str, services: TreePorts, *, shared: int = 0, answers: tuple[Any, ...] = ()
) -> dict[str, Any]:
    """Return the data that is recorded with the spawn.

    A fork has `shared` messages of its parent's, then `answers`.
    """
    request, agent = run.request, run.agent
    spawn_data: dict[str, Any] = {
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
    if run.rights[-1].delegable is not None:
        spawn_data["delegable"] = [tool.name for tool in run.rights[-1].delegable]
    if run.watch.is_active:
        spawn_data["watch"] = run.watch.as_data()
    if request.request_key:
        spawn_data["asked"] = request.request_key
    if isinstance(run.worktree, Worktree):
        spawn_data["worktree"] = {
            "path": str(run.worktree.path),
            "branch": run.worktree.branch,
            "base": run.worktree.base,
        }
    if run.sandbox.clone is not None:
        spawn_data["clone"] = run.sandbox.clone.as_data()
    if run.sandbox.definition_mounts:
        spawn_data["skill_folders"] = list(run.sandbox.definition_mounts)
    if request.attachments:
        spawn_data["attachments"] = list(request.attachments)
    if request.begins_at:
        spawn_data["begins_at"] = request.begins_at
    if request.fork_of:
        spawn_data |= {"fork_of": request.fork_of, "fork_at": request.fork_at, "fork_place": request.fork_place}
    if request.state_owner:
        spawn_data["state_owner"] = request.state_owner
    if shared or answers:
        spawn_data |= {"shared": shared, "answers": list(answers)}
    if agent.function is not None and run.sandbox.capsule is None:
        spawn_data["args"], spawn_data["kwargs"] = (
            _data("args", list(request.args)),
            _data("kwargs", dict(request.kwargs)),
        )
    if request.late_args is not None:
        spawn_data["late_args"] = True
    if run.grant is not None:
        spawn_data["grant"] = _grant_without_values(run, run.grant)
    if run.policy_ceiling is not None:
        spawn_data["narrowed"] = msgspec.to_builtins(run.policy_ceiling)
    if run.step_ceiling is not None:
        spawn_data["bound"] = _grant_without_values(run, run.step_ceiling)
    if run.sandbox.capsule is not None:
        name, tag, data, is_heavy = run.sandbox.capsule
        spawn_data["capsule"] = {
            "name": name,
            "tag": tag,
            "data": base64.b64encode(data).decode(),
            "is_heavy": is_heavy,
        }
    return spawn_data


def with_dedupe_key(run: Run, request: SpawnRequest) -> SpawnRequest:
    """Return the request with the key that identifies it when a function is run again.

    The key consists of the content of the request and the number of earlier requests with that content. After a
    checkpoint, or with concurrent requests, not all are made again, nor in the same order, and none may be taken for
    another.
    """
    if request.call_id is not None or request.key or run.agent.function is None or run.context.durable is None:
        return request  # An id exists, or a model spawns only by calls, or there is no journal.
    content = _content_of(request)
    run.turn.spawn_requests[content] += 1
    return dataclasses.replace(request, key=f"{content}#{run.turn.spawn_requests[content]}")


def restore_counters(run: Run, known: Iterable[tuple[RunId, str]]) -> None:
    """Restore the counters of a run's requests from the spawns in `known` (parents and keys).

    The run's function is not run again.
    """
    for parent, key in known:
        content, _, number = key.rpartition("#")
        if parent == run.info.id and number.isdecimal():
            run.turn.spawn_requests[content] = max(run.turn.spawn_requests[content], int(number))


def _content_of(request: SpawnRequest) -> str:
    """Return a hash of the requested content, which is equal in every process."""
    agent, packed_bytes = request.agent, b""
    function = getattr(agent, "function", agent)
    capsule = getattr(function, "capsule", None)
    if isinstance(capsule, PackedCall):
        packed_bytes = capsule.data
    name = getattr(agent, "name", None) or getattr(function, "__qualname__", "")
    key_parts = [name, request.subagent_type, request.prompt, request.name, _data("args", list(request.args))]
    if request.fork_of:
        key_parts += [request.fork_of, request.fork_at]
    text = msgspec.json.encode([*key_parts, _data("kwargs", dict(request.kwargs))])
    return hashlib.sha256(text + b"\0" + packed_bytes).hexdigest()[:16]


def key_of(request: SpawnRequest) -> str:
    """Return the key by which the requesting run identifies a spawn; empty if each request is a new spawn."""
    return request.call_id or request.key


def request_of(
    spawn_data: Mapping[str, Any], function: Callable[..., Any] | None, *, prompt: str, description: str, name: str
) -> SpawnRequest:
    """Rebuild the request of a recorded spawn for this function.

    Raises DefinitionMissing if an argument was not data.
    """
    for field in ("args", "kwargs"):
        if isinstance(spawn_data.get(field), dict) and "@missing" in spawn_data[field]:
            raise DefinitionMissing("argument", spawn_data[field]["@missing"])
    positional_types, keyword_types = parameter_types(function) if function is not None else ((), {})
    args, kwargs = spawn_data.get("args", ()), spawn_data.get("kwargs", {})
    return SpawnRequest(
        prompt=prompt,
        name=name,
        description=description,
        args=tuple(
            _value(each, positional_types[at] if at < len(positional_types) else None) for at, each in enumerate(args)
        ),
        kwargs={key: _value(each, keyword_types.get(key)) for key, each in kwargs.items()},
        late_args=missing_late_args if spawn_data.get("late_args") else None,
        branch="begins_at" in spawn_data and "fork_place" not in spawn_data,
        begins_at=spawn_data.get("begins_at", ""),
        fork_place=spawn_data.get("fork_place", ""),
        state_owner=spawn_data.get("state_owner", ""),
        attachments=tuple(spawn_data.get("attachments", ())),
    )


def missing_late_args() -> tuple[Any, ...]:
    """Raise DefinitionMissing: a placeholder for the late arguments of a recorded run until they are supplied again."""
    raise DefinitionMissing("late arguments", "of its function")


def limits_of(spawn_data: Mapping[str, Any]) -> Limits:
    """Return the narrowed limits."""
    return Limits(**spawn_data.get("limits", {}))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Values:
    """Supplied values of secrets and variables, for the run at `path`, below runs with these grants."""

    path: str
    secrets: Mapping[str, str]
    env_vars: Mapping[str, str]  #: by name, or by path, colon and name, for one run only
    ancestor_grants: tuple[Grant, ...] = ()  #: nearest first

    def variable(self, name: str, *, is_own: bool) -> str | None:
        """Return a value, or None if it was not supplied.

        A value of a child's own is supplied for that child only.
        """
        special = self.env_vars.get(f"{self.path}:{name}")
        if special is not None or (is_own and self.ancestor_grants):
            return special
        inherited_values = (grant.env_vars[name] for grant in self.ancestor_grants if name in grant.env_vars)
        return next(inherited_values, self.env_vars.get(name))


class RestoredGrant(NamedTuple):
    """A restored grant, and its variables without a supplied value."""

    grant: Grant | None
    missing_variables: tuple[str, ...] = ()


def grant_of(spawn_data: Mapping[str, Any], values: Values, field: str = "grant") -> RestoredGrant:
    """Restore the grant of the run's sandbox, or of its steps.

    Raises DefinitionMissing if a secret is not supplied again.
    """
    if field not in spawn_data:
        return RestoredGrant(None)
    data = dict(spawn_data[field])
    for name in data["secrets"]:
        if name not in values.secrets:
            raise DefinitionMissing("secret", name)
    data["secrets"] = {name: values.secrets[name] for name in data["secrets"]}
    own_names = data.pop("own_env_vars", ())
    if isinstance(data["env_vars"], dict):  # An older ramet wrote it, with the values.
        return RestoredGrant(msgspec.convert(data, Grant, strict=False))
    variables = {name: values.variable(name, is_own=name in own_names) for name in data["env_vars"]}
    data["env_vars"] = {name: value for name, value in variables.items() if value is not None}
    missing_keys = tuple(_key(values, name, own_names) for name, value in variables.items() if value is None)
    return RestoredGrant(msgspec.convert(data, Grant, strict=False), missing_keys)


def inheritable_names(spawn_event: RunSpawned) -> tuple[str, ...]:
    """Return the names of the tools that the children of a recorded run may get."""
    return tuple(spawn_event.birth.get("delegable", spawn_event.tools))


def narrowed_in(spawn_data: Mapping[str, Any]) -> Policy | None:
    """Return the most that a policy adapter had allowed.

    Raises InvalidValue if the data is not a policy.
    """
    return from_json(spawn_data["narrowed"]) if "narrowed" in spawn_data else None


def _key(values: Values, name: str, own_names: Collection[str]) -> str:
    """Return the name under which the value of a variable must be supplied."""
    return f"{values.path}:{name}" if name in own_names and values.ancestor_grants else name


def capsule_in(spawn_data: Mapping[str, Any]) -> PackedCall | None:
    """Return the function in its packed form; it is never unpacked here."""
    packed_call = spawn_data.get("capsule")
    if packed_call is None:
        return None
    return PackedCall(
        packed_call["name"], packed_call["tag"], base64.b64decode(packed_call["data"]), packed_call["is_heavy"]
    )


def clone_in(spawn_data: Mapping[str, Any], git: Git) -> Clone | None:
    """Return the clone that the run works in."""
    return Clone.from_data(spawn_data["clone"], confine(git)) if "clone" in spawn_data else None


def cwd_of(spawn_data: Mapping[str, Any]) -> pathlib.Path:
    """Return the run's working directory.

    Raises DefinitionMissing if the folder does not exist any more.
    """
    cwd = pathlib.Path(spawn_data.get("cwd", "."))
    if not cwd.is_dir():
        raise DefinitionMissing("folder", str(cwd))
    return cwd


def _data(field: str, value: Any) -> Any:
    """Return arguments as data; an argument that cannot be data is only named."""
    try:
        return to_json_value(value, field)
    except InvalidValue as refusal:
        missing = {"@missing": str(refusal)[:300]}
    try:
        if isinstance(value, dict):
            return {name: to_record(each, label=f"{field}.{name}") for name, each in value.items()}
        return [to_record(each, label=f"{field}[{index}]") for index, each in enumerate(value)]
    except NotShippable:
        return missing


def _value(data: Any, hint: Any) -> Any:
    """Restore an argument for its function; data that does not match the annotation stays as it was written."""
    try:
        return from_record(data, hint)
    except (InvalidValue, ProtocolError):
        return data


def _grant_without_values(run: Run, grant: Grant) -> dict[str, Any]:
    """Return a grant as data: the names of secrets and variables, and which variables differ from those above."""
    data: dict[str, Any] = msgspec.to_builtins(grant)
    data["secrets"], data["env_vars"] = sorted(grant.secrets), sorted(grant.env_vars)
    ancestor_grants = tuple(run.parent.grants()) if run.parent is not None else ()
    inherited_variables = {name: each.env_vars[name] for each in reversed(ancestor_grants) for name in each.env_vars}
    own_names = [name for name, value in sorted(grant.env_vars.items()) if inherited_variables.get(name) != value]
    return data | ({"own_env_vars": own_names} if own_names and ancestor_grants else {})
