"""A kernel whose lead has two peers, and which dies while both wait for an answer: `peer_kernel FOLDER BACKEND`."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from ramet import Agent, AgentRuntime, Policy, ScriptedModel
from ramet.models.scripted.dialogue import Call, Hang, ReplyStep
from tests.chaos.deadly import die
from tests.support.waiting import eventually

LEAD = Agent(name="lead", instructions="You lead.", coordinator=True, peers=True)
#: One peer in a sandbox, and one in the host.
PEERS = [
    Agent(name="builder", instructions="You build.", background=True, policy=Policy()),
    Agent(name="tester", instructions="You test.", background=True),
]
DEFINITIONS: Mapping[str, Agent] = {each.name: each for each in PEERS}
MAIL = re.compile(r'<agent-message from="[^"]*" id="([^"]*)">')


def spawn(kind: str) -> Call:
    """Return a call that starts a peer under the name of its type."""
    return Call("Agent", {"subagent_type": kind, "name": kind, "prompt": f"Begin to {kind}"})


def answer_call(request_id: str, decision: str, reason: str = "") -> Call:
    """Return a call that answers a request."""
    return Call("AnswerRequest", {"request_id": request_id, "decision": decision, "reason": reason})


def play(messages: list[BaseMessage]) -> ReplyStep:
    """Play the lead that never answers, and its peers."""
    return _play(messages, leads=False)


def play_on(messages: list[BaseMessage]) -> ReplyStep:
    """Play the lead that answers, and its peers."""
    return _play(messages, leads=True)


def _play(messages: list[BaseMessage], *, leads: bool) -> ReplyStep:
    role, *texts = (str.__str__(each.text) for each in messages)
    replies = [at for at, each in enumerate(messages) if isinstance(each, AIMessage)]
    news = texts[replies[-1] if replies else 0 :]  # What came since its last reply.
    if "You lead" in role:
        if len(replies) < 2:
            return [spawn("builder"), spawn("tester")][len(replies)]
        return _lead(news) if leads else Hang()
    if "You build" in role:
        if not any("approved the plan: But test it." in each for each in texts):
            return Call("SubmitPlan", {"plan": "Use two passes."})
        is_sent = any(each.startswith("Delivered") for each in texts)
        return "It is done." if is_sent else Call("SendMessage", {"to": "tester", "message": "It is built."})
    if mail_id := _mail_with("shut down", news):
        has_refused = "Answered." in texts
        return answer_call(mail_id, "approve", "Good bye.") if has_refused else answer_call(mail_id, "reject", "Busy.")
    return Call("SubmitPlan", {"plan": "Test more." if "Answered." in texts else "Test it."})


def _lead(news: list[str]) -> ReplyStep:
    if plan_id := _mail_with("two passes", news):
        return answer_call(plan_id, "approve", "But test it.")
    if any("It is done" in each for each in news) or _mail_with("refuses", news):
        return Call("RequestShutdown", {"to": "tester", "reason": "All is built."})
    return "All are gone." if any("cancelled" in each for each in news) else "I wait."


def _mail_with(text: str, news: list[str]) -> str:
    """Return the id of the mail with this text, or nothing."""
    found = (MAIL.search(each) for each in news if text in each)
    return next((match[1] for match in found if match is not None), "")


async def main(folder: str, backend: Any) -> None:
    """Work until both peers wait, and die."""
    async with AgentRuntime(folder, backend=backend) as runtime:
        handle = await runtime.spawn(LEAD.replace(model=ScriptedModel(play)), "Ship it", agents=DEFINITIONS)
        tree = runtime.trees[handle.id]
        runs = tree.tree.register.runs
        await eventually(lambda: sorted(str(each.state) for each in runs.values())[1:] == ["waiting", "waiting"])
        await tree.recorder.durable()  # type: ignore[misc]  # it has a journal
        die()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
