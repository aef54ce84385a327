"""The forwarding of a program's model requests: parsed, reserved, recorded, sent with the host's key, settled.

Nothing is sent before the reservation is on record. A reply goes back as it arrives. A request that ends without its
reply, because the program left, the provider broke off or the run was stopped, is settled as any other: see
`Account.settle_failed`. A pause that cuts a request before its reply began has it made again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Final, NoReturn

from ramet.concurrency.cuts import WorkCut
from ramet.core.budget import Hold
from ramet.core.errors import BudgetExceeded, MissingExtra, ModelFailed, RametError, Unknown
from ramet.core.events import ForwardRefused
from ramet.core.policy.rights import uncovered_models
from ramet.host.charging import DEFAULT_OUTPUT_TOKENS, LEAST_OUTPUT_TOKENS, Account, pauses
from ramet.host.forwarding.request_reservation import HOLD_S, HoldTimedOut, RequestsUnderWay, reserve
from ramet.host.forwarding.upstream import (
    Connections,
    Upstream,
    find_upstream,
    host_environ,
    is_unsent,
    reply_headers,
    request_headers,
)
from ramet.host.gateway import Gateway
from ramet.models.retry_after import retry_after_s
from ramet.models.wires.contract import Operation, RefusalKind, RequestRefused, UsageReader, Wire, WireRequest
from ramet.models.wires.input_estimate import estimate_tokens, media_in
from ramet.models.wires.wires import WIRES
from ramet.spawn.forwarding.request_context import context_of_request
from ramet.tools.context import ToolUseContext
from ramet.tools.forwarding import ForwardedRequest, ForwardRights, ReplyStream
from ramet.tools.model_request import ModelRequest

if TYPE_CHECKING:
    import httpx2

    from ramet.tools.forwarding import RequestForwarding

_log = logging.getLogger("ramet.models")

#: Requests that cost nothing, of one sandbox: per second, and at once after a pause.
FREE_RATE_PER_S, FREE_BURST = 5.0, 60.0
#: The largest reply, and the largest text of an error.
MAX_REPLY_BYTES, MAX_ERROR_BYTES = 128 * 1024 * 1024, 1024 * 1024
_FIRST_ERROR_STATUS: Final = 400
_TOO_MANY_REQUESTS: Final = 429
#: Refusals with 429 of one sandbox that are recorded: a program may name any number of models.
MAX_RECORDED_REFUSALS: Final = 20


class Forwarder:
    """The forwarder of one runtime: its connections, and the requests that are under way."""

    def __init__(self, gateway: Gateway, environ: Callable[[], Mapping[str, str]] = host_environ) -> None:
        self.gateway, self.environ = gateway, environ
        self.connections = Connections()
        self.under_way = RequestsUnderWay()

    def open(self, context: ToolUseContext, rights: ForwardRights) -> RequestForwarding:
        """Return the forwarding of one run."""
        return RunForwarding(self, context, rights)

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self.connections.close()


class RunForwarding:
    """The forwarding of the requests of one run (`ramet.tools.forwarding.RequestForwarding`)."""

    def __init__(self, forwarder: Forwarder, context: ToolUseContext, rights: ForwardRights) -> None:
        self._forwarder, self._context, self._rights = forwarder, context, rights
        self._free, self._free_at = FREE_BURST, context.clock.monotonic()
        self._recorded_refusal: tuple[str, str] | None = None
        self._recorded_429s: set[tuple[str, str]] = set()
        self.refusal: BudgetExceeded | None = None  #: of the newest request for a generation

    async def forward(self, request: ForwardedRequest, reply: ReplyStream) -> None:
        wire = _wire(request.wire)
        try:
            try:
                await self._forward(wire, request, reply)
            except (MissingExtra, Unknown) as problem:
                raise RequestRefused(RefusalKind.DENIED, str(problem)) from None
        except RequestRefused as refusal:
            if reply.is_started:
                raise ModelFailed(wire.name, refusal.reason) from None
            if refusal.kind is RefusalKind.BUSY:
                self._record_429(wire.name, "host")
            await _send_refusal(wire, refusal, reply)

    async def refuse(self, request: ForwardedRequest, reply: ReplyStream, reason: str) -> None:
        wire = _wire(request.wire)
        self._record_429(wire.name, "host")
        await _send_refusal(wire, RequestRefused(RefusalKind.BUSY, reason), reply)

    def _record_429(self, model: str, by: str, wait_s: float | None = None) -> None:
        if (model, by) not in self._recorded_429s and len(self._recorded_429s) < MAX_RECORDED_REFUSALS:
            self._recorded_429s.add((model, by))
            self._context.emit(ForwardRefused, model=model, by=by, wait_s=wait_s)

    async def _forward(self, wire: Wire, request: ForwardedRequest, reply: ReplyStream) -> None:
        parsed = wire.parse(request.method, request.path, request.query, request.headers, request.body)
        if parsed.model and not self._forwarder.gateway.accepts(parsed.model, wire.model_prefix + parsed.model):
            raise RequestRefused(RefusalKind.DENIED, f"model: {parsed.model} is not one that runs may ask")
        if parsed.model and uncovered_models(self._rights.models, (wire.model_prefix + parsed.model,)):
            raise RequestRefused(RefusalKind.DENIED, f"model: policy.models does not have {parsed.model}")
        upstream = find_upstream(wire, self._forwarder.environ())
        exchange = _Exchange(self._forwarder.connections.client, wire, upstream, request, parsed, reply)
        if parsed.operation is not Operation.GENERATE:
            self._take_free_request()
            await self._context.wait_unpaused()
            try:
                await exchange.run(parsed.body)
            except Exception as error:
                _raise_for_program(_as_failure(error, exchange), error)
            return
        while not await self._generate(wire, parsed, exchange):
            pass

    async def _generate(self, wire: Wire, parsed: WireRequest, exchange: _Exchange) -> bool:
        """Make a request; return False if a pause cut it before its reply began."""
        context = context_of_request(self._context)
        account = self._open_account(wire, parsed, context)
        hold, max_tokens = await self._reserve(account, parsed)
        try:
            return await self._ask(account, hold, exchange, _limited_body(wire, parsed, max_tokens), context)
        finally:
            self._forwarder.under_way.remove(context.run.root)

    async def _ask(
        self, account: Account, hold: Hold, exchange: _Exchange, body: bytes, context: ToolUseContext
    ) -> bool:
        """Send a request that is reserved, once that is on record, and settle it; return False as `_generate` does."""
        try:
            with context.cuts.cuttable():
                await context.wait_persisted()
        except BaseException as error:
            account.refund(hold)
            if isinstance(error, WorkCut):
                return False
            raise
        try:
            with context.cuts.cuttable():
                reader = await exchange.run(body)
        except BaseException as error:
            failure = _as_failure(error, exchange)
            account.settle_failed(hold, failure, has_output=exchange.has_output)
            if isinstance(error, WorkCut) and not exchange.has_output:
                return False
            _raise_for_program(failure, error)
        if reader is None:
            if exchange.status == _TOO_MANY_REQUESTS:
                self._record_429(exchange.model, "provider", retry_after_s(exchange.headers, context.clock.now()))
            account.settle_failed(hold, ModelFailed(exchange.model, "the provider refused it", status=exchange.status))
        else:
            account.settle_usage(hold, reader.finish())
        return True

    def _open_account(self, wire: Wire, parsed: WireRequest, context: ToolUseContext) -> Account:
        """Return the account of a request. Raises RequestRefused for one that a limit cannot bind."""
        budget = self._context.budget
        if any(budget.owner(resource) is not None for resource in ("tokens", "usd")):
            unbounded = [*parsed.unbounded, *(["number of replies"] if parsed.choices > 1 else [])]
            if not self._rights.estimate and (media := media_in(parsed.members)):
                unbounded.append(media)
            if unbounded:
                members = ", ".join(unbounded)
                raise RequestRefused(
                    RefusalKind.DENIED, f"{members}: not accepted under a limit, which cannot bind its cost"
                )
        # At a limit that pauses, a raise helps more than a short reply. An ending limit gives what there is.
        least = DEFAULT_OUTPUT_TOKENS if pauses(budget) else LEAST_OUTPUT_TOKENS
        model_request = ModelRequest(
            messages=(),
            step=self._context.next_step(),
            max_tokens=parsed.max_tokens,
            is_final_answer=True,  # The reserve for a last answer: a program has none of its own.
            is_side_request=True,
        )
        body = parsed.body
        return Account(
            self._forwarder.gateway.provider(parsed.model, wire.output_limit),
            context,
            model_request,
            (lambda: estimate_tokens(body)) if self._rights.estimate else (lambda: len(body)),
            least_output=max(least, parsed.thinking_tokens + 1 if parsed.thinking_tokens else 0),
            lowers_at_pause=True,
        )

    async def _reserve(self, account: Account, parsed: WireRequest) -> tuple[Hold, int | None]:
        try:
            reserved = await reserve(account, self._context, self._forwarder.under_way)
        except HoldTimedOut as timeout:
            self.refusal = timeout.refusal
            raise RequestRefused(
                RefusalKind.BUDGET, f"a limit of the run is reached, and was not raised within {HOLD_S:g} s"
            ) from None
        except BudgetExceeded as refusal:
            if self._recorded_refusal != (refusal.resource, refusal.scope):  # A program may ask again and again.
                self._recorded_refusal = (refusal.resource, refusal.scope)
                self._context.record_refusal(refusal)
            self.refusal = refusal
            thinking = f", of which it wants {parsed.thinking_tokens} for thinking" if parsed.thinking_tokens else ""
            raise RequestRefused(RefusalKind.BUDGET, f"{refusal}{thinking}") from None
        self._recorded_refusal = self.refusal = None
        return reserved

    def _take_free_request(self) -> None:
        now = self._context.clock.monotonic()
        self._free = min(FREE_BURST, self._free + (now - self._free_at) * FREE_RATE_PER_S)
        self._free_at = now
        if self._free < 1:
            raise RequestRefused(
                RefusalKind.BUSY, f"more than {FREE_RATE_PER_S:g} requests in a second to count or list"
            )
        self._free -= 1


class _Exchange:
    """A request to a provider, and its reply."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        wire: Wire,
        upstream: Upstream,
        request: ForwardedRequest,
        parsed: WireRequest,
        reply: ReplyStream,
    ) -> None:
        self._client, self._wire, self._upstream = client, wire, upstream
        self._request, self._parsed, self._reply = request, parsed, reply
        self.model = parsed.model or wire.name
        self.status: int | None = None  #: of an answer that is no reply of a model
        self.headers: Mapping[str, str] = {}  #: of such an answer
        self.has_output = False  #: a reply of the model has begun

    async def run(self, body: bytes) -> UsageReader | None:
        """Send the request, pass the reply on, and return the reader of its usage; None for an error.

        Raises RequestRefused for a reply that is not passed on.
        """
        headers = request_headers(self._wire, self._request.headers, self._upstream, has_body=bool(body))
        url = self._upstream.base_url + self._parsed.path
        async with self._client.stream(self._request.method, url, headers=headers, content=body or None) as response:
            if response.status_code >= _FIRST_ERROR_STATUS:
                self.status, self.headers = response.status_code, response.headers
                await self._pass_error(response)
                return None
            if not response.is_success:
                self.status = response.status_code
                raise RequestRefused(RefusalKind.UPSTREAM, f"the provider answered HTTP {self.status}: not followed")
            kind = response.headers.get("content-type", "")
            reader = self._wire.usage_reader(self._parsed, is_stream=kind.startswith("text/event-stream"))
            self.has_output = True
            await self._reply.start(response.status_code, reply_headers(response.headers.multi_items()))
            async for data in _pieces(response, MAX_REPLY_BYTES):
                reader.feed(data)
                await self._reply.write(data)
            return reader

    async def _pass_error(self, response: httpx2.Response) -> None:
        """Pass an error on, without the key if the provider repeats it."""
        text = bytearray()
        async for data in _pieces(response, MAX_ERROR_BYTES):
            text += data
        headers = reply_headers(response.headers.multi_items())
        if any(name == "content-encoding" for name, _ in headers):
            raise RequestRefused(RefusalKind.UPSTREAM, f"the provider answered HTTP {self.status}, compressed")
        await self._reply.start(response.status_code, headers)
        await self._reply.write(bytes(text).replace(self._upstream.key.encode(), b"[key]"))


