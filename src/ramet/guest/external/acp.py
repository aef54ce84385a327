"""The client's side of the Agent Client Protocol (version 1): one session, one prompt after the other.

The program asks for nothing but permissions: it has files and commands of its own, inside its sandbox. A permission is
given or refused for one call, never for later ones. The protocol has no place for the reason of a refusal. A program
whose turn ends with the refusal gets the reason as its next prompt. One that goes on sees only that it was refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import run_shielded, wait_with_timeout
from ramet.core.errors import Denied, RametError, TaskFailed
from ramet.guest.external.acp_updates import SessionUpdates
from ramet.guest.external.gemini_sessions import rename_recordings
from ramet.guest.external.json_lines import METHOD_NOT_FOUND, ConnectionClosed, Json, RequestFailed, RpcConnection
from ramet.guest.external.process import ProgramProcess
from ramet.guest.external.program_host import Permission, ProgramHost
from ramet.wire.external_program import ProgramStart

VERSION: Final = 1
#: Seconds to answer at the start, to load a session with its history, and to end a cancelled turn.
START_S, LOAD_S, CANCEL_S = 60.0, 300.0, 5.0
#: Seconds without an update after which the replay of a loaded session counts as over.
QUIET_S: Final = 1.0
#: Turns in a row that ended with the refusal of a call.
MAX_DENIED_TURNS: Final = 5
_CAPABILITIES: Final[Json] = {
    "fs": {"readTextFile": False, "writeTextFile": False},
    "terminal": False,
    "subagents": {},  # Claude Code and Codex report sub-agents, each with a session of its own
}
_CANCELLED: Final[Json] = {"outcome": {"outcome": "cancelled"}}


async def drive_acp(
    start: ProgramStart,
    host: ProgramHost,
    program: ProgramProcess,
    *,
    cwd: Path,
    clock: Clock,
    mcp_servers: Sequence[Json] = (),
    home: Path | None = None,
) -> str:
    """Give a program its prompts, and return the text of its last reply.

    Raises BudgetExceeded, Aborted, Denied for a refusal that the program cannot go on after, and TaskFailed.
    """
    client = _Client(start, host, program, cwd=cwd, clock=clock, mcp_servers=mcp_servers, home=home)
    reading = asyncio.ensure_future(client.connection.run())
    try:
        return await client.run()
    except ConnectionClosed:
        raise await program.early_end() from None
    except RequestFailed as error:
        raise program.failure(f"the program reported an error: {error}") from None
    finally:
        await run_shielded(client.close(reading))


class _Client:
    """A client of one program: an implementation of `Receiver`."""

    def __init__(
        self,
        start: ProgramStart,
        host: ProgramHost,
        program: ProgramProcess,
        *,
        cwd: Path,
        clock: Clock,
        mcp_servers: Sequence[Json],
        home: Path | None,
    ) -> None:
        self._home = home
        self._start, self._host, self._program, self._clock = start, host, program, clock
        self._session_fields: Json = {"cwd": str(cwd), "mcpServers": list(mcp_servers)}
        self._updates = SessionUpdates(host)
        self.connection = RpcConnection(program.stdout, program.stdin, self)
        self._session = ""
        self._denials: list[Denied] = []  #: of this turn
        self._stop: object = None  #: the reason for the end of the newest turn
        self._refusal: RametError | None = None  #: the host's: it ends the run
        self._refused = asyncio.Event()

    async def run(self) -> str:
        """Give the prompts, until there is none left."""
        prompt: str | None = await self._open_session()
        text, denied_turns = "", 0
        while prompt is not None:
            text = await self._turn(prompt)
            prompt = self._refused_call_prompt()
            denied_turns = denied_turns + 1 if prompt is not None else 0
            if denied_turns > MAX_DENIED_TURNS:
                raise self._denials[-1]
            if prompt is None:
                prompt = await self._host.take_prompt()
        return text

    async def close(self, reading: asyncio.Future[None]) -> None:
        """Stop receiving, and report the end of what has not ended."""
        await self.connection.close(reading, self._clock)
        with contextlib.suppress(RametError):  # The run's own error is the one that counts.
            await self._updates.close()

    # ---- the session

    async def _open_session(self) -> str:
        """Open the session of an earlier process, or a new one. Return the first prompt."""
        about = {"name": "ramet", "title": "ramet", "version": "1"}
        asked = {"protocolVersion": VERSION, "clientCapabilities": _CAPABILITIES, "clientInfo": about}
        told = _object(await self._request("initialize", asked, START_S))
        if told.get("protocolVersion") != VERSION:
            found = str(told.get("protocolVersion"))[:20]
            raise TaskFailed(f"the program speaks version {found} of the protocol; expected {VERSION}")
        capabilities = _object(told.get("agentCapabilities"))
        session = await self._host.load_session()
        if session is not None and await self._reopen(session, capabilities):
            self._session = self._updates.session = session
            if not self._start.resumes:
                return self._start.prompt
            return (
                "This session was interrupted while you worked on the request below. Continue where you stopped, and "
                f"do not repeat what is done.\n\n{self._start.prompt}"
            )
        opened = _object(await self._request("session/new", self._session_fields, START_S)).get("sessionId")
        if not isinstance(opened, str) or not opened:
            raise TaskFailed("the program began a session without an id")
        await self._host.save_session(opened)
        self._session = self._updates.session = opened
        return self._start.prompt

    async def _reopen(self, session: str, capabilities: Json) -> bool:
        """Open a session that an earlier process began; return whether that was possible."""
        if self._home is not None:
            rename_recordings(self._home)
        has_resume = isinstance(_object(capabilities.get("sessionCapabilities")).get("resume"), dict)
        if not has_resume and capabilities.get("loadSession") is not True:
            return self._note("it cannot open a session again")
        fields = {"sessionId": session, **self._session_fields}
        try:
            await self._request("session/resume" if has_resume else "session/load", fields, LOAD_S)
        except RequestFailed as error:
            return self._note(str(error))
        if not has_resume:
            await self._wait_for_end_of_replay()
        return True

    async def _wait_for_end_of_replay(self) -> None:
        """Wait until no update has come for a while: a loaded session is replayed, by Gemini CLI after its answer."""
        count = -1
        while count != self._updates.count:
            count = self._updates.count
            await self._clock.sleep(QUIET_S)

    def _note(self, why: str) -> bool:
        sys.stderr.write(f"ramet: the program begins anew, without its earlier session: {why}\n")
        return False

    async def _request(self, method: str, params: Json, limit_s: float) -> Any:
        try:
            return await wait_with_timeout(self.connection.request(method, params), clock=self._clock, seconds=limit_s)
        except TimeoutError:
            raise self._program.failure(f"the program did not answer {method} within {limit_s:g} s") from None

    # ---- turns

    async def _turn(self, text: str) -> str:
        """Give one prompt; return the text of the reply."""
        self._denials = []
        self._updates.begin_turn()
        params = {"sessionId": self._session, "prompt": [{"type": "text", "text": text}]}
        prompt = asyncio.ensure_future(self.connection.request("session/prompt", params))
        refused = asyncio.ensure_future(self._refused.wait())
        try:
            await asyncio.wait({prompt, refused}, return_when=asyncio.FIRST_COMPLETED)
            if self._refusal is not None:
                raise self._refusal
            ended = _object(await prompt)
        except BaseException:
            await run_shielded(self._cancel(prompt))
            raise
        finally:
            refused.cancel()
        self.connection.cancel_answers()  # Nobody waits for them any more.
        await self._updates.reply.flush()
        self._stop = ended.get("stopReason")
        return self._checked_reply()

    async def _cancel(self, prompt: asyncio.Future[Any]) -> None:
        """End a turn that has not ended: the program gets a few seconds for it."""
        if not prompt.done():
            with contextlib.suppress(TimeoutError, TaskFailed):
                self.connection.notify("session/cancel", {"sessionId": self._session})
                self.connection.cancel_answers()
                await wait_with_timeout(asyncio.wait({prompt}), clock=self._clock, seconds=CANCEL_S)
        prompt.cancel()
        await asyncio.wait({prompt})
        if not prompt.cancelled():
            prompt.exception()  # The reason for the end is known.

    def _checked_reply(self) -> str:
        stop, text = self._stop, self._updates.reply.text
        if stop == "end_turn" and not self._updates.has_failed:
            return text
        if stop == "cancelled" and self._denials:
            return text
        reason = "an error" if self._updates.has_failed else str(stop)[:100]
        raise self._program.failure(f"the program ended its turn with {reason}" + (f": {text[:2_000]}" if text else ""))

    def _refused_call_prompt(self) -> str | None:
        """Return a prompt about the refused calls that ended the turn; None if the program went on after them."""
        if not self._denials or (self._stop != "cancelled" and self._updates.reply.has_newest_text):
            return None
        calls = "\n".join(f"- {each}" for each in self._denials[-10:])
        return f"{calls}\nContinue without that, or say why you cannot."

    # ---- what the program says by itself

    async def receive(self, method: str, params: Json) -> None:
        """Apply an update. After a refusal of the host nothing is reported any more."""
        if method != "session/update" or self._refusal is not None:
            return
        try:
            await self._updates.apply(str(params.get("sessionId")), _object(params.get("update")))
        except TaskFailed:
            raise
        except RametError as refusal:
            self._refuse(refusal)

    async def answer(self, method: str, params: Json) -> Json:
        """Answer a question. A question that is open when its turn ends is answered with `cancelled`."""
        if method != "session/request_permission":
            raise RequestFailed(METHOD_NOT_FOUND, f"no such method: {method[:100]}")
        try:
            return await self._answer_question(params)
        except asyncio.CancelledError:
            return _CANCELLED

    async def flush(self) -> None:
        """Pass on the text that has arrived."""
        if self._refusal is None:
            await self._updates.reply.flush()

    async def _answer_question(self, params: Json) -> Json:
        if self._refusal is not None:
            return _CANCELLED
        allow, reject = (_option(params.get("options"), kind) for kind in ("allow_once", "reject_once"))
        session, fields = str(params.get("sessionId")), _object(params.get("toolCall"))
        try:
            key, call_id, call = await self._updates.start_asked(session, fields)
            if call_id is None:
                permission = Permission(False, "the call has ended")
            elif allow is None:
                permission = Permission(False, "the program offers no permission for this call alone")
            elif self._start.permission_mode == "allow":
                permission = Permission(True)
            else:
                permission = await self._host.ask_permission(call_id, call.tool, call.shown_arguments)
            if permission.is_allowed and allow is not None:
                return {"outcome": {"outcome": "selected", "optionId": allow}}
            reason = permission.reason or "no reason was given"
            self._denials.append(Denied(call.tool[:200], reason[:2_000]))
            self._updates.reply.divide()
            await self._updates.end_call(key, "denied", reason)
        except TaskFailed:
            raise
        except RametError as refusal:
            self._refuse(refusal)
            return _CANCELLED
        return _CANCELLED if reject is None else {"outcome": {"outcome": "selected", "optionId": reject}}

    def _refuse(self, refusal: RametError) -> None:
        if self._refusal is None:
            self._refusal = refusal
            self._refused.set()


def _option(options: object, kind: str) -> str | None:
    """Return the id of the first option of a kind."""
    for each in options if isinstance(options, list) else []:
        if isinstance(each, dict) and each.get("kind") == kind and isinstance(each.get("optionId"), str):
            return str(each["optionId"])
    return None


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}
