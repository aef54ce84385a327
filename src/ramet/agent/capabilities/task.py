"""Tasks: requests to an agent in the form of a function: the docstring states the work, the signature its types.

A task is declared with `@agent.task` on a function with an empty body. A call checks the arguments, runs the agent, and
returns a value of the annotated type. If the agent's answer has another form, the agent is told so, and tries again.
"""

from __future__ import annotations

import copy
import dis
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ramet.agent.capabilities.task_runner import current_runner
from ramet.agent.typed.from_schema import TypeReader
from ramet.agent.typed.schema import TASK, Types
from ramet.agent.typed.to_schema import schema_of
from ramet.agent.typed.values import as_data, decode_value, encode_argument, type_hints
from ramet.core.agent_ref import AgentRef
from ramet.core.errors import InvalidValue
from ramet.core.recipe import TaskDefinition, checked_task_name

#: Bytecode of a body that does nothing, in a function or a coroutine, in Python 3.11 to 3.14.
_EMPTY_BODY_OPCODES = frozenset(
    "RESUME LOAD_CONST LOAD_SMALL_INT RETURN_VALUE RETURN_CONST NOP COPY_FREE_VARS CACHE RETURN_GENERATOR POP_TOP "
    "CALL_INTRINSIC_1 RERAISE".split()
)
_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
#: Default number of concurrent items of a `map`.
MAX_PARALLEL = 8


class Owner(Protocol):
    """The owner of a task: a `ramet.Agent`."""

    @property
    def name(self) -> str: ...
    @property
    def ref(self) -> AgentRef | None: ...


