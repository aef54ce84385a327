"""The points of recorded runs from which other runs begin: their messages, and their states."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ramet.agent.definition import Agent
from ramet.agent.history.compaction import repair
from ramet.core.errors import DefinitionMissing, InvalidValue, Unknown
from ramet.core.media.blocks import is_stored
from ramet.core.outcome import Usage
from ramet.core.replay.run_replay import RunReplay
from ramet.host.dynamic.namespaces import place_of, recorded_state_location, state_location
from ramet.host.dynamic.registry import Registries
from ramet.host.dynamic.time_travel import recorded_events, state_at
from ramet.host.journal.blobs import share_blob
from ramet.host.journal.journal import Journal
from ramet.host.recovery.resume import SPAWNING, ResolvedInputs, required_gate
from ramet.host.serialize.recipes import agent_of
from ramet.models.messages import decode
from ramet.spawn.birth.record import cwd_of, inheritable_names
from ramet.spawn.ports import ForkSource
from ramet.spawn.run import Run
from ramet.tools.builtins import builtin_tools

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.tools import BaseTool


class ForkPoint(NamedTuple):
    """The state of a run at some moment, from which another run begins."""

    agent: Agent
    tools: tuple[BaseTool, ...]
    messages: list[BaseMessage]
    cwd: pathlib.Path | None
    used: Usage  #: by the run and all runs below it
    state_owner: str  #: the owner of the states of its tree


def point_of_run(run: Run, at: int | None) -> ForkPoint:
    """Return the fork point of a run of this process without a journal. Raises InvalidValue."""
    if run.agent.function is not None or at is not None:
        raise InvalidValue("run", run.info.id, "a run of a model, without at: this runtime has no journal")
    tools = tuple(tool for tool in run.inheritable_tools if tool.name not in SPAWNING)
    messages, owner = repair(list(run.context.history)), state_location(run).owner
    return ForkPoint(run.agent, tools, messages, run.context.cwd, run.subtree, owner)


async def fork_point(journal: Journal | None, run: str, at: int | None, supplied: ResolvedInputs) -> ForkPoint:
    """Return the fork point of a run at the event numbered `at`. Raises Unknown, InvalidValue, DefinitionMissing."""
    tree_replay = await journal.replay_of(run, at) if journal is not None else None
    if journal is None or tree_replay is None or run not in tree_replay.runs:
        raise Unknown("run", run)
    about = await journal.tree_facts(tree_replay.root.id)
    required_gate(about, supplied)
    replay = tree_replay.runs[run]
    if not _has_conversation(replay):
        raise InvalidValue("run", run, "a run of a model: a function has no conversation to continue")
    agents = {each.name: each for each in supplied.agents}
    agent = agent_of(replay.spawn_event.birth["agent"], agents=agents, model=supplied.model)
    tools_by_name = {tool.name: tool for tool in (*builtin_tools({}).values(), *supplied.tools)}
    names = inheritable_names(replay.spawn_event)
    missing = [name for name in names if name not in tools_by_name]
    if missing:
        raise DefinitionMissing("tool", missing[0])
    tools = tuple(tools_by_name[name] for name in names if name not in SPAWNING)
    messages = repair([decode(each) for each in replay.messages])
    owner = tree_replay.root.spawn_event.birth.get("state_owner", "")
    used = replay.result.usage_subtree if replay.result is not None else replay.subtree
    return ForkPoint(agent, tools, messages, cwd_of(about) if about.get("cwd") else None, used, owner)


async def recorded_fork_source(
    journal: Journal, registries: Registries, root: str, run: str, at: int | None
) -> ForkSource:
    """Return the messages and the state of a run at the event numbered `at`, for a fork in the tree of `root`.

    Nothing of the run's tree changes. The tree of `root` keeps the images and documents of the messages. Raises
    Unknown, InvalidValue.
    """
    tree_replay = await journal.replay_of(run, at)
    if tree_replay is None or run not in tree_replay.runs:
        raise Unknown("run", run)
    replay = tree_replay.runs[run]
    messages = repair([decode(each) for each in replay.messages]) if _has_conversation(replay) else []
    await share_files(journal, root, messages)
    state = await state_at(registries, recorded_events(journal, run), run, tree_replay.seq)
    location = recorded_state_location({id: each.spawn_event for id, each in tree_replay.runs.items()}, run)
    return ForkSource(
        messages=tuple(messages),
        place=place_of(location),
        begins_at=state.head.id if state.head is not None else "",
        owner=location.owner,
        is_gated=bool((await journal.tree_facts(tree_replay.root.id)).get("gated")),
    )


async def share_files(journal: Journal, root: str, messages: Sequence[BaseMessage]) -> None:
    """Give a tree the images and documents of messages of another tree."""
    for message in messages:
        for block in message.content if isinstance(message.content, list) else ():
            if is_stored(block):
                assert isinstance(block, dict), "it is stored"
                await share_blob(journal.store, root, block["blob"])


def _has_conversation(replay: RunReplay) -> bool:
    """Return whether a run is one of a model, with a recorded definition."""
    recipe = replay.spawn_event.birth.get("agent")
    return recipe is not None and {"function", "external"}.isdisjoint(recipe)
