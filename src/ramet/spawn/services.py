"""What the host gives to a tree: every way out of it, as plain callables."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from ramet.agent.compaction import Compaction
from ramet.agent.definition import Agent
from ramet.agent.hook_config import HookConfig
from ramet.concurrency.clock import Clock
from ramet.core.events import Event
from ramet.core.ids import RunId
from ramet.tools.context import Approve, Ask, Hooks, RunInfo

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessageChunk
    from langchain_core.tools import BaseTool

#: Seconds that a cancelled run gets to come to its end before it is fenced off.
GRACE_S = 5.0


class ModelPort(NamedTuple):
    """A model as a run reaches it."""

    ask: Ask
    label: str  #: for events and prices
    window: int | None = None  #: input tokens that it takes, if it says


@dataclass(frozen=True, kw_only=True)
class Services:
    """The ports of one tree."""

    model: Callable[[str | BaseChatModel], ModelPort]  #: raises Unknown, MissingExtra
    record: Callable[[Event], Event]
    feed: Callable[[RunInfo, AIMessageChunk, str], None]  #: a chunk of a reply: provisional
    clock: Clock
    mint: Callable[[], RunId]
    definitions: Mapping[str, Agent]
    instructions: Callable[[Agent, pathlib.Path, pathlib.Path], str]  #: of a fresh agent, by its folder; where it works
    own_tools: Callable[[Agent, pathlib.Path], Sequence[BaseTool]]  #: what a definition brings itself, such as memory
    follow: Callable[[RunInfo], AsyncGenerator[Event]]  #: a run's events, kept ones first, then live
    spill: Callable[[RunInfo], Callable[[str, str], pathlib.Path] | None]
    hooks: Callable[
        [Agent, tuple[HookConfig, ...], bool], Hooks | None
    ]  #: of a definition, and whether it runs as a child
    approve: Approve | None = None
    compaction: Callable[[int | None], Compaction | None] = lambda _: None  #: for a model's window
    grace_s: float = GRACE_S
    omitted_type: Literal["fork", "general-purpose"] = "fork"  #: what a spawn without a type means
    kept_runs: int = 256  #: finished runs whose history stays, so that mail can take them up again
    read_roots: Callable[[RunInfo], tuple[pathlib.Path, ...]] = lambda _: ()
