"""A client of the Agent Client Protocol: starts a program, speaks JSON-RPC with it on its pipes, and ends it.

By hand, as the library of the protocol refuses what programs already say and its schema does not have yet.

    async with acp_agent(command, env, folder) as agent:
        session = await agent.new_session(folder)
        ended = await agent.prompt(session, "hello")
        assert agent.text == "Hello." and ended["stopReason"] == "end_turn"
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

BOUND_S = 120.0  # passed in full only by a test that fails
LINE_BYTES = 2**24
PROTOCOL_VERSION = 1

Json = dict[str, Any]
#: What a client answers to a question of the program: the kind of an option, or "cancelled".
Decision = Callable[[Json], str]


class AcpError(Exception):
    """An answer of the program that is an error."""

    def __init__(self, error: Json) -> None:
        super().__init__(json.dumps(error))
        self.code = error.get("code")


class AcpAgent:
    """A program at the other end of two pipes."""

    def __init__(self, process: asyncio.subprocess.Process, decide: Decision) -> None:
        self.process = process
        self.decide = decide
        self.updates: list[Json] = []  #: what it said of its sessions, in order
        self.questions: list[Json] = []  #: its requests for permission
        self.stderr = ""
        self.capabilities: Json = {}
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self._changed = asyncio.Condition()

    @property
    def text(self) -> str:
        """Return the text of the replies, without what the program says besides."""
        chunks = [update for update in self.updates if update.get("sessionUpdate") == "agent_message_chunk"]
        return "".join(chunk["content"].get("text", "") for chunk in chunks if "_meta" not in chunk)

    async def request(self, method: str, params: Json) -> Json:
        """Return the result of a request. Raises AcpError if the answer is an error."""
        number = next(self._ids)
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self._send({"id": number, "method": method, "params": params})
        async with asyncio.timeout(BOUND_S):
            said = await answer
        if "error" in said:
            raise AcpError(said["error"])
        return said.get("result") or {}

    async def initialize(self, capabilities: Json | None = None) -> Json:
        """Begin the conversation. Return what the program says of itself."""
        files = {"readTextFile": False, "writeTextFile": False}
        params = {"clientCapabilities": {"fs": files, "terminal": False, **(capabilities or {})}}
        said = await self.request("initialize", {"protocolVersion": PROTOCOL_VERSION, **params})
        self.capabilities = said["agentCapabilities"]
        return said

    async def new_session(self, folder: Path, servers: Sequence[Json] = ()) -> str:
        """Begin a session in a folder, and return its id."""
        began = await self.request("session/new", {"cwd": str(folder), "mcpServers": list(servers)})
        return str(began["sessionId"])

    async def load_session(self, session: str, folder: Path) -> None:
        """Go on with a session that another process began."""
        await self.request("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})

    async def prompt(self, session: str, text: str) -> Json:
        """Give a prompt, and return how its turn ended."""
        return await self.request("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    async def cancel(self, session: str) -> None:
        """Cancel the turn of a session."""
        await self._send({"method": "session/cancel", "params": {"sessionId": session}})

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Return once something is true of what the program said."""
        async with asyncio.timeout(BOUND_S), self._changed:
            await self._changed.wait_for(is_true)

    async def read(self) -> None:
        """Take what the program says, until it closes its output."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            message = json.loads(line)
            if "method" not in message:
                answer = self._answers.pop(message["id"])
                if not answer.done():  # nobody waits for it any more
                    answer.set_result(message)
            elif "id" in message:
                await self._send({"id": message["id"], **await self._answer(message)})
            elif message["method"] == "session/update":
                async with self._changed:
                    self.updates.append(message["params"]["update"])
                    self._changed.notify_all()
        for answer in (each for each in self._answers.values() if not each.done()):
            answer.set_exception(EOFError(f"the program ended: {self.stderr[-2000:]}"))

    async def read_stderr(self) -> None:
        """Keep what the program says on its standard error, which fills a pipe otherwise."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.stderr += line.decode(errors="replace")

    async def _answer(self, message: Json) -> Json:
        if message["method"] != "session/request_permission":
            return {"error": {"code": -32601, "message": f"no such method: {message['method']}"}}
        question = message["params"]
        self.questions.append(question)
        kind = self.decide(question)
        if kind == "cancelled":
            return {"result": {"outcome": {"outcome": "cancelled"}}}
        chosen = next(option["optionId"] for option in question["options"] if option["kind"] == kind)
        return {"result": {"outcome": {"outcome": "selected", "optionId": chosen}}}

    async def _send(self, message: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        await self.process.stdin.drain()


@contextlib.asynccontextmanager
async def acp_agent(
    command: Sequence[str], env: dict[str, str], folder: Path, *, decide: Decision = lambda _: "reject_once"
) -> AsyncIterator[AcpAgent]:
    """Start a program that speaks the protocol. Its whole process group is killed in the end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, limit=LINE_BYTES
    )
    agent = AcpAgent(process, decide)
    readers = [asyncio.ensure_future(agent.read()), asyncio.ensure_future(agent.read_stderr())]
    try:
        await agent.initialize()
        yield agent
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await asyncio.wait(readers, timeout=BOUND_S)
