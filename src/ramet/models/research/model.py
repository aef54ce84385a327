"""A model without a key and a network: a researcher that works by rules, and says so in every answer.

The researcher uses the same loop as any model. It lists a folder, sends `explore` agents to its files, and follows
names and numbers from logs to code and settings. Its answer consists of the lines that it found. It understands no
text.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

from ramet.models.made_stream import to_chunks, tool_name
from ramet.models.research.researcher import decide


class OfflineResearcher(BaseChatModel):
    """A model that answers questions about a folder by searching it. It has no state: many agents may share one."""

    model_name: str = "offline"
    tool_names: frozenset[str] = frozenset()  #: tools that it may call; see `bind_tools`

    @property
    def _llm_type(self) -> str:
        return "offline"

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return a copy of this model that knows the names of these tools."""
        return self.model_copy(update={"tool_names": frozenset(map(tool_name, tools))})

    # Any: LangChain's stop words and run managers, which are not used here.
    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages))])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return self._generate(messages)

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        for piece in to_chunks(self._reply(messages)):
            yield piece

    def _reply(self, messages: Sequence[BaseMessage]) -> AIMessage:
        step = decide(messages, self.tool_names)
        calls = [
            tool_call(name=call.tool, args=call.args, id=f"offline-{call.stage}-{len(messages)}-{number}")
            for number, call in enumerate(step.calls)
        ]
        reply = AIMessage(step.text, tool_calls=calls, response_metadata={"model_name": self.model_name})
        input_tokens = sum(_tokens(str(message.text)) for message in messages)
        output_tokens = _tokens(step.text) + sum(_tokens(json.dumps(call["args"])) for call in calls)
        reply.usage_metadata = UsageMetadata(
            input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=input_tokens + output_tokens
        )
        return reply


def _tokens(text: str) -> int:
    """Return a reproducible estimate: one token for every four bytes."""
    return -(-len(text.encode("utf-8", "replace")) // 4)
