"""Shorten a conversation before a model's window is full, and keep what later work needs.

Kept unchanged: system messages, the first brief (and a fork's own), the newest messages, and every open call. The
messages in between become one summary, in the user's channel and as data. Agents in it stay known by id, name and path.
A call and its answers are never separated. If no summary can be made, only the text of old tool results is removed.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from ramet.agent.context import FORK_BRIEF, calls_of
from ramet.agent.history.pairing import Group, groups
from ramet.agent.history.pairing import repair as repair
from ramet.agent.history.summary import (
    RUN_ID,
    agent_notes,
    all_text,
    ask_model,
    summary_message,
    summary_prompt,
    text_of,
)
from ramet.core.errors import Aborted, Bug, InvalidValue
from ramet.core.events import Compacted, Notice
from ramet.core.outcome import ErrorInfo
from ramet.models.messages import encode
from ramet.tools.context import ToolUseContext

#: A function that summarises messages as one text. If it raises or returns no text, old tool results are removed
#: instead.
Summarise = Callable[[list[BaseMessage]], Awaitable[str]]

SUMMARY_TOKENS = 4_096  #: maximum tokens of a summary; for a small window, a tenth of it
#: Minimum saving as a multiple of the summary's size; otherwise every turn would request a summary.
_MIN_SAVING_FACTOR = 2
_TAIL_SHARE = 0.5  #: share of the threshold for the newest messages; unread messages are always kept
LEAST_WINDOW = 100  #: tokens
_SHORT_RESULT_CHARS = 200  #: maximum characters of results that stay unchanged
_BLOCK_TOKENS = 1_600  #: tokens of an image or another block without text
_MESSAGE_TOKENS = 8


class _Plan(NamedTuple):
    """The messages to keep and to remove; a summary replaces the first removed ones."""

    middle: tuple[Group, ...]
    answered_groups: tuple[Group, ...]  #: all that the model has answered to: never the results of its newest calls
    orphans: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """The settings of compaction for an agent's own conversation. It has no access to other agents' conversations."""

    window_tokens: int
    at: float = 0.8  #: share of the window at which compaction begins
    keep_last: int = 12  #: number of newest messages that stay unchanged, if they fit
    summarise: Summarise | None = None  #: None asks the agent's own model, from its own budget

    def __post_init__(self) -> None:
        for name, least in (("window_tokens", LEAST_WINDOW), ("keep_last", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidValue(name, value, f"a whole number from {least}")
        if isinstance(self.at, bool) or not isinstance(self.at, int | float) or not 0 < self.at <= 1:
            raise InvalidValue("at", self.at, "a share above 0 and up to 1")

    @property
    def threshold(self) -> int:
        """Return the number of tokens at which compaction begins."""
        return math.floor(self.window_tokens * self.at)

    def is_needed(self, context: ToolUseContext) -> bool:
        """Return whether the next request would come too close to the window."""
        return _tokens(context) >= self.threshold

    async def compact(
        self, context: ToolUseContext, *, pinned_texts: Iterable[str] = (), trigger: str = "auto"
    ) -> bool:
        """Shorten `context.history` if needed, or if `trigger` is "manual"; record and return whether it was.

        `pinned_texts` are words (ids, names) that must be kept. A PreCompact hook may deny the compaction or add
        instructions.
        """
        if trigger == "auto" and not self.is_needed(context):
            return False
        instructions = ""
        if context.hooks is not None and context.hooks.listens("PreCompact"):
            decision = await context.hooks.fire("PreCompact", context, {"trigger": trigger}, matcher=trigger)
            if decision.verdict == "deny":
                return False
            instructions = decision.context
        old_history, tokens = list(context.history), _tokens(context)
        plan = self._plan(old_history)
        pinned_words = {*pinned_texts}
        summary = await self._summary(context, old_history, plan, pinned_words, instructions)
        new_history = (
            _with_summary(old_history, plan, summary)
            if summary
            else _elide_results(old_history, plan.middle, plan.orphans, pinned_words)
        )
        estimate = estimated_tokens(old_history) or 1
        if tokens * estimated_tokens(new_history) / estimate >= self.threshold:  # The newest results are also too long.
            new_history = _elide_results(
                new_history, self._plan(new_history).answered_groups, frozenset(), pinned_words
            )
        if estimated_tokens(new_history) >= estimate:
            return False
        context.history = new_history + context.history[len(old_history) :]
        of_this_turn = {id(message) for message in old_history[context.turn_began_at :]}
        context.turn_began_at = next(
            (at for at, each in enumerate(new_history) if id(each) in of_this_turn), len(new_history)
        )
        context.last_usage = None  # It describes the previous conversation.
        context.emit(
            Compacted,
            before_messages=len(old_history),
            after_messages=len(new_history),
            before_tokens=tokens,
            after_tokens=tokens * estimated_tokens(new_history) // estimate,
            summary=summary,
            kept=_recordable_history(old_history, context.history) if context.durable is not None else (),
        )
        return True

    def _plan(self, history: Sequence[BaseMessage]) -> _Plan:
        pieces = list(groups(history))
        unread = next((i for i in reversed(range(len(pieces))) if isinstance(history[pieces[i].start], AIMessage)), 0)
        remaining_tokens, count, tail = self.threshold * _TAIL_SHARE, 0, len(pieces)
        while tail > 0:
            piece = pieces[tail - 1]
            count += piece.stop - piece.start
            remaining_tokens -= estimated_tokens(history[piece.start : piece.stop])
            if tail <= unread and (count > self.keep_last or remaining_tokens < 0):
                break
            tail -= 1
        briefs = _briefs(history)
        middle = [
            piece
            for piece in pieces[:tail]
            if not piece.open
            and briefs.isdisjoint(range(piece.start, piece.stop))
            and not any(isinstance(each, SystemMessage) for each in history[piece.start : piece.stop])
        ]
        orphans = frozenset(index for piece in pieces for index in piece.orphans)
        return _Plan(tuple(middle), tuple(pieces[:unread]), orphans)

    async def _summary(
        self,
        context: ToolUseContext,
        history: Sequence[BaseMessage],
        plan: _Plan,
        pinned_words: set[str],
        instructions: str,
    ) -> str:
        """Return a summary of the middle with the agents it mentions; empty if there is none or it saves nothing."""
        middle = [message for piece in plan.middle for message in history[piece.start : piece.stop]]
        size = estimated_tokens(middle)
        max_tokens = min(SUMMARY_TOKENS, self.window_tokens // 10)
        if size < max_tokens * _MIN_SAVING_FACTOR:
            return ""
        try:
            if self.summarise is not None:
                text = await self.summarise(middle)
            else:
                # At two and more characters to a token.
                prompt = summary_prompt(middle, instructions, max_chars=self.threshold * 2)
                text = await ask_model(context, prompt, max_tokens=max_tokens)
            if not isinstance(text, str) or not text.strip():
                raise ValueError("the summary is empty")
        except (Aborted, Bug):
            raise
        except Exception as error:  # A provider's failure must not lose the history.
            info = ErrorInfo(type=type(error).__name__, message=str(error)[:500])
            context.emit(Notice, text="no summary could be made; old tool results were left out instead", error=info)
            return ""
        text = text.strip()
        if len(text) > 4 * max_tokens:
            text = text[: 4 * max_tokens] + "…"
        full_text = "\n".join(all_text(message) for message in middle)
        lines = [each for each in await agent_notes(context, full_text, pinned_words) if each not in text]
        if lines:
            text = "\n".join([text, "", "Agents and other names to remember:", *lines])
        return text if len(text) // 3 + _MESSAGE_TOKENS < size else ""


def _recordable_history(
    old_history: Sequence[BaseMessage], new_history: Sequence[BaseMessage]
) -> tuple[int | dict[str, Any], ...]:
    """Return the shorter conversation for the record: positions of kept messages, new ones as data."""
    positions = {id(message): position for position, message in enumerate(old_history)}
    return tuple(positions[id(each)] if id(each) in positions else encode(each) for each in new_history)


def estimated_tokens(messages: Iterable[BaseMessage]) -> int:
    """Return a rough, rather high estimate of the tokens of messages: three bytes per token."""
    return sum(_estimate(message) for message in messages)


def _estimate(message: BaseMessage) -> int:
    size = _MESSAGE_TOKENS + _text_tokens(text_of(message))
    if isinstance(message.content, list):
        size += sum(_block_tokens(each) for each in message.content if _is_other_block(each))
    if isinstance(message, AIMessage):
        size += sum(_text_tokens(f"{call['name']}{call['args']}") for call in calls_of(message))
    return size


def _block_tokens(block: Any) -> int:
    size = block.get("bytes")
    return size // 3 if block.get("mime_type") == "text/plain" and isinstance(size, int) else _BLOCK_TOKENS


def _text_tokens(text: str) -> int:
    return (len(text) if text.isascii() else len(text.encode("utf-8", "replace"))) // 3


def _tokens(context: ToolUseContext) -> int:
    """Return the tokens of the next request: the newest reply's usage plus later messages, or an estimate of all."""
    history, usage = context.history, context.last_usage
    if usage is not None and usage.tokens and not usage.estimated:  # An estimate is what a budget reserved.
        newest = next((i for i in range(len(history) - 1, -1, -1) if isinstance(history[i], AIMessage)), None)
        if newest is not None:
            return usage.tokens + estimated_tokens(history[newest + 1 :])
    return estimated_tokens([*context.system_messages, *history])


