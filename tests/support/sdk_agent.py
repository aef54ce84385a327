"""An agent that speaks ACP by the library of the protocol, as a program: its prompts are what it does, in JSON.

    [{"call": "c1", "name": "Write", "input": {"path": "a"}}, {"ask": "c1"}, {"end": "c1"}, {"say": "Done."}]

A prompt that is not a list is said again. `--load` and `--resume` are what it can do with a session of another process;
with `--ends-at-denial` a turn ends with a rejected call, and with `--asks-again` each prompt is the first one again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from acp import (
    PROTOCOL_VERSION,
    Client,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptResponse,
    RequestError,
    run_agent,
    start_tool_call,
    text_block,
    tool_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_tool_call,
    update_user_message_text,
)
from acp.helpers import plan_entry
from acp.schema import (
    AgentCapabilities,
    PermissionOption,
    PermissionOptionKind,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionResumeCapabilities,
    ToolCallStatus,
    ToolCallUpdate,
)

SESSION = "session-1"


class SdkAgent:
    """An agent with one session."""

    client: Client

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._cancelled = asyncio.Event()
        self._repeated: list[Any] | None = None

    def on_connect(self, conn: Client) -> None:
        """Keep the client."""
        self.client = conn

    async def initialize(self, protocol_version: int, client_capabilities: Any = None, **_: Any) -> InitializeResponse:
        """Say what the agent can do."""
        assert client_capabilities is not None
        assert client_capabilities.terminal is False
        resume = SessionResumeCapabilities() if "--resume" in self._arguments else None
        capabilities = AgentCapabilities(
            load_session="--load" in self._arguments, session_capabilities=SessionCapabilities(resume=resume)
        )
        return InitializeResponse(protocol_version=PROTOCOL_VERSION, agent_capabilities=capabilities)

    async def new_session(self, cwd: str, **_: Any) -> NewSessionResponse:
        """Begin the session."""
        assert cwd == str(Path.cwd())
        return NewSessionResponse(session_id=SESSION)

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> LoadSessionResponse:
        """Replay the session."""
        self._check(session_id)
        await self.client.session_update(session_id, update_user_message_text("Earlier."))
        await self.client.session_update(session_id, start_tool_call("c1", "Earlier", status="completed"))
        await self.client.session_update(session_id, update_agent_message_text("Said earlier."))
        return LoadSessionResponse()

    async def resume_session(self, session_id: str, cwd: str, **_: Any) -> ResumeSessionResponse:
        """Go on with the session."""
        self._check(session_id)
        return ResumeSessionResponse()

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Cancel the turn."""
        self._cancelled.set()

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> PromptResponse:
        """Do what the prompt says."""
        try:
            steps = self._repeated or json.loads(prompt[0].text)
            self._repeated = steps if "--asks-again" in self._arguments else None
        except ValueError:
            steps = [{"say": f"You said: {prompt[0].text}"}]
        for step in steps:
            if "stop" in step:
                return PromptResponse(stop_reason=step["stop"])
            if "fail" in step:
                raise RequestError(-32603, step["fail"])
            if "hang" in step:
                await self._cancelled.wait()
                return PromptResponse(stop_reason="cancelled")
            if await self._do(step, session_id) == "denied" and "--ends-at-denial" in self._arguments:
                return PromptResponse(stop_reason="cancelled")
        return PromptResponse(stop_reason="end_turn")

    async def _do(self, step: dict[str, Any], session: str) -> str:
        match step:
            case {"say": text}:
                await self.client.session_update(session, update_agent_message_text(text))
            case {"think": text}:
                await self.client.session_update(session, update_agent_thought_text(text))
            case {"plan": texts}:
                plan = update_plan(plan_entry(each, status="in_progress") for each in texts)
                await self.client.session_update(session, plan)
            case {"call": number, **rest}:
                call = start_tool_call(
                    number, str(rest.get("title", "A call")), kind=rest.get("kind"), status="pending",
                    raw_input=rest.get("input"),
                )  # fmt: skip
                await self.client.session_update(session, call)
            case {"end": number, **rest}:
                content = [tool_content(text_block(str(rest.get("output", "done"))))]
                status: ToolCallStatus = "failed" if rest.get("failed") else "completed"
                await self.client.session_update(
                    session, update_tool_call(number, status=status, content=content, raw_input=rest.get("input"))
                )
            case {"ask": number, **rest}:
                return await self._ask(number, rest, session)
            case {"read": path}:
                await self.client.read_text_file(session, path)
        return ""

    async def _ask(self, number: str, rest: dict[str, Any], session: str) -> str:
        kinds: list[PermissionOptionKind] = rest.get("kinds") or ["allow_always", "allow_once", "reject_once"]
        options = [PermissionOption(option_id=f"id-{kind}", name=kind, kind=kind) for kind in kinds]
        call = ToolCallUpdate(
            tool_call_id=number, title=rest.get("title"), kind=rest.get("kind"), raw_input=rest.get("input")
        )
        answer = (await self.client.request_permission(session, call, options)).outcome
        chosen = answer.option_id if answer.outcome == "selected" else answer.outcome
        await self.client.session_update(session, update_agent_message_text(f"[{chosen}]"))
        return "" if chosen.startswith("id-allow") else "denied"

    def _check(self, session: str) -> None:
        if session != SESSION:
            raise RequestError.resource_not_found(session)


if __name__ == "__main__":
    asyncio.run(run_agent(SdkAgent(sys.argv[1:]), use_unstable_protocol=True))  # type: ignore[arg-type]
