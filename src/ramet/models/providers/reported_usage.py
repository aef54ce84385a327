"""Check the usage that a provider reports with a reply: it is data of a stranger, and a budget counts it.

The rules are those of `ramet.models.wires.usage_reader`, for messages of LangChain.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.messages import AIMessage

from ramet.models.wires.contract import MAX_TOKENS
from ramet.models.wires.usage_reader import MAX_TOKEN_BYTES


def is_credible(reply: AIMessage) -> bool:
    """Return whether a reply reports no usage, or one that it can have had.

    Each number is a whole one from 0 to MAX_TOKENS, and the output is enough for the reply's text and tool calls.
    """
    usage = reply.usage_metadata
    if usage is None:
        return True
    if not all(type(each) is int and 0 <= each <= MAX_TOKENS for each in _numbers(usage)):
        return False
    try:
        argument_bytes = sum(len(json.dumps(call["args"])) for call in reply.tool_calls)
    except (TypeError, ValueError, RecursionError):  # They came over no wire.
        return False
    output_bytes = len(reply.text) + argument_bytes
    return usage["output_tokens"] * MAX_TOKEN_BYTES >= output_bytes


def _numbers(usage: Mapping[str, Any]) -> Iterable[object]:
    """Yield the numbers of a report; None for a missing sum. LangChain's caches leave out what was never reported."""
    yield from (usage.get("input_tokens"), usage.get("output_tokens"), usage.get("total_tokens", 0))
    for details in (usage.get("input_token_details"), usage.get("output_token_details")):
        if details:
            yield from (each for each in details.values() if each is not None)
