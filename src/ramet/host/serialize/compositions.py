"""The conversion of a composition to data and back, for the journal: its shape, and its steps as recipes.

Functions are named by reference, as everywhere. A policy with values of variables or secrets is not written: the caller
of a resume supplies its composition again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ramet.agent.composition.chain import Chain
from ramet.agent.composition.graph import Graph, Node, Route
from ramet.agent.composition.parallel import Parallel
from ramet.agent.composition.steps import Composition
from ramet.agent.definition import Agent
from ramet.core.errors import Bug, DefinitionMissing
from ramet.core.policy.policy import Policy, from_json

Recipe = Callable[[Agent], dict[str, Any]]
EncodeFunction = Callable[[Any], dict[str, Any]]  #: returns a function as data
DecodeAgent = Callable[[Mapping[str, Any]], Agent]  #: returns the agent of a recipe
DecodeFunction = Callable[[Mapping[str, Any]], Callable[..., Any]]


def encode(composition: Composition, recipe: Recipe, encode_function: EncodeFunction) -> dict[str, Any]:
    """Return the data from which a composition can be rebuilt."""
    match composition:
        case Chain(steps):
            return {"kind": "chain", "steps": [_encode_step(each, recipe) for each in steps]}
        case Parallel(branches, for_each, max_parallel, on_failure):
            return {
                "kind": "parallel",
                "steps": [_encode_step(each, recipe) for each in branches],
                "for_each": for_each,
                "max_parallel": max_parallel,
                "on_failure": on_failure,
            }
        case Graph():
            return {
                "kind": "graph",
                "name": composition.name,
                "nodes": [
                    {"name": name, "step": _encode_step(node.agent, recipe), "input": node.input, "output": node.output}
                    for name, node in composition.nodes.items()
                ],
                "edges": {source: _encode_edge(edge, encode_function) for source, edge in composition.edges.items()},
                "max_steps": composition.max_steps,
                "keys": list(composition.keys),
                "reducers": {key: encode_function(function) for key, function in composition.reducers.items()},
            }
    raise Bug(f"a composition of an unknown kind: {type(composition).__qualname__}")


def decode(data: Mapping[str, Any], decode_agent: DecodeAgent, decode_function: DecodeFunction) -> Composition:
    """Return the rebuilt composition. Raises DefinitionMissing for a part that was not written, or is not found."""
    match data["kind"]:
        case "chain":
            return Chain(tuple(_decode_step(each, decode_agent) for each in data["steps"]))
        case "parallel":
            steps = tuple(_decode_step(each, decode_agent) for each in data["steps"])
            return Parallel(steps, data["for_each"], data["max_parallel"], data["on_failure"])
        case "graph":
            nodes = {
                each["name"]: Node(
                    each["name"], _decode_step(each["step"], decode_agent), each["input"], each["output"]
                )
                for each in data["nodes"]
            }
            edges = {source: _decode_edge(edge, decode_function) for source, edge in data["edges"].items()}
            reducers = {key: decode_function(each) for key, each in data["reducers"].items()}
            return Graph(data["name"], nodes, edges, data["max_steps"], tuple(data["keys"]), reducers)
    raise DefinitionMissing("composition of kind", str(data["kind"]))


def _encode_step(agent: Agent, recipe: Recipe) -> dict[str, Any]:
    data: dict[str, Any] = {"agent": recipe(agent)}
    if agent.isolation is not None:
        data["isolation"] = agent.isolation
    if agent.policy is not None:
        data["policy"] = msgspec.to_builtins(agent.policy) if _is_open(agent.policy) else {"@object": agent.name}
    objects = [each.name for each in agent.tool_entries or () if not isinstance(each, str)]
    return data | ({"tools": objects} if objects else {})


def _decode_step(data: Mapping[str, Any], decode_agent: DecodeAgent) -> Agent:
    agent, policy = decode_agent(data["agent"]), data.get("policy")
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


def _encode_edge(edge: str | Route, encode_function: EncodeFunction) -> Any:
    if isinstance(edge, str):
        return edge
    targets = None if edge.targets is None else [[answer, target] for answer, target in edge.targets.items()]
    return {"route": encode_function(edge.function), "targets": targets}


def _decode_edge(edge: Any, decode_function: DecodeFunction) -> str | Route:
    if isinstance(edge, str):
        return edge
    targets = edge["targets"]
    return Route(decode_function(edge["route"]), None if targets is None else dict(targets))
