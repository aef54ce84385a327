"""The calls and queries of one session: other tasks put them into its queue, and the owner of the session runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import mcp_types as types
from mcp import ClientSession, MCPError
from pydantic import TypeAdapter

from ramet.core.errors import McpServerFailed
from ramet.core.mcp.server_entry import McpServer
from ramet.host.mcp.address_transport import NO_CONNECTION
from ramet.host.mcp.call_results import MAX_SHOWN, reason_of, result_of
from ramet.host.mcp.session_callers import CallerState, SessionCallers
from ramet.tools.mcp.connection_port import McpCaller, McpResult, OnProgress

#: Times that a call may ask for more input, and the seconds before it is called again if it asks for nothing.
MAX_ROUNDS, ROUND_S = 10, 0.1

T = TypeVar("T")
_CallResult: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class _Call(NamedTuple):
    """A call that waits for the owner of the session."""

    tool: str
    arguments: Mapping[str, Any]
    result: asyncio.Future[McpResult]
    on_progress: OnProgress
    caller: McpCaller | None


class _Query(NamedTuple):
    """Another request that waits for the owner of the session."""

    name: str  #: for the reason of a failure
    send: Callable[[ClientSession], Awaitable[Any]]
    result: asyncio.Future[Any]


class SessionCalls:
    """The calls of one session."""

    def __init__(
        self,
        server: McpServer,
        callers: SessionCallers,
        failure: Callable[[], McpServerFailed | None],
        on_refused: Callable[[str], None],
    ) -> None:
        """`failure` returns a new error for what ended the session; None while it goes on."""
        self._server, self._callers, self._failure, self._on_refused = server, callers, failure, on_refused
        self._queue: asyncio.Queue[_Call | _Query | None] = asyncio.Queue()  #: None: the server has ended
        self._open: set[asyncio.Future[Any]] = set()

    # ---- the owner

    async def run(self, session: ClientSession) -> None:
        """Run calls until `end`, all at the same time."""
        async with asyncio.TaskGroup() as group:
            while (call := await self._queue.get()) is not None:
                run = self._run_call(session, call) if isinstance(call, _Call) else self._run_query(session, call)
                task = group.create_task(run)
                call.result.add_done_callback(partial(_cancel_abandoned, task))

    def fail_open(self) -> None:
        """Fail the calls that are open when the session has ended."""
        for result in self._open:
            if not result.done() and (failure := self._failure()) is not None:
                result.set_exception(failure)

    async def _run_call(self, session: ClientSession, call: _Call) -> None:
        name, limit_s = self._server.name, self._server.timeout_s
        try:
            with self._callers.open_call(call.caller) as state:
                async with state.clocks.limit_time(limit_s):
                    result = result_of(await self._converse(session, call, state))
        except TimeoutError:
            return _fail(call, McpServerFailed(name, f"{call.tool[:MAX_SHOWN]} did not answer within {limit_s:g} s"))
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED and (failure := self._failure()) is not None:
                return _fail(call, failure)
            if error.code in (types.CONNECTION_CLOSED, NO_CONNECTION):  # Of one request: the next one may work.
                return _fail(call, McpServerFailed(name, error.message[:MAX_SHOWN]))
            result = McpResult(f"error {error.code}: {error.message}", is_error=True)
        except McpServerFailed as failure:
            return _fail(call, failure)
        except Exception as error:
            return _fail(call, McpServerFailed(name, reason_of(error)))
        if not call.result.done():
            call.result.set_result(result)

    async def _converse(self, session: ClientSession, call: _Call, state: CallerState) -> types.CallToolResult:
        """Call a tool, and answer what its server asks before it goes on. Raises McpServerFailed, and others."""

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            call.on_progress(progress, total, (message or "")[:MAX_SHOWN])

        responses: dict[str, Any] | None = None
        request_state: str | None = None
        for round in range(MAX_ROUNDS):
            params = types.CallToolRequestParams(
                name=call.tool, arguments=dict(call.arguments), input_responses=responses, request_state=request_state
            )
            result = await session.send_request(
                types.CallToolRequest(params=params), _CallResult, progress_callback=on_progress
            )
            if isinstance(result, types.CallToolResult):
                return result
            request_state, requests = result.request_state, result.input_requests or {}
            if not requests:
                await asyncio.sleep(ROUND_S * (round + 1))
            responses = {key: await self._input(each, state) for key, each in requests.items()} or None
        raise McpServerFailed(self._server.name, f"{call.tool[:MAX_SHOWN]} asked for more input {MAX_ROUNDS} times")

    async def _input(self, request: types.InputRequest, state: CallerState) -> types.ElicitResult:
        """Return a person's answer to what a call needs. Raises McpServerFailed for what a server may not ask for."""
        if not isinstance(request, types.ElicitRequest):
            self._on_refused(request.method)
            raise McpServerFailed(self._server.name, f"it asked for {request.method!r}, and was refused")
        params = request.params.model_dump(by_alias=True, mode="json", exclude_none=True)
        return types.ElicitResult.model_validate(await state.elicitation.answer(params))

    async def _run_query(self, session: ClientSession, query: _Query) -> None:
        name, limit_s = self._server.name, self._server.timeout_s
        try:
            with self._callers.open_query():
                async with asyncio.timeout(limit_s):
                    outcome = await query.send(session)
        except TimeoutError:
            return _fail(query, McpServerFailed(name, f"{query.name[:MAX_SHOWN]} did not answer within {limit_s:g} s"))
        except Exception as error:
            is_closed = isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED
            failure = self._failure() if is_closed else None
            return _fail(query, failure or McpServerFailed(name, reason_of(error)))
        if not query.result.done():
            query.result.set_result(outcome)

    # ---- other tasks

    def end(self) -> None:
        """Let the owner take no more calls."""
        self._queue.put_nowait(None)

    async def call(
        self, tool: str, arguments: Mapping[str, Any], on_progress: OnProgress, caller: McpCaller | None
    ) -> McpResult:
        """Call a tool. Raises McpServerFailed."""
        return await self._wait(lambda result: _Call(tool, arguments, result, on_progress, caller))

    async def query(self, name: str, send: Callable[[ClientSession], Awaitable[T]]) -> T:
        """Send another request. Raises McpServerFailed."""
        return await self._wait(lambda result: _Query(name, send, result))

    async def _wait(self, request: Callable[[asyncio.Future[T]], _Call | _Query]) -> T:
        """Let the owner of the session do this, and wait for its result. Raises McpServerFailed."""
        if (failure := self._failure()) is not None:
            raise failure
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._open.add(result)
        try:
            self._queue.put_nowait(request(result))
            return await result
        finally:
            self._open.discard(result)


def _cancel_abandoned(task: asyncio.Task[None], result: asyncio.Future[Any]) -> None:
    """End a call that nobody waits for any more; its server is told."""
    if result.cancelled():
        task.cancel()


def _fail(call: _Call | _Query, error: McpServerFailed) -> None:
    if not call.result.done():
        call.result.set_exception(error)
