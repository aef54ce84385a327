"""A written dialogue: the steps of a scripted model, and the choice of the dialogue for a request.

A script is one of three things:

- a list of steps: each request takes the next one, from any sender;
- a mapping {pattern: steps}: a request belongs to the first pattern found in its system prompt, otherwise to one found
  in its latest human message with a pattern ("" is found everywhere). The step depends on the request's own history:
  the number of replies since that message. So any number of agents may use the same dialogue concurrently, and a
  resumed agent continues at its place. Steps that fail are played once each;
- a function of the messages: it answers every request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.messages.ai import UsageMetadata

from ramet.core.errors import InvalidValue, ModelFailed


@dataclass(frozen=True, kw_only=True)
class _TimedStep:
    usage: UsageMetadata | None = None  #: as given, or computed from the texts
    delay_s: float = 0.0  #: before the first chunk


@dataclass(frozen=True)
class Say(_TimedStep):
    """A text reply, with its usage, a delay, and its chunks (by word, unless given)."""

    text: str
    chunks: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Call:
    """A tool call. Its id, unless given, is computed from the place in the dialogue."""

    tool: str
    args: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True)
class Fail:
    """A failure in place of a reply: an HTTP status, an exception, or the reason of a permanent failure."""

    error: int | str | Exception
    retry_after_s: float | None = None


@dataclass(frozen=True)
class Cut:
    """A reply whose connection breaks after `after_chars` characters."""

    after_chars: int
    text: str = "This reply is cut before its end."


@dataclass(frozen=True)
class Hang:
    """A reply that stops after `after_chars` characters and waits until it is cancelled."""

    after_chars: int = 0
    text: str = "This reply never comes to its end."


ReplyStep: TypeAlias = "str | AIMessage | Say | Call | Sequence[Call] | Fail | Cut | Hang"
Step: TypeAlias = "ReplyStep | Answer"
Answer: TypeAlias = "Callable[[list[BaseMessage]], Step]"
Script: TypeAlias = "Sequence[Step] | Mapping[str, Sequence[Step]] | Answer"


class ResolvedStep(NamedTuple):
    """A resolved step: functions were called, and its place is known."""

    step: ReplyStep
    label: str  #: for example "3" or "searcher/2": the base of call ids


class Dialogue:
    """A player of a script: one step for each request."""

    def __init__(self, script: Script) -> None:
        self._script: Mapping[str, Sequence[Step]] | Sequence[Step] | Answer
        if callable(script):
            self._script = script
        elif isinstance(script, Mapping):
            self._script = {str(pattern): tuple(steps) for pattern, steps in script.items()}
        elif isinstance(script, Sequence) and not isinstance(script, str):
            self._script = tuple(script)
        else:
            raise InvalidValue("script", script, "a list of steps, a mapping of pattern to steps, or a function")
        self._steps_taken = 0
        self._failure_counts: Counter[tuple[str, int, str]] = Counter()

    @property
    def steps_left(self) -> int | None:
        """The number of steps of a list that no request has taken; None for a mapping or a function."""
        if callable(self._script) or isinstance(self._script, Mapping):
            return None
        return max(0, len(self._script) - self._steps_taken)

    def next_step(self, messages: Sequence[BaseMessage]) -> ResolvedStep:
        """Return the step that answers this request. Raises ModelFailed, with the step, if the script has ended."""
        if callable(self._script):
            self._steps_taken += 1
            return ResolvedStep(_resolve(self._script, messages), str(self._steps_taken))
        if isinstance(self._script, Mapping):
            return self._step_of_history(self._script, messages)
        self._steps_taken += 1
        return ResolvedStep(
            _resolve(_step(self._script, self._steps_taken - 1, "the script"), messages), str(self._steps_taken)
        )

    def _step_of_history(
        self, dialogues: Mapping[str, Sequence[Step]], messages: Sequence[BaseMessage]
    ) -> ResolvedStep:
        pattern, opening = _opening(dialogues, messages)
        reply_count = sum(isinstance(message, AIMessage) for message in messages[opening + 1 :])
        steps = dialogues[pattern]
        label = f"the script of {pattern!r}" if pattern else "the script"
        # Failures leave no reply in the history: failures before this place, and those already played here, are
        # skipped.
        key = (pattern, reply_count, str(messages[opening].content))
        failures_here = self._failure_counts[key]
        at = _index_after(steps, reply_count) + failures_here
        step = _resolve(_step(steps, at, label), messages)
        if isinstance(step, Fail | Cut | Hang):
            self._failure_counts[key] += 1
        return ResolvedStep(step, f"{pattern or 'any'}/{at + 1}")


def _step(steps: Sequence[Step], index: int, label: str) -> Step:
    if index < len(steps):
        return steps[index]
    reason = f"{label} ended: step {index + 1} was requested, it has {len(steps)}"
    raise ModelFailed("scripted", reason, unsent=True)


def _resolve(step: Step, messages: Sequence[BaseMessage]) -> ReplyStep:
    while callable(step) and not isinstance(step, str):  # The `text` of a message is a str that can be called.
        step = step(list(messages))
    return str(step) if isinstance(step, str) else step


def _index_after(steps: Sequence[Step], replies: int) -> int:
    """Return the index of the first step after `replies` steps that are replies."""
    for index, step in enumerate(steps):
        if replies == 0:
            return index
        if not isinstance(step, Fail | Cut | Hang):
            replies -= 1
    return len(steps) + replies


def _opening(dialogues: Mapping[str, Sequence[Step]], messages: Sequence[BaseMessage]) -> tuple[str, int]:
    """Return the pattern of a request, and the index of the message that contains it."""
    patterns = [pattern for pattern in dialogues if pattern]
    if messages and isinstance(messages[0], SystemMessage):
        match = _find_pattern(patterns, messages[0])
        if match is not None:
            return match, 0
    for index in range(len(messages) - 1, -1, -1):
        if isinstance(messages[index], HumanMessage):
            match = _find_pattern(patterns, messages[index])
            if match is not None:
                return match, index
    if "" in dialogues:
        return "", 0
    reason = f"no dialogue matches this request; known patterns: {', '.join(patterns) or 'none'}"
    raise ModelFailed("scripted", reason, unsent=True)


def _find_pattern(patterns: Sequence[str], message: BaseMessage) -> str | None:
    text = message.content if isinstance(message.content, str) else str(message.content)
    if text.startswith("<task-notification"):  # it quotes other agents, and opens no dialogue
        return None
    return next((pattern for pattern in patterns if pattern in text), None)
