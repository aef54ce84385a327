"""A model that needs no key and no network: a researcher that works by rules, and says so in every answer.

It drives the same loop as any model: it lists a folder, sends `explore` agents into its parts, follows names and
numbers from logs to code and settings, and answers with evidence. It reads text and understands none.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

from ramet.models.research.history import text_of
from ramet.models.research.researcher import decide
from ramet.models.streamed import streamed, tool_name


class OfflineResearcher(BaseChatModel):
    """Answers questions about a folder by searching it. Keeps nothing: any number of agents may share one."""

    model_name: str = "offline"
    tool_names: frozenset[str] = frozenset()  #: what it may call; see `bind_tools`

    @property
    def _llm_type(self) -> str:
        return "offline"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """This model, knowing these tools by their names."""
        return self.model_copy(update={"tool_names": frozenset(map(tool_name, tools))})

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        yield from streamed(self._reply(messages))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for piece in streamed(self._reply(messages)):
            yield piece

    def _reply(self, messages: Sequence[BaseMessage]) -> AIMessage:
        step = decide(messages, self.tool_names)
        calls = [
            tool_call(name=call.tool, args=call.args, id=f"offline-{step.stage}-{len(messages)}-{number}")
            for number, call in enumerate(step.calls)
        ]
        reply = AIMessage(step.text, tool_calls=calls, response_metadata={"model_name": self.model_name})
        asked = sum(_tokens(text_of(message)) for message in messages)
        said = _tokens(step.text) + sum(_tokens(json.dumps(call["args"])) for call in calls)
        reply.usage_metadata = UsageMetadata(input_tokens=asked, output_tokens=said, total_tokens=asked + said)
        return reply


def _tokens(text: str) -> int:
    """An estimate that is the same everywhere: a token for every four bytes."""
    return -(-len(text.encode("utf-8", "replace")) // 4)
