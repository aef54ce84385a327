"""The tools of an agent's servers, in its sandbox: each call goes to the host, which has the session."""

from __future__ import annotations

from typing import Any

import msgspec
from langchain_core.tools import BaseTool, ToolException
from pydantic import Field

from ramet.core.errors import Bug
from ramet.guest.async_channel import AsyncChannel
from ramet.tools.arguments import ToolContent
from ramet.tools.context import current_call
from ramet.wire.guest_protocol.answer_data import McpCallReply
from ramet.wire.guest_protocol.guest_to_host import CallMcpTool, ListMcpTools
from ramet.wire.values.json_object import json_body

#: Seconds that the host's own limit of a call comes before the limit here, which would not say which server was slow.
#: The host's limit does not count the time in which it asks a person for the server, eight times at most.
_MARGIN_S = 2 * 3600.0


class ServerToolCall(BaseTool):
    """A tool of a server."""

    args_schema: Any = None  # a dict: the server validates
    link: AsyncChannel = Field(exclude=True)

    def _run(self, **_: Any) -> str:
        raise Bug(f"the tool {self.name} runs in the event loop")

    async def _arun(self, **values: Any) -> ToolContent:
        call = current_call.get(None)
        call_id = call.call_id if call is not None else ""
        body = json_body(values, "arguments")
        answer = await self.link.ask_resettable(CallMcpTool, body, tool=self.name, call_id=call_id)
        reply = answer.as_(McpCallReply)
        text = answer.body[: reply.text_size].decode("utf-8", "replace")
        if reply.has_definitions and call is not None:
            call.context.tools = (*call.context.tools, *_tools(self.link, answer.body[reply.text_size :]))
        if reply.is_error:
            raise ToolException(text)
        if reply.text_size is None or reply.has_definitions:
            return text
        return [{"type": "text", "text": text}, *msgspec.json.decode(answer.body[reply.text_size :])]

    _arun.__annotations__.clear()  # LangChain looks for a RunnableConfig among them at each call


async def server_tools(link: AsyncChannel) -> tuple[BaseTool, ...]:
    """Return the tools of the servers, once each server has listed its tools or has failed."""
    answer = await link.ask(ListMcpTools)
    return _tools(link, answer.body)


def _tools(link: AsyncChannel, definitions: bytes) -> tuple[BaseTool, ...]:
    return tuple(_tool(link, each) for each in msgspec.json.decode(definitions))


def _tool(link: AsyncChannel, data: dict[str, Any]) -> ServerToolCall:
    return ServerToolCall(
        name=data["name"],
        description=data["description"],
        args_schema=data["parameters"],
        link=link,
        metadata={"timeout_s": data["timeout_s"] + _MARGIN_S, "read_only": data.get("read_only", False)},
    )