def _briefs(history: Sequence[BaseMessage]) -> frozenset[int]:
    """Return the messages that state the goal: the first from a person, and a fork's own brief."""
    humans = [index for index, message in enumerate(history) if isinstance(message, HumanMessage)]
    forks = [index for index in humans if text_of(history[index]).startswith(FORK_BRIEF)]
    return frozenset([*humans[:1], *forks[-1:]])


def _with_summary(history: Sequence[BaseMessage], plan: _Plan, summary: str) -> list[BaseMessage]:
    removed_indexes = {index for piece in plan.middle for index in range(piece.start, piece.stop)} | plan.orphans
    position = plan.middle[0].start
    new_history: list[BaseMessage] = []
    for index, message in enumerate(history):
        if index == position:
            new_history.append(summary_message(summary))
        if index not in removed_indexes:
            new_history.append(message)
    return new_history


def _elide_results(
    history: Sequence[BaseMessage], pieces: Iterable[Group], orphans: frozenset[int], pinned_words: set[str]
) -> list[BaseMessage]:
    """Return the history with the tool results in `pieces` reduced to one line each; ids of agents in them are kept."""
    shortened_indexes = {index for piece in pieces for index in range(piece.start, piece.stop)}
    return [
        _stub(message, pinned_words) if index in shortened_indexes and isinstance(message, ToolMessage) else message
        for index, message in enumerate(history)
        if index not in orphans
    ]


def _stub(message: ToolMessage, pinned_words: set[str]) -> ToolMessage:
    text = all_text(message)
    if len(text) <= _SHORT_RESULT_CHARS and isinstance(message.content, str):
        return message
    ids = dict.fromkeys([*RUN_ID.findall(text), *(word for word in sorted(pinned_words) if word in text)])
    mentions = f"; it names {', '.join(list(ids)[:20])}" if ids else ""
    line = f"[an old result of {message.name or 'a tool'} was left out: {len(text)} characters{mentions}]"
    return message.model_copy(update={"content": line, "artifact": None})


def _is_other_block(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") not in ("text", "tool_use", "thinking", "reasoning")


def check_compaction(compaction: object) -> None:
    """Raise InvalidValue if the value is neither a `Compaction`, nor False, nor None."""
    if compaction is not None and compaction is not False and not isinstance(compaction, Compaction):
        raise InvalidValue(
            "compaction", compaction, "a ramet.agent.history.compaction.Compaction, False for none, or None"
        )
