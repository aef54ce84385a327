"""What an owner may change of an agent that lives: its model, and how much of its conversation it still holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.agent.compaction import Compaction
from ramet.core.errors import BusyError, InvalidValue
from ramet.core.events import Notice
from ramet.core.lifecycle import State
from ramet.host.gateway import Gateway
from ramet.host.opening import UNKNOWN_WINDOW
from ramet.spawn.run import Run

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


def set_model(run: Run, model: str | BaseChatModel, gateway: Gateway) -> str:
    """Have a run ask this model from its next question on, and what it starts then; returns the model's name.

    Not on record as its definition: taken up again, it asks the one that it was born with. Raises Unknown or
    MissingExtra for a name that leads nowhere, ModelFailed for one that cannot be made.
    """
    port = gateway.port(model)
    run.context.ask, run.model = port.ask, port.label
    run.agent = run.agent.replace(model=model)
    if run.compaction is not None:
        run.compaction = Compaction(window_tokens=port.window or UNKNOWN_WINDOW)
    run.context.emit(Notice, text=f"from now on it asks {port.label}")
    return port.label


async def compact(run: Run) -> bool:
    """Shorten a run's conversation now; says whether that was to be had. Its model is asked, from its own budget.

    Raises BusyError in a turn, InvalidValue for an agent that keeps all of its conversation, BudgetExceeded.
    """
    _check_at_rest(run)
    if run.compaction is None:
        raise InvalidValue("compact", run.info.path, "an agent whose conversation may be shortened")
    shortened = await run.compaction.compact(run.context, trigger="manual")
    await run.context.settled()
    return shortened


def _check_at_rest(run: Run) -> None:
    if run.state is not State.IDLE and run.turns > 0:
        raise BusyError(f"a turn of {run.info.path} is under way; wait for it, or interrupt it")
