"""A tool that is called without LangChain's preparation answers as if LangChain had called it."""

import contextvars
import functools
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain_core.callbacks import (
    AsyncCallbackHandler,
    BaseCallbackHandler,
    Callbacks,
    get_usage_metadata_callback,
)
from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda, ensure_config
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, ToolException
from pydantic import BaseModel, Field

from ramet.core.errors import StoreFailed
from ramet.tools.workers.invocation import invoke, invoke_async
from ramet.tools.workers.start_check import NotStarted

_number: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)


class Unprintable:
    """A value without a JSON form."""

    def __str__(self) -> str:
        return "an object"


class Period(BaseModel):
    """Arguments with a default, a bound and another name."""

    first: int = Field(ge=0)
    last: int = 9
    step: int = Field(default=1, alias="every")


VALUES = [
    "text",
    "",
    7,
    True,
    1.5,
    None,
    float("nan"),
    {"a": [1, "ä"]},
    [{"type": "text", "text": "a"}],
    [1, 2],
    ("one", "two"),
    [],
    range(3),
    b"bytes",
    Unprintable(),
    {"a": Unprintable()},
    ToolMessage(content="own", tool_call_id="another"),
    [ToolMessage(content="own", tool_call_id="another")],
]


def returning(value: Any) -> Callable[[str], Any]:
    """Return a function that returns the value."""

    def answer(question: str) -> Any:
        """Answer."""
        return value

    return answer


def span(first: int, last: int, step: int = 1) -> str:
    """Return a span of numbers."""
    return f"{first!r} {last!r} {step!r}"


def injected(question: str, call_id: Annotated[str, InjectedToolCallId]) -> str:
    """Answer with the call's id."""
    return f"{question} {call_id}"


def failing(question: str) -> str:
    """Fail."""
    raise ToolException(f"no answer to {question}")


def broken(question: str) -> str:
    """Break."""
    raise KeyError(question)


def rest(*numbers: int, **options: int) -> str:
    """Take any number of values."""
    return f"{numbers} {options}"


def nothing() -> str:
    """Take no values."""
    return "nothing"


def configured(question: str, config: RunnableConfig) -> str:
    """Answer with the configuration."""
    return f"{question} {sorted(config)}"


def reported(question: str, callbacks: Callbacks = None) -> str:
    """Answer whether there are callbacks."""
    return f"{question} {callbacks is not None}"


def unresolved(question: "Absent") -> str:  # type: ignore[name-defined]  # noqa: F821 - that is what is tried
    """Have a type that nobody knows."""
    return str(question)


def pair(question: str) -> tuple[str, list[int]]:
    """Answer with an artifact."""
    return question, [1]


def surrounded(question: str) -> str:
    """Answer with what LangGraph's functions and other Runnables find around them."""
    return f"{question} {sorted(ensure_config())} {var_child_runnable_config.get() is None}"


SCHEMA = {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}
ASKED = {"question": "why"}

