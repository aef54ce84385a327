"""The arguments of a tool: their schema for the model and their validation, also for names like `-i`.

langchain drops aliases from the schema that it shows to a model, but passes a plain JSON schema unchanged. So these
tools have a JSON schema, and validate arguments with the class that generated it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeVar

from langchain_core.tools import BaseTool, ToolException
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ramet.core.errors import Bug


class Arguments(BaseModel):
    """The arguments of a tool. An unknown name is an error: a silently ignored option misleads a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)


A = TypeVar("A", bound=Arguments)
#: The content of a tool's result: a text, or blocks.
ToolContent = str | list[dict[str, Any]]


class BuiltinTool(BaseTool):
    """A tool of ramet's own: an async function on validated arguments.

    It is no `StructuredTool`, because LangChain reads the signature and type hints of such a tool's function at each
    call. That takes longer than the rest of the call.
    """

    args_schema: Any  # a dict: LangChain validates nothing, this tool does
    arguments_class: type[Arguments] = Field(exclude=True)
    function: Callable[[Any], Awaitable[ToolContent]] = Field(exclude=True)

    def _run(self, **_: Any) -> str:
        raise Bug(f"the tool {self.name} runs in the event loop")

    async def _arun(self, **values: Any) -> ToolContent:
        try:
            arguments = self.arguments_class.model_validate(values)
        except ValidationError as error:
            raise ToolException(_error_text(self.name, self.arguments_class, error)) from None
        return await self.function(arguments)

    _arun.__annotations__.clear()  # LangChain looks for a RunnableConfig among them at each call


def workspace_tool(
    name: str, description: str, arguments_class: type[A], run: Callable[[A], Awaitable[ToolContent]], **metadata: Any
) -> BuiltinTool:
    """Return a tool of an async function on validated arguments; `metadata` is for dispatch."""
    return BuiltinTool(
        name=name,
        description=description,
        args_schema=_schema(arguments_class),
        arguments_class=arguments_class,
        function=run,
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
