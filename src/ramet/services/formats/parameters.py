"""The treatment of each parameter that clients of models send: it is honoured, ignored, or refused by its name.

An agent has its own model, instructions, tools and limits, so most parameters are refused. Ignored parameters do not
change an answer, or are required by the provider. A value that describes the actual behaviour is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Raw

from ramet.core.errors import InvalidValue
from ramet.services.formats.request import decode, excerpt, read_prompt, read_text

_ROLES: Final = ("user", "assistant")
_OWN: Final = "the agent has its own"


class Parameter(NamedTuple):
    """A parameter. `accepted_values` are the values that are not refused, in addition to null; `why` is for people."""

    treatment: Literal["honoured", "ignored", "refused"]
    why: str
    accepted_values: Sequence[Any] = ()


def _honour(why: str, *accepted: Any) -> Parameter:
    return Parameter("honoured", why, accepted)


def _ignore(why: str) -> Parameter:
    return Parameter("ignored", why)


def _refuse(why: str, *accepted: Any) -> Parameter:
    return Parameter("refused", why, accepted)


_SAMPLING: Final = _refuse("the agent's model is set up by its owner")
_TOOLS: Final = _refuse("the agent has its own tools, and calls them itself", [])
_HINT: Final = _ignore("a hint for the provider's own operation")
_MODEL: Final = _ignore("the key selects the agent; the answer names the agent's model")

#: The parameters of `POST /v1/chat/completions`.
OPENAI: Final[Mapping[str, Parameter]] = {
    "messages": _honour("the last message, from the user, is sent to the agent, which has recorded the earlier ones"),
    "stream": _honour("the answer in pieces", True, False),
    "stream_options": _honour(
        "the usage comes with the last chunk, whether it is asked for or not",
        {},
        {"include_usage": True},
        {"include_usage": False},
    ),
    "n": _honour("one answer", 1),
    "modalities": _honour("text", ["text"]),
    "response_format": _honour("text", {"type": "text"}),
    "model": _MODEL,
    "metadata": _HINT,
    "prompt_cache_key": _HINT,
    "prompt_cache_options": _HINT,
    "prompt_cache_retention": _HINT,
    "safety_identifier": _HINT,
    "store": _HINT,
    "user": _HINT,
    "tools": _TOOLS,
    "functions": _TOOLS,
    "tool_choice": _refuse(_TOOLS.why, "none"),
    "function_call": _refuse(_TOOLS.why, "none"),
    "parallel_tool_calls": _refuse(_TOOLS.why),
    "audio": _refuse("the agent answers with text"),
    "frequency_penalty": _SAMPLING,
    "logit_bias": _SAMPLING,
    "logprobs": _refuse("they are not known", False),
    "top_logprobs": _refuse("they are not known"),
    "max_completion_tokens": _refuse("the limits of the agent bound its answer"),
    "max_tokens": _refuse("the limits of the agent bound its answer"),
    "moderation": _refuse("a gate of the agent does that"),
    "prediction": _SAMPLING,
    "presence_penalty": _SAMPLING,
    "reasoning_effort": _SAMPLING,
    "seed": _SAMPLING,
    "service_tier": _refuse("the owner of the agent configures its model", "auto", "default"),
    "stop": _SAMPLING,
    "temperature": _SAMPLING,
    "top_p": _SAMPLING,
    "verbosity": _SAMPLING,
    "web_search_options": _refuse(_TOOLS.why),
}

#: The parameters of `POST /v1/messages`, including those of the beta header.
ANTHROPIC: Final[Mapping[str, Parameter]] = {
    "messages": OPENAI["messages"],
    "stream": OPENAI["stream"],
    "model": _MODEL,
    "max_tokens": _ignore("the provider requires it; the limits of the agent bound its answer"),
    "cache_control": _HINT,
    "metadata": _HINT,
    "system": _refuse("the agent has its own instructions", "", []),
    "tools": _TOOLS,
    "tool_choice": _refuse(_TOOLS.why, {"type": "none"}),
    "mcp_servers": _refuse(_TOOLS.why, []),
    "betas": _refuse("none of them is offered", []),
    "billing_policy": _refuse("the owner of the agent configures its model"),
    "compaction": _refuse("the agent shortens its conversation itself"),
    "container": _refuse("the agent has its own sandbox"),
    "context_management": _refuse("the agent shortens its conversation itself"),
    "diagnostics": _refuse("there are none"),
    "fallback_credit_token": _refuse("the owner of the agent configures its model"),
    "fallbacks": _refuse("the owner of the agent configures its model", []),
    "inference_geo": _refuse("the owner of the agent configures its model"),
    "output_config": _refuse("the agent's model is set up by its owner"),
    "output_format": _refuse("the agent answers with text"),
    "service_tier": _refuse("the owner of the agent configures its model", "auto"),
    "speed": _refuse("the owner of the agent configures its model", "standard"),
    "stop_sequences": _refuse(_SAMPLING.why, []),
    "temperature": _SAMPLING,
    "thinking": _refuse(_SAMPLING.why, {"type": "disabled"}),
    "thread": _refuse("the key selects the conversation"),
    "top_k": _SAMPLING,
    "top_p": _SAMPLING,
    "user_profile_id": _refuse("the key identifies the client"),
    "workspace_id": _refuse("the key identifies the client"),
}

#: Ignored fields of the parts of the last message.
_IGNORED_PARTS: Final = {"cache_control", "prompt_cache_breakpoint"}


class _Role(msgspec.Struct):
    role: str


def check(body: bytes, known_parameters: Mapping[str, Parameter], *, files: bool = False) -> None:
    """Refuse a request for something that no agent does, and images and documents unless `files` are read.

    Raises InvalidValue, which names the parameter.
    """
    parameters = decode(body, dict[str, Raw])
    for name, raw in parameters.items():
        parameter = known_parameters.get(name)
        if parameter is None:
            raise InvalidValue(name, excerpt(bytes(raw)), "no parameter that this server does not know")
        if parameter.treatment == "refused" or parameter.accepted_values:
            _check_value(name, raw, parameter)
    if "messages" in parameters:
        _check_messages(parameters["messages"])
    if files:
        read_prompt(body)
    else:
        read_text(body)


def _check_value(name: str, raw: Raw, parameter: Parameter) -> None:
    value = msgspec.json.decode(raw)
    if value is None or any(value == each and type(value) is type(each) for each in parameter.accepted_values):
        return
    values = " or ".join(msgspec.json.encode(each).decode() for each in parameter.accepted_values)
    raise InvalidValue(name, excerpt(bytes(raw)), f"{values or 'it left out'}: {parameter.why}")


def _check_messages(raw: Raw) -> None:
    """Check that all messages are of a user or the agent, and that the last one has only text."""
    try:
        roles = msgspec.json.decode(raw, type=list[_Role])
        last = msgspec.json.decode(raw, type=list[Raw])[-1:]
    except msgspec.DecodeError:
        return  # `read_text` reports the error.
    for number, each in enumerate(roles):
        if each.role not in _ROLES:
            raise InvalidValue(
                f"messages[{number}].role", each.role, f"'user' or 'assistant': {_refusal_reason(each.role)}"
            )
    for message in last:
        at = f"messages[{len(roles) - 1}]"
        fields = msgspec.json.decode(message, type=dict[str, Any])
        _check_fields(at, fields, {"role", "content"})
        if isinstance(content := fields.get("content"), list):
            for number, part in enumerate(content):
                if isinstance(part, dict) and part.get("type") == "text":
                    _check_fields(f"{at}.content[{number}]", part, {"type", "text", *_IGNORED_PARTS})


def _check_fields(at: str, fields: Mapping[str, Any], known_names: set[str]) -> None:
    for name, value in fields.items():
        if name not in known_names and value is not None and value != []:
            raise InvalidValue(f"{at}.{name}", value, "it left out: the agent reads text and nothing else")


def _refusal_reason(role: str) -> str:
    if role in ("system", "developer"):
        return f"instructions are not taken from a request, {_OWN}"
    return f"tools are not called by a request's sender, {_OWN}"