class Task:
    """A task of an agent: call it, or await it in async code; `submit`, `map` and `stream` run it in other ways."""

    def __init__(
        self, agent: Owner, name: str, definition: TaskDefinition, hints: Mapping[str, Any], returns: Any
    ) -> None:
        self.agent, self.name, self.definition = agent, checked_task_name(name), definition
        self._hints, self.returns = dict(hints), returns
        self.branch = False  #: its runs work on branches of their parent's state
        self.__name__ = self.__qualname__ = name
        self.__doc__ = definition.docstring
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(
                    each,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    annotation=hints[each],
                    default=schema["default"] if "default" in schema else inspect.Parameter.empty,
                )
                for each, schema in sorted(definition.parameters.items(), key=lambda each: "default" in each[1])
            ],
            return_annotation=returns,
        )

    @classmethod
    def from_function(cls, agent: Owner, function: Callable[..., Any], types: Types) -> Task:
        """Return the task of a function.

        Raises InvalidValue for a body, a missing docstring, or a type that is no data.
        """
        name = checked_task_name(getattr(function, "__name__", None))
        if not inspect.isfunction(function) or not _is_empty(function):
            raise InvalidValue(f"task {name}", function, "a function with only a docstring: the agent does the work")
        docstring = inspect.cleandoc(function.__doc__ or "")
        if not docstring:
            raise InvalidValue(f"task {name}", "no docstring", "a docstring: it is the agent's instruction")
        hints, parameters = type_hints(function, f"task {name}"), dict[str, Any]()
        for each in inspect.signature(function).parameters.values():
            path = f"task {name}.{each.name}"
            if each.kind not in _KINDS:
                raise InvalidValue(path, str(each), "parameters with names, neither *args nor **kwargs")
            parameters[each.name] = schema_of(hints.get(each.name, each.empty), types, path)
            if each.default is not each.empty:
                default = None if each.default is None else as_data(each.default, path)
                encode_argument(hints[each.name], each.default, path)
                parameters[each.name] |= {"default": default}
        returns = hints.get("return", inspect.Parameter.empty)
        if returns is inspect.Parameter.empty:
            raise InvalidValue(f"task {name}", "no return annotation", "one, such as `-> str`, or `-> None`")
        schema = None if returns in (None, type(None)) else schema_of(returns, types, f"task {name} -> ")
        definition = TaskDefinition(docstring=docstring, parameters=parameters, returns=schema)
        task = cls(agent, name, definition, {each: hints[each] for each in parameters}, returns)
        task.__module__, task.__qualname__ = function.__module__, function.__qualname__
        return task

    @classmethod
    def from_definition(cls, agent: Owner, name: str, definition: TaskDefinition, types: TypeReader) -> Task:
        """Return a task of a recipe, with new types. Raises InvalidValue for invalid schemas."""
        path = f"task {name}"
        hints = {each: types.hint(schema, f"{path}.{each}") for each, schema in definition.parameters.items()}
        returns = None if definition.returns is None else types.hint(definition.returns, f"{path} -> ")
        for each, schema in definition.parameters.items():
            if "default" in schema:
                decode_value(hints[each], schema["default"], f"{path}.{each}")
        return cls(agent, name, definition, hints, returns)

    # ---- calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task: return the value, or in an event loop an awaitable of it.

        Raises InvalidValue for arguments that do not fit, TaskFailed, and NeedsInput.
        """
        return current_runner().call(self, self.bind(*args, **kwargs))

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Start the task; return an object to wait for, with `result()` and `exception()`. Raises InvalidValue."""
        return current_runner().submit(self, self.bind(*args, **kwargs))

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """Start the task; return an async iterator of the run's events, which also has `result()` and `exception()`."""
        return current_runner().stream(self, self.bind(*args, **kwargs))

    def map(self, *columns: Iterable[Any], max_parallel: int = MAX_PARALLEL) -> Any:
        """Run the task for each row of the columns, at most `max_parallel` at once; return the outcomes in order.

        A failed run does not affect the others: each outcome has `result()` and `exception()`. Raises InvalidValue
        before any run begins.
        """
        if not isinstance(max_parallel, int) or isinstance(max_parallel, bool) or max_parallel < 1:
            raise InvalidValue("max_parallel", max_parallel, "a whole number from 1")
        return current_runner().map(
            self, [self.bind(*row) for row in zip(*columns, strict=True)], max_parallel=max_parallel
        )

    def answer(self, token: str, text: str) -> Any:
        """Answer a question of the agent (`NeedsInput.token`), even in a later process; return the value, like a call.

        The agent continues with its whole conversation. A second answer to the same question raises BusyError, unless
        it is equal: then the value of that run is returned again.
        """
        return current_runner().answer(self, token, text)

    def on_branch(self) -> Task:
        """Return the task on a branch of the caller's state, which is unchanged until the caller merges."""
        other = copy.copy(self)
        other.branch = True
        return other

    def with_agent(self, agent: Owner) -> Task:
        """Return the task with another definition of its agent; this object is unchanged."""
        other = copy.copy(self)
        other.agent = agent
        return other

    # ---- what goes in and comes out

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments as JSON data. Raises InvalidValue, with the parameter."""
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as problem:
            raise InvalidValue(f"task {self.name}", [*args, *kwargs], f"{self.__signature__}: {problem}") from None
        data = {}
        for each, value in bound.arguments.items():
            path = f"{self.name}.{each}"
            if self.definition.parameters[each].get("format") == TASK:
                data[each] = str(value) if isinstance(value, str) else handle_of(value, path)
            else:
                data[each] = encode_argument(self._hints[each], value, path)
        for each, schema in self.definition.parameters.items():
            if each not in data and "default" in schema:
                data[each] = schema["default"]
        return data

    def check_arguments(self, arguments: object) -> dict[str, Any]:
        """Return arguments that arrived as data, such as from a sandbox: checked, in the order of the parameters."""
        if not isinstance(arguments, Mapping):
            raise InvalidValue(f"task {self.name}", arguments, "an object of arguments")
        unknown = sorted(set(arguments) - set(self.definition.parameters))
        if unknown:
            raise InvalidValue(f"{self.name}.{unknown[0]}", arguments[unknown[0]], f"{self.__signature__}")
        data = {}
        for each, schema in self.definition.parameters.items():
            if each in arguments:
                if schema.get("format") != TASK:
                    decode_value(self._hints[each], arguments[each], f"{self.name}.{each}")
                data[each] = arguments[each]
            elif "default" in schema:
                data[each] = schema["default"]
            else:
                raise InvalidValue(f"{self.name}.{each}", None, f"a value: {self.__signature__}")
        return data

    @property
    def returns_task(self) -> bool:
        """Return whether the result is itself a task, of an agent created during the run."""
        return self.definition.returns is not None and self.definition.returns.get("format") == TASK

    @property
    def output(self) -> Any:
        """Return the form of the agent's answer, for a definition; None for plain text, or for no result."""
        if self.definition.returns is None or self.returns_task or self.returns in (str, Any):
            return None
        return self.returns

    def prompt(self, arguments: Mapping[str, Any]) -> str:
        """Return the agent's prompt: the instruction, then the arguments as JSON."""
        if not arguments:
            return self.definition.docstring
        arguments_json = json.dumps(arguments, ensure_ascii=False, indent=1)
        return f"{self.definition.docstring}\n\nArguments:\n```json\n{arguments_json}\n```"

    def __repr__(self) -> str:
        return f"<task {self.agent.name}.{self.name}{self.__signature__}>"


def handle_of(value: Any, path: str) -> str:
    """Return the handle of a task that is itself a value. Raises InvalidValue if the value is no such task."""
    if not isinstance(value, Task) or value.agent.ref is None:
        raise InvalidValue(path, value, "a task of an agent that is stored in a registry")
    return f"{value.agent.ref}:{value.name}"


def _is_empty(function: Callable[..., Any]) -> bool:
    code = function.__code__
    return all(each.opname in _EMPTY_BODY_OPCODES for each in dis.get_instructions(code)) and not code.co_names
