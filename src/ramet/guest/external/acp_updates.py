"""Updates of a session of the Agent Client Protocol: what each says of the reply, calls, the plan, and sub-agents.

Programs differ. A call may be announced before its arguments are known (OpenCode), or only by the question whether it
may be done (Gemini CLI). Sub-agents have a session of their own, or calls that name the call above them (Claude Code).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ramet.core.errors import TaskFailed
from ramet.core.events import PlanStep
from ramet.guest.external.json_lines import Json
from ramet.guest.external.program_host import CallStatus, ProgramHost, SubAgentState
from ramet.guest.external.reports import CallReports, Reply, arguments_of, preview_of

#: Calls that were announced, sub-agents, and steps of a plan.
MAX_ANNOUNCED, MAX_SUB_AGENTS, MAX_STEPS = 1_000, 1_000, 100
_ENDS: Final[dict[str, CallStatus]] = {"completed": "ok", "failed": "error"}
_SUB_AGENT_ENDS: Final[dict[CallStatus, SubAgentState]] = {"ok": "completed", "error": "failed"}


@dataclass
class _Call:
    """A call, as far as it is known."""

    name: str = ""
    kind: str = ""
    title: str = ""
    parent: str = ""  #: the call of the sub-agent that makes this one
    arguments: object = None
    content: list[Any] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def merge(self, fields: Json) -> None:
        """Take the fields that an update has."""
        claude = _object(_object(fields, "_meta"), "claudeCode")
        self.name = _text(fields, "name") or _text(claude, "toolName") or self.name
        self.kind = _text(fields, "kind") or self.kind
        self.title = _text(fields, "title") or self.title
        self.parent = _text(claude, "parentToolUseId") or self.parent
        self.arguments = fields.get("rawInput") or self.arguments
        if isinstance(content := fields.get("content"), list) and content:
            self.content = content
        if isinstance(locations := fields.get("locations"), list) and locations:
            self.paths = [each["path"] for each in locations if isinstance(each, dict) and _text(each, "path")]

    @property
    def tool(self) -> str:
        """Return the tool's name, or the kind of work where the program does not say a name."""
        kind = self.kind if self.kind != "other" else ""
        return self.name or kind or self.title.partition("\n")[0] or "tool"

    @property
    def shown_arguments(self) -> Json:
        """Return the arguments, or what stands for them where the program does not say any."""
        if self.arguments:
            return arguments_of(self.arguments)
        shown = {"title": self.title, "paths": self.paths, "content": self.content}
        return {name: value for name, value in shown.items() if value}


