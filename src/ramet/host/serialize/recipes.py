"""The conversion of a definition to data and back, for the journal.

An object that only a process can hold is named, and must be supplied again. So is a policy with values of variables or
secrets in a step of a composition. A composition is its shape, and its steps as recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ramet.agent.composition.chain import Chain
from ramet.agent.composition.graph import Graph, Node, Route
from ramet.agent.composition.parallel import Parallel
from ramet.agent.composition.steps import Composition
from ramet.agent.definition import Agent
from ramet.agent.external.external import External
from ramet.agent.typed.from_schema import hint_of
from ramet.agent.typed.schema import Types
from ramet.agent.typed.to_schema import schema_of
from ramet.core.agent_ref import AgentRef
from ramet.core.errors import Bug, DefinitionMissing, InvalidValue
from ramet.core.limits import Limits
from ramet.core.liveness.watch_settings import watch_from
from ramet.core.mcp.server_entry import McpServer, as_server
from ramet.core.policy.permissions import Permissions
from ramet.core.policy.policy import Policy, from_json, to_public_dict
from ramet.core.recipe import capability
from ramet.host.serialize.references import reference_of, resolve
from ramet.models.resolve import model_name
from ramet.spawn.grants import PackedFunction

_PLAIN = (
    *("name", "description", "primer", "instructions", "read_only", "max_turns", "effort", "memory", "background"),
    *("initial_prompt", "setup", "concludes", "coordinator", "peers", "sibling_list", "cache_ttl_seconds"),
    "omit_instructions",
)
_NAMES = ("disallowed_tools", "skills", "source_modules")
DecodeStep = Callable[[Mapping[str, Any]], Agent]  #: returns the agent of a step's recipe


def recipe(agent: Agent) -> dict[str, Any]:
    """Return the data of a definition; objects are replaced by their names."""
    data: dict[str, Any] = {name: getattr(agent, name) for name in _PLAIN if getattr(agent, name)}
    data |= {name: list(getattr(agent, name)) for name in _NAMES if getattr(agent, name)}
    if agent.capabilities:
        data["capabilities"] = [each.data() for each in agent.capabilities]
    if agent.ref is not None:
        data["ref"] = str(agent.ref)
    if agent.tools is not None:
        data["tools"] = [each if isinstance(each, str) else each.name for each in agent.tool_entries or ()]
    if agent.model is not None:
        data["model"] = agent.model if isinstance(agent.model, str) else {"@object": model_name(agent.model)}
    if isinstance(agent.external, External):
        data["external"] = agent.external.as_data()
    elif agent.function is not None:
        data["function"] = _encode_function(agent.function)
    if agent.output is not None:
        data["output"] = dict(agent.output) if isinstance(agent.output, Mapping) else _encode_type(agent.output)
    if agent.mcp:
        data["mcp"] = [each.as_record() for each in agent.mcp_servers]
    if agent.tool_search != "auto":
        data["tool_search"] = agent.tool_search
    if agent.hooks is not None:
        data["hooks"] = {"@object": agent.name} if not _is_plain(agent.hooks) else msgspec.to_builtins(agent.hooks)
    if agent.policy is not None:
        data["policy"] = to_public_dict(agent.policy)
    if agent.budget_note is not None:
        data["budget_note"] = agent.budget_note
    if agent.permissions:
        data["permissions"] = msgspec.to_builtins(agent.permissions)
    if limits := agent.limits.as_data():
        data["limits"] = limits
    if watch := agent.watch.as_data():
        data["watch"] = watch
    return data


def agent_of(data: Mapping[str, Any], *, agents: Mapping[str, Agent], model: Callable[[str], Any]) -> Agent:
    """Return the rebuilt definition, with the objects of the supplied definition of that name.

    `model` finds a model object by its name, or raises DefinitionMissing. Raises DefinitionMissing for a function or
    type that is not found.
    """
    fields: dict[str, Any] = {
        name: data[name] for name in (*_PLAIN, *_NAMES, "budget_note", "tool_search") if name in data
    }
    fields["capabilities"] = tuple(capability(each) for each in data.get("capabilities", ()))
    if "ref" in data:
        fields["ref"] = AgentRef.parse(data["ref"])
    supplied = agents.get(data["name"])
    if "tools" in data:
        tools_by_name = (
            {}
            if supplied is None
            else {each.name: each for each in supplied.tool_entries or () if not isinstance(each, str)}
        )
        fields["tools"] = tuple(tools_by_name.get(name, name) for name in data["tools"])
    if "model" in data:
        encoded = data["model"]
        if isinstance(encoded, str):
            fields["model"] = encoded
        elif supplied is not None and supplied.model is not None:
            fields["model"] = supplied.model
        else:
            fields["model"] = model(encoded["@object"])
    if "permissions" in data:
        fields["permissions"] = msgspec.convert(data["permissions"], Permissions)
    if "external" in data:
        fields["external"] = External(**data["external"])
    if "mcp" in data:
        fields["mcp"] = _decode_servers(data["mcp"], supplied)
    if "function" in data:
        fields["function"] = _decode_function(
            data["function"], supplied, lambda step: agent_of(step, agents=agents, model=model)
        )
    if "output" in data:
        encoded = data["output"]
        fields["output"] = (
            supplied.output if supplied is not None and supplied.output is not None else _decode_type(encoded)
        )
    if "hooks" in data:
        hooks = supplied.hooks if supplied is not None else data["hooks"]
        if isinstance(hooks, Mapping) and "@object" in hooks:
            raise DefinitionMissing("hooks of", data["name"])
        fields["hooks"] = hooks
    return Agent(limits=Limits(**data.get("limits", {})), watch=watch_from(data.get("watch", {})), **fields)


def _encode_function(function: Any) -> dict[str, Any]:
    if isinstance(function, Composition):
        return {"@composition": _encode_composition(function)}
    if isinstance(function, PackedFunction):
        return {"@capsule": function.__name__}
    try:
        return {"@reference": reference_of(function)}
    except InvalidValue:
        return {"@object": getattr(function, "__qualname__", repr(function))[:200]}


def _decode_function(data: Mapping[str, Any], supplied: Agent | None, step: DecodeStep) -> Callable[..., Any]:
    if "@reference" in data:
        return resolve(data["@reference"])
    if supplied is not None and supplied.function is not None:
        return supplied.function
    if "@composition" in data:
        return _decode_composition(data["@composition"], step)
    name = data.get("@capsule") or data.get("@object") or "?"

    def missing(*_: Any, **__: Any) -> Any:
        raise DefinitionMissing("function", name)

    missing.__name__ = name.rpartition(".")[2] or "function"
    return missing


def _decode_servers(entries: Sequence[Mapping[str, Any]], supplied: Agent | None) -> tuple[McpServer, ...]:
    """Return the servers, with the variables of the supplied ones. Raises DefinitionMissing for one that is missing."""
    supplied_servers = {} if supplied is None else {each.name: each for each in supplied.mcp_servers}
    servers: list[McpServer] = []
    for entry in entries:
        own = supplied_servers.get(entry["name"])
        values = {"env": own.env if own is not None else {}, "headers": own.headers if own is not None else {}}
        fields = dict(entry)
        for field in values.keys() & entry.keys():
            fields[field] = {k: values[field].get(k) if v is None else v for k, v in entry[field].items()}
            if missing := [name for name, value in fields[field].items() if value is None]:
                kind = "variables" if field == "env" else field
                raise DefinitionMissing(f"{kind} of the MCP server", f"{entry['name']}: {', '.join(missing)}")
        servers.append(as_server(fields))
    return tuple(servers)


def _encode_type(kind: Any) -> dict[str, Any]:
    """Return a class by its name; as data if its name does not lead back to it.

    A class that was made from data, for example, has no such name.
    """
    reference = f"{getattr(kind, '__module__', '')}:{getattr(kind, '__qualname__', '')}"
    with suppress(DefinitionMissing, InvalidValue):
        if resolve(reference) is kind:
            return {"@type": reference}
    types: Types = {}
    with suppress(InvalidValue):
        return {"@schema": schema_of(kind, types, "output"), "types": types}
    return {"@type": reference}


def _decode_type(data: Mapping[str, Any]) -> Any:
    if "@schema" in data:
        return hint_of(data["@schema"], data["types"], "output")
    return resolve(data["@type"]) if "@type" in data else data


def _is_plain(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError):
        return False
    return True


def _encode_composition(composition: Composition) -> dict[str, Any]:
    match composition:
        case Chain(steps):
            return {"kind": "chain", "steps": [_encode_step(each) for each in steps]}
        case Parallel(branches, for_each, max_parallel, on_failure):
            return {
                "kind": "parallel",
                "steps": [_encode_step(each) for each in branches],
                "for_each": for_each,
                "max_parallel": max_parallel,
                "on_failure": on_failure,
            }
        case Graph():
            return {
                "kind": "graph",
                "name": composition.name,
                "nodes": [
                    {"name": name, "step": _encode_step(node.agent), "input": node.input, "output": node.output}
                    for name, node in composition.nodes.items()
                ],
                "edges": {source: _encode_edge(edge) for source, edge in composition.edges.items()},
                "max_steps": composition.max_steps,
                "keys": list(composition.keys),
                "reducers": {key: _encode_function(function) for key, function in composition.reducers.items()},
            }
    raise Bug(f"a composition of an unknown kind: {type(composition).__qualname__}")


def _decode_composition(data: Mapping[str, Any], step: DecodeStep) -> Composition:
    """Return the rebuilt composition. Raises DefinitionMissing for a part that was not written, or is not found."""
    match data["kind"]:
        case "chain":
            return Chain(tuple(_decode_step(each, step) for each in data["steps"]))
        case "parallel":
            steps = tuple(_decode_step(each, step) for each in data["steps"])
            return Parallel(steps, data["for_each"], data["max_parallel"], data["on_failure"])
        case "graph":
            nodes = {
                each["name"]: Node(each["name"], _decode_step(each["step"], step), each["input"], each["output"])
                for each in data["nodes"]
            }
            edges = {source: _decode_edge(edge, step) for source, edge in data["edges"].items()}
            reducers = {key: _decode_function(each, None, step) for key, each in data["reducers"].items()}
            return Graph(data["name"], nodes, edges, data["max_steps"], tuple(data["keys"]), reducers)
    raise DefinitionMissing("composition of kind", str(data["kind"]))


def _encode_step(agent: Agent) -> dict[str, Any]:
    data: dict[str, Any] = {"agent": recipe(agent)}
    if agent.isolation is not None:
        data["isolation"] = agent.isolation
    if agent.policy is not None:
        data["policy"] = msgspec.to_builtins(agent.policy) if _is_open(agent.policy) else {"@object": agent.name}
    objects = [each.name for each in agent.tool_entries or () if not isinstance(each, str)]
    return data | ({"tools": objects} if objects else {})


def _decode_step(data: Mapping[str, Any], step: DecodeStep) -> Agent:
    agent, policy = step(data["agent"]), data.get("policy")
    if isinstance(policy, Mapping) and "@object" in policy:
        raise DefinitionMissing("policy of", policy["@object"])
    tools_by_name = {each if isinstance(each, str) else each.name: each for each in agent.tool_entries or ()}
    for name in data.get("tools", ()):
        if isinstance(tools_by_name.get(name, name), str):
            raise DefinitionMissing("tool", f"{name} of {agent.name}")
    return agent.replace(
        isolation=data.get("isolation"), policy=from_json(policy) if policy is not None else agent.policy
    )


def _is_open(policy: Policy) -> bool:
    """Return whether a policy may be written openly: it has names of variables and secrets, and no value of one."""
    secrets = policy.secrets.values() if isinstance(policy.secrets, Mapping) else ()
    return not policy.env_vars and all(value is None for value in secrets)


def _encode_edge(edge: str | Route) -> Any:
    if isinstance(edge, str):
        return edge
    targets = None if edge.targets is None else [[answer, target] for answer, target in edge.targets.items()]
    return {"route": _encode_function(edge.function), "targets": targets}


def _decode_edge(edge: Any, step: DecodeStep) -> str | Route:
    if isinstance(edge, str):
        return edge
    targets = edge["targets"]
    return Route(_decode_function(edge["route"], None, step), None if targets is None else dict(targets))
