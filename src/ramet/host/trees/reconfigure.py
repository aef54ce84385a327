"""Changes that an owner may make to a living agent: its model, its tools, and the length of its conversation."""

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
    """Set the model that a run asks from its next request on, and its later children; return the model's name.

    The change is not recorded in the definition: a resumed run asks its original model. Raises Unknown or MissingExtra
    for a name that cannot be resolved, ModelFailed for a model that cannot be made.
    """
    port = gateway.port(model, run.agent.effort)
    run.context.ask, run.model = port.ask, port.label
    run.agent = run.agent.replace(model=model)
    if run.compaction is not None:
        run.compaction = Compaction(window_tokens=port.window or UNKNOWN_WINDOW)
    run.context.emit(Notice, text=f"from now on the model is {port.label}")
    return port.label


class Equipment:
    """The additional tools, instructions and capabilities of a run. A running turn keeps those that it started with.

    The equipment is not recorded, like a changed model: a resumed run has its original equipment.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._system, self._capabilities = run.context.system_messages, run.agent.capabilities
        self._added_names: frozenset[str] = frozenset()  #: names of the additional tools that it has now
        self._next = _Additions((), "", ())

    @property
    def tools(self) -> tuple[BaseTool, ...]:
        """The tools of the next turn."""
        left_out = self._added_names | {each.name for each in self._next.tools}  # A new tool replaces one of its name.
        return (*(each for each in self._run.context.tools if each.name not in left_out), *self._next.tools)

    def check(self, tools: Sequence[BaseTool]) -> None:
        """Check whether these tools can be added to the present ones. Raises InvalidValue."""
        if tools and self._run.agent.coordinator:
            raise InvalidValue("tools", tools[0].name, "nothing: a coordinator only leads other agents")
        names = [each.name for each in (*self.tools, *tools)]
        if duplicate := next((each for each in names if names.count(each) > 1), None):
            raise InvalidValue("tools", duplicate, f"one tool of each name at {self._run.info.path}")

    def set_additions(self, tools: Sequence[BaseTool], instructions: str, capabilities: Sequence[Capability]) -> None:
        """Set the additional equipment from the next turn on, replacing the previous additional equipment."""
        self._next = _Additions(tuple(tools), instructions, tuple(capabilities))
        self._run.pending_change = self._apply

    def _apply(self) -> None:
        run, (_, instructions, capabilities) = self._run, self._next
        texts = [*(str.__str__(each.text) for each in self._system), instructions]
        run.context.system_messages = (SystemMessage("\n\n".join(texts)),) if instructions else self._system
        run.context.tools = self.tools
        run.agent = run.agent.replace(capabilities=tuple(dict.fromkeys((*self._capabilities, *capabilities))))
        self._added_names = frozenset(each.name for each in self._next.tools)


class _Additions(NamedTuple):
    tools: tuple[BaseTool, ...]
    instructions: str
    capabilities: tuple[Capability, ...]


async def compact(run: Run) -> bool:
    """Shorten a run's conversation now; return whether that was possible.

    The run's model is asked, from the run's budget.

    Raises BusyError in a turn, InvalidValue for an agent that keeps all of its conversation, BudgetExceeded.
    """
    if run.state is not State.IDLE and run.turns > 0:
        raise BusyError(f"a turn of {run.info.path} is under way; wait for it, or interrupt it")
    if run.compaction is None:
        raise InvalidValue("compact", run.info.path, "an agent whose conversation may be compacted")
    shortened = await run.compaction.compact(run.context, trigger="manual")
    await run.context.wait_persisted()
    return shortened
