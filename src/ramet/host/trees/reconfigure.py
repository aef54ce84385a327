"""What an owner may change of an agent that lives: its model, what it is equipped with, how much it still remembers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from langchain_core.messages import SystemMessage

from ramet.agent.history.compaction import Compaction
from ramet.core.errors import BusyError, InvalidValue
from ramet.core.events import Notice
from ramet.core.lifecycle import State
from ramet.core.policy.capabilities import Capability
from ramet.host.gateway import Gateway
from ramet.host.trees.factory import UNKNOWN_WINDOW
from ramet.spawn.run import Run

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool


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


class Equipment:
    """What a run has beside what it was born with. A turn under way goes on with what it began with.

    Not on record, as its model is not: taken up again, a run has what it was born with.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._system, self._capabilities = run.context.system_messages, run.agent.capabilities
        self._worn: frozenset[str] = frozenset()  #: names of tools that it has now beside its own
        self._next = _Worn((), "", ())

    @property
    def tools(self) -> tuple[BaseTool, ...]:
        """What its next turn has."""
        return (*(each for each in self._run.context.tools if each.name not in self._worn), *self._next.tools)

    def check(self, tools: Sequence[BaseTool]) -> None:
        """Whether these could be had beside those that there are. Raises InvalidValue."""
        names = [each.name for each in (*self.tools, *tools)]
        if twice := next((each for each in names if names.count(each) > 1), None):
            raise InvalidValue("tools", twice, f"one tool of each name at {self._run.info.path}")

    def put_on(self, tools: Sequence[BaseTool], instructions: str, capabilities: Sequence[Capability]) -> None:
        """Have these from the next turn on, in place of what it had beside its own before."""
        self._next = _Worn(tuple(tools), instructions, tuple(capabilities))
        self._run.change = self._wear

    def _wear(self) -> None:
        run, (_, instructions, capabilities) = self._run, self._next
        texts = [*(str.__str__(each.text) for each in self._system), instructions]
        run.context.system_messages = (SystemMessage("\n\n".join(texts)),) if instructions else self._system
        run.context.tools = self.tools
        run.agent = run.agent.replace(capabilities=tuple(dict.fromkeys((*self._capabilities, *capabilities))))
        self._worn = frozenset(each.name for each in self._next.tools)


class _Worn(NamedTuple):
    tools: tuple[BaseTool, ...]
    instructions: str
    capabilities: tuple[Capability, ...]


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
