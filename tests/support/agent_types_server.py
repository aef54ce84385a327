"""A server with agents of every type that ships. The same messages mean the same to all of them.

`python -m tests.support.agent_types_server FOLDER BACKEND` serves until it is killed. The messages are those of
`tests.support.agent_types_program`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from ramet.services.agent_types.command.type import CommandType
from ramet.services.agent_types.function.type import FunctionType
from ramet.services.agent_types.llm.type import LlmType
from ramet.services.contract import AgentType
from ramet.services.rules import Rules
from ramet.services.server.server import Server

PYTHON = "python3"  #: as a sandbox and the host have it
_COMMANDS = {"log": "head -c 10000000 /dev/zero >&2; echo done", "die": "kill -9 $PPID"}


class Obedient(BaseChatModel):
    """A model that obeys its prompts, with a tool where it needs one."""

    @property
    def _llm_type(self) -> str:
        return "obedient"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        return self

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(self, messages: list[BaseMessage], *args: Any, **options: Any) -> AsyncIterator[Any]:
        user_texts = [str(each.text) for each in messages if isinstance(each, HumanMessage)]
        if user_texts[-1] == "fail":
            raise ValueError("it was told to")
        if user_texts[-1] == "hang":
            yield ChatGenerationChunk(message=AIMessageChunk(content="begun "))
            await asyncio.sleep(600)
        if user_texts[-1] in _COMMANDS and not isinstance(messages[-1], ToolMessage):
            args_of_it = f'{{"command": "{_COMMANDS[user_texts[-1]]}"}}'
            call = tool_call_chunk(name="Bash", args=args_of_it, id=f"call-{len(messages)}", index=0)
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[call]))
            return
        for word in " | ".join(user_texts).split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))


def obey(text: str, history: list[Mapping[str, str]]) -> Iterator[str]:
    """Obey a message, as a function in a sandbox."""
    if text == "hang":
        yield "begun "
        time.sleep(600)
    if text == "log":
        sys.stderr.write("x" * 10_000_000)
    if text == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "fail":
        yield "so far"
        raise ValueError("it was told to")
    user_texts = [each["content"] for each in history if each["role"] == "user"]
    for word in " | ".join([*user_texts, text]).split(" "):
        yield f"{word} "


async def obey_here(text: str, history: list[Mapping[str, str]]) -> AsyncIterator[str]:
    """Obey a message as a function in the host, where it can be interrupted."""
    if text == "hang":
        yield "begun "
        await asyncio.sleep(600)
    for piece in obey(text, history):
        yield piece


def types() -> Mapping[str, AgentType]:
    """Return the agent types that ship."""
    made: list[AgentType] = [
        LlmType({"obedient": Obedient()}, default="obedient"),
        FunctionType([__name__]),
        CommandType([PYTHON]),
    ]
    return {each.name: each for each in made}


async def main(folder: str, backend: Any) -> None:
    """Serve until this process is killed."""
    in_host = Rules(sandboxed=False)  # Without a policy they are in the host, which is one of the places.
    async with Server(folder, backend=backend, types=types(), rules=in_host) as server:
        print(server.listen_address, flush=True)  # noqa: T201 - whoever started it waits for that
        await asyncio.Event().wait()


if __name__ == "__main__":
    from tests.support import agent_types_server as found  # What a function's module is called.

    asyncio.run(found.main(sys.argv[1], sys.argv[2]))