CASES: list[tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = [
    *((returning(value), ASKED, {}) for value in VALUES),
    (span, {"first": 1}, {"args_schema": Period}),
    (span, {"first": "2", "every": 3}, {"args_schema": Period}),
    (span, {"first": -1}, {"args_schema": Period}),
    (span, {}, {}),
    (span, {"first": 1, "last": 2, "other": 3}, {}),
    (injected, ASKED, {}),
    (failing, ASKED, {}),
    (failing, ASKED, {"handle_tool_error": True}),
    (failing, ASKED, {"handle_tool_error": "it failed"}),
    (broken, ASKED, {}),
    (span, {"first": "x"}, {"handle_validation_error": True}),
    (nothing, {}, {}),
    (configured, ASKED, {}),
    (reported, ASKED, {}),
    (surrounded, ASKED, {}),
    (unresolved, ASKED, {"args_schema": SCHEMA}),
    (returning("by a schema"), {"question": "why"}, {"args_schema": SCHEMA}),
    (pair, ASKED, {"response_format": "content_and_artifact"}),
    (pair, ASKED, {}),
    (rest, {"numbers": [1], "options": {"a": 1}}, {}),
]
CASE_NAMES = [
    *(f"returns {type(value).__name__} {number}" for number, value in enumerate(VALUES)),
    *(f"{case[0].__name__} {sorted(case[2])} {number}" for number, case in enumerate(CASES[len(VALUES) :])),
]


def call_of(arguments: dict[str, Any]) -> ToolCall:
    """Return a call with these arguments."""
    return ToolCall(name="answer", args=arguments, id="call-1", type="tool_call")


def as_async(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as an async one, with the same signature."""

    @functools.wraps(function)
    async def answer(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return answer


def observed(outcome: Any) -> Any:
    """Return what can be compared of an answer or an error."""
    if isinstance(outcome, BaseException):
        return type(outcome), str(outcome)
    return type(outcome), outcome.model_dump() if isinstance(outcome, BaseModel) else outcome


async def outcome_of(answer: Callable[[], Any]) -> Any:
    """Return what a function returns or raises."""
    try:
        result = answer()
        return await result if hasattr(result, "__await__") else result
    except Exception as error:
        return error


@pytest.mark.parametrize(("function", "arguments", "options"), CASES, ids=CASE_NAMES)
async def test_the_answer_is_that_of_langchain(
    function: Callable[..., Any], arguments: dict[str, Any], options: dict[str, Any]
) -> None:
    """Values of all kinds, errors, defaults, other names, values that LangChain fills in."""
    own = StructuredTool.from_function(function, name="answer", **options)
    expected = await outcome_of(lambda: own.invoke(call_of(dict(arguments))))
    assert observed(await outcome_of(lambda: invoke(own, call_of(arguments)))) == observed(expected)

    own = StructuredTool.from_function(coroutine=as_async(function), name="answer", **options)
    expected = await outcome_of(lambda: own.ainvoke(call_of(dict(arguments))))
    assert observed(await outcome_of(lambda: invoke_async(own, call_of(arguments), None))) == observed(expected)


@pytest.fixture
def called_by_langchain(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the tools that LangChain was asked to call."""
    names: list[str] = []
    for name in ("invoke", "ainvoke"):
        original = getattr(StructuredTool, name)

        def call(self: BaseTool, *args: Any, original: Any = original, **options: Any) -> Any:
            names.append(self.name)
            return original(self, *args, **options)

        monkeypatch.setattr(StructuredTool, name, call)
    return names


async def test_a_plain_function_is_called_without_langchain(called_by_langchain: list[str]) -> None:
    """Otherwise the comparison above would compare LangChain with itself."""
    own = StructuredTool.from_function(returning("yes"), name="answer")
    assert invoke(own, call_of(ASKED)).content == "yes"
    own = StructuredTool.from_function(coroutine=as_async(returning("yes")), name="answer")
    assert (await invoke_async(own, call_of(ASKED), None)).content == "yes"
    assert called_by_langchain == []


class Listener(BaseCallbackHandler):
    """Writes down which tools began and ended."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_tool_start(self, serialized: dict[str, Any], input_str: str, **_: Any) -> None:
        """Write it down."""
        self.seen.append(f"start {serialized['name']}")

    def on_tool_end(self, output: Any, **_: Any) -> None:
        """Write it down."""
        self.seen.append("end")


@pytest.mark.parametrize("is_async", [False, True])
async def test_callbacks_of_a_tool_and_of_its_caller_hear_each_call(is_async: bool) -> None:
    """A tracer is one of them."""
    listener = Listener()
    options: dict[str, Any] = {"coroutine": as_async(returning("yes"))} if is_async else {"func": returning("yes")}
    own = StructuredTool.from_function(**options, name="answer", callbacks=[listener])

    async def call(tool_: BaseTool) -> Any:
        request = call_of(ASKED)
        return await invoke_async(tool_, request, None) if is_async else invoke(tool_, request)

    await call(own)
    assert listener.seen == ["start answer", "end"]

    silent = StructuredTool.from_function(**options, name="silent")
    around: RunnableLambda[str, Any] = RunnableLambda(lambda _: None, afunc=lambda _: call(silent))
    await around.ainvoke("", config={"callbacks": [listener]})
    assert listener.seen == ["start answer", "end", "start silent", "end"]


async def test_a_listener_of_the_program_hears_each_call(called_by_langchain: list[str]) -> None:
    """LangChain has listeners in context variables; its tracers are switched on in this way, too."""
    own = StructuredTool.from_function(returning("yes"), name="answer")
    with get_usage_metadata_callback():
        invoke(own, call_of(ASKED))
    invoke(own, call_of(ASKED))
    assert called_by_langchain == ["answer"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_tool_cannot_change_the_context_of_its_run(is_async: bool) -> None:
    """Context variables of a tool are those of the run at first; a value that the tool sets ends with the call."""
    seen: list[int] = []

    def count() -> str:
        """Count."""
        seen.append(_number.get())
        _number.set(5)
        return "counted"

    _number.set(1)
    for _ in range(2):
        if is_async:
            own = StructuredTool.from_function(coroutine=as_async(count))
            await invoke_async(own, call_of({}), None)
        else:
            invoke(StructuredTool.from_function(count), call_of({}))
    assert (seen, _number.get()) == ([1, 1], 1)


@pytest.mark.parametrize("listens", [False, True])
async def test_a_tool_begins_only_after_its_check(listens: bool) -> None:
    """The check is asked in the task of the tool; a tool that may not begin has not begun."""
    order: list[str] = []

    async def begin(question: str) -> str:
        """Begin."""
        order.append("begun")
        return question

    async def passing() -> None:
        order.append("checked")

    async def refusing() -> None:
        raise StoreFailed("write", "the store is lost")

    callbacks: list[AsyncCallbackHandler] = [AsyncCallbackHandler()] if listens else []
    own = StructuredTool.from_function(coroutine=begin, name="answer", callbacks=callbacks or None)
    assert (await invoke_async(own, call_of(ASKED), passing)).content == "why"
    assert order == ["checked", "begun"]
    with pytest.raises(NotStarted):
        await invoke_async(own, call_of(ASKED), refusing)
    assert order == ["checked", "begun"]


def test_the_arguments_of_a_call_are_not_changed() -> None:
    """Arguments are on record; LangChain writes the call's id into its own copy."""
    own = StructuredTool.from_function(injected, name="answer")
    arguments = {"question": "why"}
    assert invoke(own, call_of(arguments)).content == "why call-1"
    assert arguments == {"question": "why"}


def test_a_class_of_its_own_is_called_by_langchain() -> None:
    """Methods of such a class may do more than call the function."""

    class Loud(StructuredTool):
        def _run(self, *args: Any, config: RunnableConfig, **options: Any) -> Any:
            return super()._run(*args, config=config, **options).upper()

    own = Loud.from_function(returning("yes"), name="answer")
    assert invoke(own, call_of(ASKED)).content == "YES"
