"""A turn that a request begins, or that the same request began before: then it is read again."""

from __future__ import annotations

from ramet.core.errors import Gone, Unknown
from ramet.services.errors import Missed, OutcomeUnknown
from ramet.services.http.request import RequestContext
from ramet.services.turns.turn import OnLeave, Turn

_HISTORY = "the history of the agent"


async def begun(
    call: RequestContext, agent: str, body: bytes, *, format: str = "", on_leave: OnLeave = "go_on"
) -> Turn:
    """Begin a turn, and return it once it is on record.

    A request with an `Idempotency-Key` that has begun one before gets that one. Raises Gone if it is kept no more,
    and OutcomeUnknown where a killed server may have begun it.
    """
    agents, attempt = call.parts.agents, call.attempt
    if attempt is None:
        turn = agents.turn(agent, call.key, body, format=format, on_leave=on_leave)
        await turn.on_record()
        return turn
    if attempt.is_again:
        try:
            turn = agents.turn_of(agent, call.key, attempt.turn_id)
        except (Unknown, Missed):
            if not attempt.has_begun_turn:
                raise OutcomeUnknown(_HISTORY) from None
            why = f"turn {attempt.turn_id!r} of this request is not kept any more; {_HISTORY} has its answer"
            raise Gone(why) from None
    else:
        turn = agents.turn(agent, call.key, body, format=format, on_leave=on_leave, id=attempt.turn_id)
    await turn.on_record()
    if not attempt.has_begun_turn:
        await call.parts.ledger.begin_turn(attempt)
    return turn