async def _pieces(response: httpx2.Response, most: int) -> AsyncIterator[bytes]:
    """Yield the bytes of a reply as they arrive, not decompressed. Raises RequestRefused above `most`."""
    size = 0
    async for data in response.aiter_raw():
        size += len(data)
        if size > most:
            raise RequestRefused(RefusalKind.UPSTREAM, f"the provider sent more than {most} bytes")
        yield data


def _limited_body(wire: Wire, parsed: WireRequest, max_tokens: int | None) -> bytes:
    """Return the body, with a maximum of output where its own, or the model's, is higher."""
    stated = wire.output_limit if parsed.max_tokens is None else parsed.max_tokens
    if max_tokens is None or max_tokens >= stated:
        return parsed.body
    return wire.limited_body(parsed, max_tokens)


def _as_failure(error: BaseException, exchange: _Exchange) -> BaseException:
    """Return an error of the connection as ModelFailed, and any other error as it is."""
    model = exchange.model
    if isinstance(error, RequestRefused):
        return ModelFailed(model, error.reason, status=exchange.status)
    if isinstance(error, WorkCut):
        return ModelFailed(model, "a pause cut the request")
    if not isinstance(error, Exception) or isinstance(error, RametError):
        return error
    _log.info("a forwarded request to %s failed: %s", model, type(error).__name__)
    return ModelFailed(
        model, f"the connection to the provider failed ({type(error).__name__})", unsent=is_unsent(error)
    )


def _raise_for_program(failure: BaseException, error: BaseException) -> NoReturn:
    """Raise what the program is told of a failed exchange."""
    if isinstance(failure, ModelFailed) and failure is not error:
        raise RequestRefused(RefusalKind.UPSTREAM, failure.reason) from error
    raise error


def _wire(name: str) -> Wire:
    wire = WIRES.get(name)
    if wire is None:
        raise Unknown("wire", name, tuple(WIRES))
    return wire


async def _send_refusal(wire: Wire, refusal: RequestRefused, reply: ReplyStream) -> None:
    whole = wire.refuse(refusal)
    await reply.start(whole.status, whole.headers)
    await reply.write(whole.body)
