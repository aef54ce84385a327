"""Programs that answer one prompt in lines of JSON: Claude Code, Codex, Gemini CLI, OpenCode.

Each has a format of its own, which is recognized by its first lines. Such a program decides about its calls by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ramet.guest.external.json_lines import Json, MessageReader
from ramet.guest.external.process import ProgramProcess, status_text
from ramet.guest.external.program_host import CallStatus, ProgramHost
from ramet.guest.external.reports import CallReports, Reply, arguments_of, preview_of


async def drive_stream_json(program: ProgramProcess, host: ProgramHost) -> str:
    """Return the last text of a program that runs to its end.

    Raises TaskFailed if it fails, and BudgetExceeded as its host does.
    """
    messages, turn = MessageReader(program.stdout), _Turn(host)
    reader: Reader | None = None
    try:
        while (message := await messages.read()) is not None:
            reader = reader or _find_reader(message)
            if reader is not None:
                await reader(turn, message)
            if not messages.has_line:
                await turn.reply.flush()
        code = await program.wait()
    finally:
        await turn.close()
    if turn.failure or code != 0:
        raise program.failure(turn.failure or f"the program ended with {status_text(code)}")
    if reader is None:
        raise program.failure("the program wrote no line of a format that is known")
    return turn.result or turn.reply.text


class _Turn:
    """A turn, as its lines tell it: the reply, the calls, and the end."""

    def __init__(self, host: ProgramHost) -> None:
        self.reply, self.calls = Reply(host), CallReports(host)
        self.calls.begin_turn()
        self.result = ""  #: the reply as a whole, where the program repeats it
        self.failure = ""

    async def say(self, text: object) -> None:
        if isinstance(text, str):
            await self.reply.add(text)

    async def start(self, call: object, tool: object, args: object) -> None:
        if isinstance(call, str) and not self.calls.is_open(call):
            await self.reply.flush()
            self.reply.divide()
            await self.calls.start(call, tool if isinstance(tool, str) and tool else "tool", arguments_of(args))

    async def end(self, call: object, status: CallStatus, output: object) -> None:
        if isinstance(call, str):
            await self.calls.end(call, status, preview_of(output))

    def fail(self, reason: object) -> None:
        self.failure = (preview_of(reason) or "the program reported an error")[:4_000]

    async def close(self) -> None:
        await self.reply.flush()
        await self.calls.end_all("cancelled")


Reader = Callable[[_Turn, Json], Any]


async def _read_claude_code(turn: _Turn, line: Json) -> None:
    kind, message = line.get("type"), _object(line, "message")
    content = message.get("content")
    for part in content if isinstance(content, list) else []:
        match part.get("type") if isinstance(part, dict) else None:
            case "text" if kind == "assistant" and not line.get("parent_tool_use_id"):
                await turn.say(part.get("text"))
            case "tool_use":
                await turn.start(part.get("id"), part.get("name"), part.get("input"))
            case "tool_result":
                await turn.end(part.get("tool_use_id"), _status(not part.get("is_error")), part.get("content"))
    if kind == "result":
        if line.get("is_error") or line.get("subtype", "success") != "success":
            turn.fail(line.get("result") or line.get("errors") or line.get("subtype"))
        elif isinstance(result := line.get("result"), str):
            turn.result = result


async def _read_codex(turn: _Turn, line: Json) -> None:
    match line.get("type"):
        case "item.started" | "item.updated" | "item.completed" as kind:
            item = _object(line, "item")
            match item.get("type"):
                case "agent_message":
                    if kind == "item.completed":
                        turn.reply.divide()
                        await turn.say(item.get("text"))
                case "error" | "reasoning" | "todo_list":
                    pass  # Such an error is a warning.
                case str() as tool:
                    args = {name: item[name] for name in _CODEX_ARGUMENTS if item.get(name)}
                    await turn.start(item.get("id"), item.get("tool") or tool, args)
                    if kind == "item.completed":
                        output = item.get("aggregated_output") or item.get("result") or item.get("error")
                        await turn.end(item.get("id"), _status(item.get("status") != "failed"), output)
        case "error" | "turn.failed":
            turn.fail(line.get("error") or line.get("message"))
        case "turn.completed":
            turn.failure = ""  # An attempt had failed, another one has not.


async def _read_gemini_cli(turn: _Turn, line: Json) -> None:
    match line.get("type"):
        case "message" if line.get("role") == "assistant":
            await turn.say(line.get("content"))
        case "tool_use":
            await turn.start(line.get("tool_id"), line.get("tool_name"), line.get("parameters"))
        case "tool_result":
            output = line.get("output") or line.get("error")
            await turn.end(line.get("tool_id"), _status(line.get("status") == "success"), output)
        case "result" if line.get("status") != "success":
            turn.fail(line.get("error"))


async def _read_opencode(turn: _Turn, line: Json) -> None:
    part = _object(line, "part")
    match line.get("type"):
        case "text":
            await turn.say(part.get("text"))
        case "tool_use":
            state = _object(part, "state")
            await turn.start(part.get("callID"), part.get("tool"), state.get("input"))
            if (status := state.get("status")) in ("completed", "error"):
                await turn.end(
                    part.get("callID"), _status(status == "completed"), state.get("output") or state.get("error")
                )
        case "error":
            error = _object(line, "error")
            turn.fail(_object(error, "data") or error)


_CODEX_ARGUMENTS: Final = ("command", "changes", "query", "server", "arguments", "prompt")
#: What a line must have: the type and a member.
_READERS: Final[dict[tuple[str, str], Reader]] = {
    ("system", "session_id"): _read_claude_code,
    ("thread.started", "thread_id"): _read_codex,
    ("init", "session_id"): _read_gemini_cli,
    ("step_start", "sessionID"): _read_opencode,
    ("error", "sessionID"): _read_opencode,
}


def _find_reader(line: Json) -> Reader | None:
    kind = line.get("type")
    return next((reader for (name, member), reader in _READERS.items() if kind == name and member in line), None)


def _status(is_ok: bool) -> CallStatus:
    return "ok" if is_ok else "error"


def _object(fields: Json, name: str) -> Json:
    value = fields.get(name)
    return value if isinstance(value, dict) else {}
