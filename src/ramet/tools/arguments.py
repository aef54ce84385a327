"""The arguments of a tool: their schema for the model and their validation, also for names like `-i`.

langchain drops aliases from the schema that it shows to a model, but passes a plain JSON schema unchanged. So these
tools have a JSON schema, and validate arguments with the class that generated it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeVar

from langchain_core.tools import StructuredTool, ToolException
from pydantic import BaseModel, ConfigDict, ValidationError


class Arguments(BaseModel):
    """The arguments of a tool. An unknown name is an error: a silently ignored option misleads a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)


A = TypeVar("A", bound=Arguments)


def workspace_tool(
    name: str, description: str, arguments_class: type[A], run: Callable[[A], Awaitable[str]], **metadata: Any
) -> StructuredTool:
    """Return a tool of an async function on validated arguments; `metadata` is for dispatch."""

    async def call(**values: Any) -> str:
        try:
            arguments = arguments_class.model_validate(values)
        except ValidationError as error:
            raise ToolException(_error_text(name, arguments_class, error)) from None
        return await run(arguments)

    return StructuredTool(
        name=name,
        description=description,
        args_schema=_schema(arguments_class),
        coroutine=call,
        metadata=dict(metadata),
    )


@cache
def _schema(arguments_class: type[Arguments]) -> dict[str, Any]:
    schema = arguments_class.model_json_schema(by_alias=True)
    schema["description"] = ""
    for field in schema["properties"].values():
        field.pop("title", None)
    return schema


def _error_text(name: str, arguments_class: type[Arguments], error: ValidationError) -> str:
    accepted = ", ".join(field.alias or key for key, field in arguments_class.model_fields.items())
    return f"{mistakes(name, error)} It takes: {accepted}."


def mistakes(tool: str, error: ValidationError) -> str:
    """Return one sentence about the mistakes of a call, without the sent values: those may be large."""
    problems = [
        f"{'.'.join(str(part)[:60] for part in each['loc']) or 'arguments'}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False)[:5]
    ]
    return f"{tool} was called wrongly. {'; '.join(problems)}."