class SessionUpdates:
    """The updates of one session, applied in order."""

    def __init__(self, host: ProgramHost) -> None:
        self._host = host
        self.session: str | None = None  #: until it is known, and while it is replayed, updates mean nothing
        self.count = 0  #: updates, those without a meaning included
        self.reply = Reply(host)
        self.calls = CallReports(host)
        self.has_failed = False  #: the program said so of its turn, whatever the turn ends with
        self._announced: dict[str, _Call] = {}
        self._sub_agents: dict[str, tuple[str, SubAgentState]] = {}  #: title and state

    def begin_turn(self) -> None:
        """Begin a turn."""
        self.reply, self.has_failed = Reply(self._host), False
        self.calls.begin_turn()

    async def apply(self, session: str, update: Json) -> None:
        """Apply an update. Raises BudgetExceeded if a call does not begin for that, and TaskFailed beyond a bound."""
        self.count += 1
        if self.session is None:
            return
        match _text(update, "sessionUpdate"):
            case "agent_message_chunk" if session == self.session and not _is_aside(update):
                if text := _text(_object(update, "content"), "text"):
                    await self.reply.add(text)
            case "tool_call" | "tool_call_update":
                await self._apply_call(session, update)
            case "plan":
                await self.reply.flush()
                await self._host.report_plan(_steps(update.get("entries")))
            case "subagent_update":
                await self._apply_sub_agent(update)
            case "session_info_update":  # Codex ends its turn as usual after an error.
                status = _object(_object(_object(update, "_meta"), "codex"), "threadStatus")
                self.has_failed = self.has_failed or _text(status, "type") == "systemError"

    async def start_asked(self, session: str, fields: Json) -> tuple[str, str | None, _Call]:
        """Begin the call of a question. Return the program's and the host's id of it, and what is known of it.

        The host's id is None for a call that has ended.
        """
        key, call = self._announce(session, fields)
        return key, await self._start(key, call), call

    async def end_call(self, key: str, status: CallStatus, preview: str = "") -> None:
        """End a call, and the sub-agent whose work it was."""
        self._announced.pop(key, None)
        await self.calls.end(key, status, preview)
        if key in self._sub_agents:
            await self._set_sub_agent(key, "", _SUB_AGENT_ENDS.get(status, "cancelled"))

    async def close(self) -> None:
        """Report the end of all that has not ended: the program is gone."""
        await self.reply.flush()
        await self.calls.end_all("cancelled")
        for sub_agent in tuple(self._sub_agents):
            await self._set_sub_agent(sub_agent, "", "cancelled")

    async def _apply_call(self, session: str, update: Json) -> None:
        status = _text(update, "status")
        key, call = self._announce(session, update)
        if self.calls.has_ended(key):
            return
        if call.arguments or status in ("in_progress", *_ENDS):
            await self._start(key, call)
        if (end := _ENDS.get(status)) is not None:
            await self.end_call(key, end, preview_of(update.get("content")) or preview_of(update.get("rawOutput")))

    def _announce(self, session: str, fields: Json) -> tuple[str, _Call]:
        number = _text(fields, "toolCallId") or "call"
        key = number if session == self.session else f"{session[:50]}:{number}"
        if self.calls.has_ended(key):
            return key, _Call()
        call = self._announced.setdefault(key, _Call())
        call.merge(fields)
        if len(self._announced) > MAX_ANNOUNCED:
            raise TaskFailed(f"the program has announced {MAX_ANNOUNCED} calls that have not ended")
        return key, call

    async def _start(self, key: str, call: _Call) -> str | None:
        if self.calls.is_open(key):
            return await self.calls.start(key, call.tool, {})
        await self.reply.flush()
        if call.parent and call.parent not in self._sub_agents:
            above = self._announced.get(call.parent)
            await self._set_sub_agent(call.parent, above.title if above is not None else "", "running")
        elif not call.parent:
            self.reply.divide()
        return await self.calls.start(key, call.tool, call.shown_arguments)

    async def _apply_sub_agent(self, update: Json) -> None:
        state = _object(update, "state")
        if not (name := _text(update, "sessionId")) or not state:
            return
        if _text(state, "state") == "running":
            await self._set_sub_agent(name, _text(update, "title"), "running")
        elif _text(state, "state") == "idle":
            ends: dict[str, SubAgentState] = {"end_turn": "completed", "cancelled": "cancelled"}
            end = ends.get(_text(state, "stopReason"), "failed")
            await self._set_sub_agent(name, _text(update, "title"), end)

    async def _set_sub_agent(self, name: str, title: str, state: SubAgentState) -> None:
        old_title, old_state = self._sub_agents.get(name, ("", None))
        if state == old_state or (old_state is None and state != "running"):
            return
        if state == "cancelled" and old_state != "running":
            return
        if len(self._sub_agents) >= MAX_SUB_AGENTS and old_state is None:
            raise TaskFailed(f"the program has started {MAX_SUB_AGENTS} agents of its own")
        self._sub_agents[name] = (title[:200] or old_title, state)
        await self._host.report_sub_agent(name, self._sub_agents[name][0], state)


def _steps(entries: object) -> list[PlanStep]:
    steps = [each for each in (entries if isinstance(entries, list) else [])[:MAX_STEPS] if isinstance(each, dict)]
    return [PlanStep(text=_text(each, "content"), status=_text(each, "status")) for each in steps]


def _is_aside(update: Json) -> bool:
    """Return whether a text is a remark of the program, or the text of a sub-agent: no part of the reply."""
    metas = [each for each in _object(update, "_meta").values() if isinstance(each, dict)]
    return any(_text(each, "kind") == "informational" or _text(each, "parentToolUseId") for each in metas)


def _text(fields: Json, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _object(fields: Json, name: str) -> Json:
    value = fields.get(name)
    return value if isinstance(value, dict) else {}
