"""The prompt and the reply of a turn of a program with its own loop, as messages on record."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from ramet.agent.loop import deliver_mail, record_message
from ramet.core.outcome import Status
from ramet.spawn.run import Run, TurnResult


def take_prompt(run: Run, messages: Sequence[BaseMessage]) -> str:
    """Return the prompt of a turn: what was given, and the mail that waits. It is on record from then on.

    A turn that another kernel began has the prompt that this one recorded, and mail that came since.
    """
    context = run.context
    if not run.turn.resumes or len(context.history) == run.turn_began_at:
        given = list(messages)
        if not given and run.turns <= 1 and run.request.prompt:
            given = [HumanMessage(content=run.request.prompt)]
        for message in given:
            record_message(context, message)
    for mail in context.mailbox.drain():
        deliver_mail(context, mail)
    prompt = [each for each in context.history[run.turn_began_at :] if isinstance(each, HumanMessage)]
    return "\n\n".join(str.__str__(each.text) for each in prompt)


def record_reply(run: Run, result: TurnResult) -> None:
    """Record the reply of a turn that completed."""
    if result.status is Status.COMPLETED and isinstance(result.value, str):
        record_message(run.context, AIMessage(content=result.value))
