"""Questions of a server to a person, through its client (elicitation), in both eras of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from ramet.core.errors import InvalidValue
from ramet.core.mcp.server_url import checked_url
from ramet.host.mcp.call_clocks import CallClocks
from ramet.tools.mcp.answer_form import form_of
from ramet.tools.mcp.connection_port import Ask, ServerQuestion

METHOD: Final = "elicitation/create"
MAX_QUESTIONS: Final = 8  #: of one server in one turn
MAX_MESSAGE: Final = 1_000


class Elicitation:
    """The questions of one server: one after the other, and bounded in number."""

    def __init__(self, ask: Ask, clocks: CallClocks) -> None:
        self._ask, self._clocks = ask, clocks
        self._asked = 0
        self._turn = asyncio.Lock()

    async def answer(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a person's answer as the protocol has it. Raises InvalidValue for a question that cannot be asked."""
        question = _question(params)
        self._asked += 1
        if self._asked > MAX_QUESTIONS:
            raise InvalidValue(METHOD, f"{self._asked} questions", f"at most {MAX_QUESTIONS} in a turn")
        with self._clocks.stop_time():
            async with self._turn:
                content = await self._ask(question)
        if content is None:
            return {"action": "decline"}
        return {"action": "accept"} if question.form is None else {"action": "accept", "content": content}


def _question(params: Mapping[str, Any]) -> ServerQuestion:
    message = params.get("message")
    if not isinstance(message, str):
        raise InvalidValue("message", type(message).__name__, "a text")
    if params.get("mode", "form") == "url":
        url = params.get("url")
        return ServerQuestion(message[:MAX_MESSAGE], None, checked_url("url", url if isinstance(url, str) else ""))
    return ServerQuestion(message[:MAX_MESSAGE], form_of(params.get("requestedSchema")), "")
