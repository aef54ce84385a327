"""Beginning a turn for a request. If a repeated request has begun its turn before, that turn is read again."""

from __future__ import annotations

from ramet.core.errors import Gone, Unknown
from ramet.services.errors import Missed, OutcomeUnknown
from ramet.services.http.request import RequestContext
from ramet.services.turns.turn import OnLeave, Turn

_HISTORY = "the history of the agent"


async def begin_once(
    call: RequestContext, agent: str, body: bytes, *, format: str = "", on_leave: OnLeave = "go_on"
) -> Turn:
    """Begin a turn, and return it once it is recorded.

    A repeated request with an `Idempotency-Key` gets the turn that it began before. Raises Gone if that turn is no
    longer kept, and OutcomeUnknown if a killed server may have begun it.
    """
    agents, attempt = call.parts.agents, call.attempt
    if attempt is None:
        turn = agents.turn(agent, call.key, body, format=format, on_leave=on_leave)
        await turn.wait_recorded()
        return turn
    if attempt.is_repeated:
        try:
            turn = agents.turn_of(agent, call.key, attempt.turn_id)
        except (Unknown, Missed):
            if not attempt.has_begun_turn:
                raise OutcomeUnknown(_HISTORY) from None
            message = f"turn {attempt.turn_id!r} of this request is not stored any more; {_HISTORY} has its answer"
            raise Gone(message) from None
    else:
        turn = agents.turn(agent, call.key, body, format=format, on_leave=on_leave, id=attempt.turn_id)
    await turn.wait_recorded()
    if not attempt.has_begun_turn:
        await call.parts.ledger.begin_turn(attempt)
    return turn
