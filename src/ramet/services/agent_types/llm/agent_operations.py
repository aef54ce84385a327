"""The operations of an agent of the type "llm": its tools, its bundles, its model, and compaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from msgspec import Struct

from ramet.core.errors import Bug
from ramet.host.session import Session
from ramet.host.trees import reconfigure
from ramet.services.agent_types import bundle_operations
from ramet.services.agent_types.bundle_operations import LoadBundle, UnloadBundle
from ramet.services.agent_types.llm.settings import AgentSettings
from ramet.services.contract import AgentSpec

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


class ListTools(Struct, forbid_unknown_fields=True):
    """List the tools of the agent's next turn: `name`, `description` and `input_schema` (a JSON schema) of each."""


class SetModel(Struct, forbid_unknown_fields=True):
    """Set the model for the agent's next model calls. The answer contains the name of the `model`."""

    model: str


class Compact(Struct, forbid_unknown_fields=True):
    """Compact the agent's conversation now.

    The answer contains whether it was `compacted`, and the number of `messages`.
    """


class LlmOperations:
    """The operations of one agent. No turn begins while its conversation is being compacted."""

    def __init__(
        self,
        session: Session,
        spec: AgentSpec,
        model: Callable[[str], str | BaseChatModel],
        settings: AgentSettings,
    ) -> None:
        """Change a session that has started.

        `model` returns a model by its name. `settings` are the applied settings of the run.
        """
        self._session, self._spec, self._model, self._settings = session, spec, model, settings
        self._root = session.handle(session.id).run
        self._compaction: asyncio.Future[None] | None = None  #: set while the conversation is being compacted

    async def control(self, operation: Any) -> Any:
        """List the tools, load or unload a bundle, set the model, or compact the conversation.

        Raises BusyError for a model change or a compaction during a turn. Raises InvalidValue, Unknown, Damaged for a
        bundle.
        """
        match operation:
            case ListTools():
                return [_tool_document(tool) for tool in self._settings.tools]
            case LoadBundle() | UnloadBundle():
                return await bundle_operations.change(self._spec, operation, self._settings.check, self._settings.apply)
            case SetModel():
                self._spec.rules.check_model("model", operation.model)
                return {"model": await self._settings.set_model(operation.model, self._model(operation.model))}
            case Compact():
                return {"compacted": await self._compact(), "messages": len(self._session.messages)}
        raise Bug(f"an operation that was not declared: {type(operation).__name__}")

    async def wait_idle(self) -> None:
        """Wait until no compaction is running."""
        while self._compaction is not None:
            await asyncio.shield(self._compaction)

    async def _compact(self) -> bool:
        if self._compaction is not None:
            await asyncio.shield(self._compaction)
        self._compaction = asyncio.get_running_loop().create_future()
        try:
            return await reconfigure.compact(self._root)
        finally:
            self._compaction.set_result(None)
            self._compaction = None


def _tool_document(tool: BaseTool) -> dict[str, Any]:
    schema = convert_to_openai_tool(tool)["function"].get("parameters", {"type": "object", "properties": {}})
    return {"name": tool.name, "description": tool.description, "input_schema": schema}
