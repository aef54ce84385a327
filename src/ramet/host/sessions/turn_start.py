"""The start of a session's turn: a prompt is checked, passes the hooks, and begins a turn or joins the one at work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ramet.agent.mentions import find_mentions, marked_prompt
from ramet.agent.tool_entry import SPAWNERS
from ramet.core.errors import BusyError, Denied, InvalidValue, RametError
from ramet.core.lifecycle import State
from ramet.core.media.attachment import Attachment, check_attachments
from ramet.core.media.blocks import attachment_blocks
from ramet.core.outcome import Result
from ramet.host.runtime import AgentRuntime
from ramet.host.sessions.trees import Conversation
from ramet.host.trees.turn_stream import TurnStream
from ramet.spawn.run import Run
from ramet.tools.context import ToolUseContext

MAX_PROMPT = 1_000_000


def check_prompt(text: str, attachments: Sequence[Attachment]) -> None:
    """Raise InvalidValue for a text that is empty or too long, and for invalid attachments."""
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_PROMPT:
        raise InvalidValue("message", text, f"text of 1 to {MAX_PROMPT} characters")
    check_attachments(attachments)


def check_free(run: Run) -> None:
    """Raise BusyError while a turn is under way that no prompt can join, and RametError once the run has ended."""
    if not run.is_living:
        raise RametError("this session has ended")
    if run.turn.on_result is not None or (run.state is not State.IDLE and run.turns > 0 and not run.turn.woken_by_mail):
        raise BusyError("a turn is under way; wait for it, interrupt it, or send() to it")


def check_readable(run: Run, attachments: Sequence[Attachment]) -> None:
    """Raise InvalidValue if there are attachments, and the run's agent reads texts alone."""
    if attachments and run.agent.function is not None:
        raise InvalidValue("attachments", attachments, "none: this agent is no model, and reads a text alone")


async def begin_turn(
    conversation: Conversation,
    runtime: AgentRuntime,
    text: str,
    attachments: Sequence[Attachment],
    *,
    mentions: bool,
    on_end: Callable[[Result], None],
) -> TurnStream:
    """Begin a turn of the root with a checked prompt, and return its stream.

    With `mentions`, the agent types that the prompt mentions are spawned. `on_end` is called with the turn's result.
    Raises BusyError if another prompt was faster, Denied if a hook denies the prompt, and Unknown for a mention.
    """
    run, tree = conversation.root, conversation.open_tree.tree
    prompt = await _run_prompt_hooks(run.context, text)
    if run.turn.woken_by_mail:
        # Readers get only recorded events: wait, so that those of an earlier turn are not read here.
        await run.context.wait_persisted()
    if attachments:
        await runtime.open_store()
    blocks = await attachment_blocks(attachments, run.context.store_blob)
    check_free(run)  # Another prompt may have arrived while the hooks inspected this one.
    mentioned = _find_mentions(conversation, text) if mentions else ()
    is_free = (run.state is State.IDLE or run.turns == 0) and not run.context.is_paused
    if mentioned and not is_free:
        raise BusyError("another turn is under way, or paused: a prompt with a mention begins a turn of its own")
    if blocks and not is_free:
        raise BusyError("a prompt with attachments begins a turn of its own: the agent is paused, or at work")
    # After a kill the brief is pending already.
    brief = run.agent.initial_prompt if run.turns == 0 and not run.pending else ""
    prompt = f"{brief}\n\n{prompt}".strip() if brief else prompt
    turn = TurnStream(run, conversation.open_tree.recorder, on_end)
    try:
        if is_free:
            content: Any = [{"type": "text", "text": prompt}, *blocks] if blocks else prompt
            tree.supervisor.prompt(run, marked_prompt(content, mentioned, run.context.history))
        else:  # A notice has woken the run, and the prompt joins that turn; or it is paused, and the prompt is kept.
            tree.post.deliver(run, prompt, sender="user", kind="user")
    except BaseException:  # A mailbox may be full. A refused prompt must not count as the reader of a turn.
        turn.close()
        raise
    return turn


def _find_mentions(conversation: Conversation, prompt: str) -> tuple[str, ...]:
    """Return the agent types that a prompt mentions. Raises Unknown, InvalidValue."""
    context = conversation.root.context
    may_spawn = any(tool.name in SPAWNERS for tool in context.tools)
    return find_mentions(prompt, conversation.open_tree.tree.spawnable(context) if may_spawn else ())


async def _run_prompt_hooks(context: ToolUseContext, text: str) -> str:
    if context.hooks is None or not context.hooks.listens("UserPromptSubmit"):
        return text
    decision = await context.hooks.fire("UserPromptSubmit", context, {"prompt": text})
    if decision.verdict == "deny":
        raise Denied("prompt", decision.reason or "a hook denied it")
    return f"{text}\n\n{decision.context}" if decision.context else text
