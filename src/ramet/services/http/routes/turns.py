"""The routes of conversations. The body of a message and the chunks of its answer are passed on unchanged."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from starlette.responses import Response

from ramet.core.errors import Gone, RametError, StoreFailed, Unknown
from ramet.services.errors import Missed, OutcomeUnknown
from ramet.services.http import endpoints
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operations
from ramet.services.http.schemas import After, History, Interrupted, Mail, Newest, TurnOptions, WhichTurn
from ramet.services.http.sse import EventStream, StreamMoved, encode_events
from ramet.services.problems import to_problem
from ramet.services.turns.turn import OnLeave, Turn
from ramet.wire.sse import encode

OPERATIONS: Final = Operations()
_HISTORY = "the history of the agent"


@OPERATIONS.add(
    endpoints.TURN,
    "Send a message to an agent, in its transport format, and stream its answer",
    repetition="found",
    look_at=_HISTORY,
    begins=True,
    of="agent",
    stream=True,
    refuses=(410, 429),
)
async def _turn(call: RequestContext) -> EventStream:
    options = call.query(TurnOptions)
    body = await call.body(call.parts.message_bytes, "turn")
    turn = await begin_once(call, call.path("agent"), body, format=options.format, on_leave=options.on_leave)
    return _stream(call, turn, 0)


@OPERATIONS.add(
    endpoints.READ_TURN,
    "Continue to read a turn after a lost connection, or read it as a second client",
    of="agent",
    stream=True,
    resumes=True,
    refuses=(410,),
)
async def _read_turn(call: RequestContext) -> EventStream:
    agent, turn = call.path("agent"), call.path("turn")
    turn_handle = call.parts.agents.turn_of(agent, call.key, turn)
    return _stream(call, turn_handle, call.after(call.query(After).after, turn))


@OPERATIONS.add(
    endpoints.INTERRUPT,
    "End the active turn, and keep the agent and its history",
    look_at="the turns of the agent",
    of="agent",
    refuses=(410,),
)
async def _interrupt(call: RequestContext) -> Interrupted:
    turn = call.query(WhichTurn).turn
    return Interrupted(await call.parts.agents.interrupt(call.path("agent"), call.key, turn))


@OPERATIONS.add(
    endpoints.CONTROL,
    'Do {"@type": name, …}, an operation of the agent\'s type',
    look_at="what the operation changes",
    begins=True,
    of="agent",
    refuses=(403, 409, 410, 429, 501, 502),
)
async def _control(call: RequestContext) -> Response:
    operation = await call.body(call.parts.message_bytes, "control")
    answer = await call.parts.agents.control(call.path("agent"), call.key, operation)
    return Response(answer, media_type="application/json")


@OPERATIONS.add(endpoints.HISTORY, "The conversation so far, or its last messages", of="agent", refuses=(410,))
async def _history(call: RequestContext) -> History:
    last = call.query(Newest).last
    return History(await call.parts.agents.history(call.path("agent"), call.key, last))


@OPERATIONS.add(
    endpoints.EVENTS,
    "Stream the recorded and the new events of an agent and all agents below it",
    of="agent",
    stream=True,
    resumes=True,
    refuses=(410,),
)
async def _events(call: RequestContext) -> EventStream:
    after = call.after(call.query(After).after)
    events = call.parts.agents.events(call.path("agent"), call.key, after)
    return call.parts.streams.stream(encode_events(events))


@OPERATIONS.add(
    endpoints.MAIL,
    "A message that the agent reads at its next step",
    look_at="the events of the agent",
    begins=True,
    of="agent",
    status=204,
    refuses=(409, 410, 429),
)
async def _mail(call: RequestContext) -> None:
    mail = await call.json(Mail, "mail")
    await call.parts.agents.mail(call.path("agent"), call.key, mail.text, mail.dedupe_s)


async def begin_once(
    call: RequestContext, agent: str, body: bytes, *, format: str = "", on_leave: OnLeave = "go_on"
) -> Turn:
    """Begin a turn, and return it once it is recorded.

    A repeated request with an `Idempotency-Key` gets the turn that it began before. Raises Gone if that turn is no
    longer kept, and OutcomeUnknown if a killed server may have begun it.
    """
    agents, attempt = call.parts.agents, call.attempt
    if attempt is not None and attempt.is_repeated:
        try:
            turn = agents.turn_of(agent, call.key, attempt.turn_id)
        except (Unknown, Missed):
            if not attempt.has_begun_turn:
                raise OutcomeUnknown(_HISTORY) from None
            message = f"turn {attempt.turn_id!r} of this request is not stored any more; {_HISTORY} has its answer"
            raise Gone(message) from None
    else:
        id = attempt.turn_id if attempt is not None else ""
        turn = agents.turn(agent, call.key, body, format=format, on_leave=on_leave, id=id)
    await turn.wait_recorded()
    if attempt is not None and not attempt.has_begun_turn:
        await call.parts.ledger.begin_turn(attempt)
    return turn


def _stream(call: RequestContext, turn: Turn, after: int) -> EventStream:
    batches = call.parts.agents.batches(call.path("agent"), call.key, turn, after)

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(batches):
                async for batch in batches:
                    yield batch.events
        except RametError as error:  # a slow reader missed dropped chunks, or its key lost the right
            if turn.read_error is not None or isinstance(error, StoreFailed):
                raise StreamMoved from None
            yield encode("error", to_problem(error).encode())

    path = f"/v1/agents/{call.path('agent')}/turns/{turn.id}"
    return call.parts.streams.stream(events(), {"location": path, "ramet-turn": turn.id}, is_endless=False)
