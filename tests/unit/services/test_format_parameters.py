"""Every parameter that the providers document is honoured, ignored with a reason, or refused by its name."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest

from ramet.core.errors import InvalidValue
from ramet.services.formats.parameters import ANTHROPIC, OPENAI, Parameter, check

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "reference" / "client-parameters.md"
TABLES = {"chat/completions": OPENAI, "messages": ANTHROPIC}


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hello"}], **fields}).encode()


def test_the_table_has_every_parameter_of_openais_package() -> None:
    """The names are those of the package's types."""
    from openai.types.chat import completion_create_params as sent_params

    fields = get_type_hints(sent_params.CompletionCreateParamsStreaming).keys()
    assert fields == OPENAI.keys()


def test_the_table_has_every_parameter_of_anthropics_package() -> None:
    """Parameters of the beta client and of older versions are included."""
    from anthropic.types import message_create_params as sent_params
    from anthropic.types.beta import message_create_params as beta

    fields = set(get_type_hints(sent_params.MessageCreateParamsStreaming))
    fields |= get_type_hints(beta.MessageCreateParamsStreaming).keys()
    assert fields | {"output_format", "temperature", "top_k", "top_p"} == ANTHROPIC.keys()


@pytest.mark.parametrize(
    ("table", "name"), [(path, name) for path, table in TABLES.items() for name in table], ids=lambda value: str(value)
)
def test_a_refused_parameter_is_named(table: str, name: str) -> None:
    """Null and accepted values pass; the refusal of another value names the parameter and the accepted values."""
    parameters = TABLES[table]
    parameter = parameters[name]
    if name == "messages":
        return check(body(), parameters)
    for each in (None, *parameter.accepted_values):
        check(body(**{name: each}), parameters)
    if parameter.treatment == "ignored":
        return check(body(**{name: {"any": 1}}), parameters)
    for value in (0.5, "x", {"a": 1}, [1]):
        with pytest.raises(InvalidValue) as refusal:
            check(body(**{name: value}), parameters)
        assert refusal.value.field == name
        assert parameter.why in refusal.value.accepted


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_an_unknown_parameter_is_named(table: Mapping[str, Parameter]) -> None:
    """No parameter is ignored silently."""
    with pytest.raises(InvalidValue) as refusal:
        check(body(turbo=True), table)
    assert refusal.value.field == "turbo"


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}], "messages[1].role"),
        ([{"role": "user", "content": "a", "name": "Ann"}], "messages[0].name"),
        ([{"role": "user", "content": [{"type": "text", "text": "a", "citations": [1]}]}], "messages[0].content[0]."),
    ],
)
def test_unsupported_parts_of_messages_are_named(messages: list[Any], field: str) -> None:
    """Instructions, tool results and unknown fields of the newest message are refused."""
    with pytest.raises(InvalidValue) as refusal:
        check(body(messages=messages), OPENAI)
    assert refusal.value.field.startswith(field)


def test_cache_hints_and_the_clients_own_history_pass() -> None:
    """Earlier messages of the agent may have any parts, since the agent has its own record."""
    assistant = {"role": "assistant", "content": [{"type": "thinking", "thinking": "…"}], "refusal": None}
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "citations": None}
    check(body(messages=[{"role": "user", "content": "q"}, assistant, {"role": "user", "content": [part]}]), ANTHROPIC)


@pytest.mark.parametrize("path", TABLES)
def test_the_documentation_lists_every_parameter(path: str) -> None:
    """docs/reference/client-parameters.md gives the treatment of each parameter."""
    section = PAGE.read_text().split(f"## Parameters of `POST /v1/{path}`")[1].split("\n#")[0]
    treatments: dict[str, str] = {}
    for names, treatment in re.findall(r"^\| (`[^|]*`) \| (honoured|ignored|refused)", section, re.MULTILINE):
        treatments |= dict.fromkeys(re.findall(r"`(\w+)`", names), treatment)
    assert treatments == {name: each.treatment for name, each in TABLES[path].items()}
