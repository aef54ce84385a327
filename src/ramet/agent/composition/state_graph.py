"""`StateGraph`: build a graph with the method names of LangGraph, and compile it to an agent."""

from __future__ import annotations

import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from ramet.agent.composition.chain import Step
from ramet.agent.composition.graph import END, START, Graph, Node, Route
from ramet.agent.definition import Agent, as_agent
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.ids import checked_name

#: LangGraph's default.
MAX_STEPS = 25


class StateGraph:
    """A graph under construction. `compile` validates it and returns an agent.

    With a `state_schema`, a TypedDict or another class with annotations, nodes may change only its keys, and
    `Annotated[list, operator.add]` sets how a change is combined with the current value. Without one the state is a
    dict of any keys, or any one value that each node replaces.
    """

    def __init__(self, state_schema: type[Any] | None = None) -> None:
        if state_schema is not None and not isinstance(state_schema, type):
            raise InvalidValue("state_schema", state_schema, "a TypedDict, or another class with annotations")
        hints = {} if state_schema in (None, dict) else typing.get_type_hints(state_schema, include_extras=True)
        self._keys = tuple(hints)
        self._reducers = {key: last for key, hint in hints.items() if (last := _reducer(hint)) is not None}
        self._nodes: dict[str, Node] = {}
        self._edges: dict[str, str | Route] = {}

    def add_node(
        self, node: str | Step, action: Step | None = None, *, input: str | None = None, output: str | None = None
    ) -> StateGraph:
        """Add a step under a name, or under its own: an agent, a function, or a composition.

        A function receives the state, or its key `input`, and returns a dict of changes; with `output` its return value
        is stored under that key. An agent's answer is stored under `output`, or its name. Raises InvalidValue.
        """
        if isinstance(node, str):
            if action is None:
                raise InvalidValue("action", action, f"the step {node!r}: an agent or a function")
            name, agent = node, as_agent(action)
        else:
            agent = as_agent(node)
            name = agent.name
        checked_name("node", name)
        if name in self._nodes or name in (START, END):
            raise InvalidValue("node", name, "a name that no other node has")
        for parameter, key in (("input", input), ("output", output)):
            if key is not None and self._keys and key not in self._keys:
                raise InvalidValue(parameter, key, f"a key of the state: {', '.join(self._keys)}")
        self._nodes[name] = Node(name, agent, input, output)
        return self

    def add_edge(self, start_key: str, end_key: str) -> StateGraph:
        """Add a fixed edge from a node, or START, to a node, or END.

        Raises InvalidValue for a second edge of a node.
        """
        return self._connect(start_key, end_key)

    def add_conditional_edges(
        self,
        source: str,
        path: Callable[..., Any],
        path_map: Mapping[Hashable, str] | Sequence[str] | None = None,
    ) -> StateGraph:
        """Add a conditional edge: `path` gets the state and returns the next node, or a key of `path_map`."""
        if not callable(path):
            raise InvalidValue("path", path, "a function of the state")
        if path_map is not None and not isinstance(path_map, Mapping):
            path_map = {name: name for name in path_map}
        return self._connect(source, Route(path, dict(path_map) if path_map is not None else None))

    def set_entry_point(self, key: str) -> StateGraph:
        """Set the first node."""
        return self._connect(START, key)

    def set_conditional_entry_point(
        self, path: Callable[..., Any], path_map: Mapping[Hashable, str] | Sequence[str] | None = None
    ) -> StateGraph:
        """Set the function that chooses the first node from the state."""
        return self.add_conditional_edges(START, path, path_map)

    def set_finish_point(self, key: str) -> StateGraph:
        """End after this node, as after any node without an edge."""
        return self._connect(key, END)

    def compile(self, *, name: str = "graph", description: str = "", max_steps: int = MAX_STEPS) -> Agent:
        """Return an agent that runs the graph. Raises InvalidValue or Unknown for an invalid graph.

        After `max_steps` nodes the agent fails with StepsExceeded, which names the next node.
        """
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise InvalidValue("max_steps", max_steps, "a whole number from 1")
        if START not in self._edges:
            raise InvalidValue("entry point", None, "set_entry_point(node), or add_edge(START, node)")
        for source, edge in self._edges.items():
            for target in (edge,) if isinstance(edge, str) else (edge.targets or {}).values():
                if target != END and target not in self._nodes:
                    raise Unknown(f"node after {source!r}", target, (*self._nodes, END))
            if source != START and source not in self._nodes:
                raise Unknown("node that an edge begins at", source, (START, *self._nodes))
        unreachable = set(self._nodes) - self._reachable_nodes()
        if unreachable:
            raise InvalidValue("node", sorted(unreachable)[0], "one that an edge leads to")
        graph = Graph(name, dict(self._nodes), dict(self._edges), max_steps, self._keys, dict(self._reducers))
        return Agent(name=name, description=description, function=graph)

    def _connect(self, source: str, edge: str | Route) -> StateGraph:
        if source == END:
            raise InvalidValue("source", source, "a node, or START: no edge begins at END")
        if edge == START:
            raise InvalidValue("edge", edge, "a node, or END: no edge leads to START")
        if source in self._edges:
            accepted = "one edge from a node; a node that is parallel(…) runs several steps at once"
            raise InvalidValue(f"edge from {source}", edge, accepted)
        self._edges[source] = edge
        return self

    def _reachable_nodes(self) -> set[str]:
        """Return the nodes that can be reached from the start; a route without a map may lead to any."""
        reachable_nodes, queue = set[str](), [START]
        while queue:
            edge = self._edges.get(queue.pop(), END)
            if isinstance(edge, Route) and edge.targets is None:
                return set(self._nodes)
            targets = {edge} if isinstance(edge, str) else set((edge.targets or {}).values())
            new = targets - reachable_nodes - {END}
            reachable_nodes |= new
            queue.extend(new)
        return reachable_nodes


def _reducer(hint: Any) -> Callable[[Any, Any], Any] | None:
    metadata = getattr(hint, "__metadata__", ())
    return metadata[-1] if metadata and callable(metadata[-1]) else None
