"""Tests of `concurrency/threads.py`: synchronous work outside of the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from ramet.concurrency import threads
from ramet.concurrency.threads import executor_work, in_thread
from tests.support.waiting import eventually

caller_name = contextvars.ContextVar("who", default="nobody")


async def test_the_loop_runs_while_a_thread_works() -> None:
    """The result of the thread arrives in the loop."""
    go_on = threading.Event()
    working = in_thread(lambda: go_on.wait(10), name="test")

    asyncio.get_running_loop().call_soon(go_on.set)

    assert await working is True


async def test_the_thread_is_named_and_a_daemon() -> None:
    """A stuck tool has a name in a dump, and does not delay an exit."""
    name, daemon = await in_thread(
        lambda: (threading.current_thread().name, threading.current_thread().daemon), name="ramet-grep"
    )

    assert (name, daemon) == ("ramet-grep", True)


async def test_the_work_sees_its_callers_context_and_changes_only_its_own() -> None:
    """A tool in a thread sees the context variables of its call."""
    caller_name.set("caller")

    def work() -> str:
        name = caller_name.get()
        caller_name.set("work")
        return name

    result = await in_thread(work, name="test")

    assert (result, caller_name.get()) == ("caller", "caller")


async def test_an_error_is_raised_where_the_work_is_awaited() -> None:
    """`await` raises the error object of the work."""
    error = ValueError("mine")

    def work() -> None:
        raise error

    with pytest.raises(ValueError, match="mine") as refusal:
        await in_thread(work, name="test")

    assert refusal.value is error


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration(1), GeneratorExit()], ids=repr
)
async def test_a_base_exception_of_the_work_becomes_a_runtime_error(
    error: BaseException,
) -> None:
    """A tool that calls `sys.exit()` fails; the event loop and its other runs continue."""

    def work() -> None:
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__):
        await in_thread(work, name="test")


async def test_cancelling_stops_the_wait_and_not_the_thread() -> None:
    """The thread runs to its end, and its late result is dropped."""
    go_on, has_ended = threading.Event(), threading.Event()

    def work() -> str:
        go_on.wait(10)
        has_ended.set()
        return "late"

    working = in_thread(work, name="test")
    working.cancel()
    go_on.set()

    assert await in_thread(lambda: has_ended.wait(10), name="test")
    assert working.cancelled()


async def test_work_starts_after_refused_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`in_thread` tries again while the machine refuses new threads."""
    start, refused_count = threading.Thread.start, 0

    def refuse_twice(thread: threading.Thread) -> None:
        nonlocal refused_count
        if refused_count < 2:
            refused_count += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_twice)

    assert await in_thread(lambda: 7, name="test") == 7
    assert refused_count == 2


async def test_work_fails_when_no_thread_can_ever_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last try raises the error of the interpreter."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(threads, "_RETRIES", 2)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        await in_thread(lambda: 7, name="test")


async def test_work_in_an_executor_is_found_by_its_context_variables() -> None:
    """Work is found also after its waiter was cancelled; ended work, and work with other variables, is not."""
    has_entered, go_on = threading.Event(), threading.Event()

    def work() -> str:
        has_entered.set()
        go_on.wait()
        return "late"

    caller_name.set("somebody")
    waiting = asyncio.create_task(asyncio.to_thread(work))
    await asyncio.to_thread(has_entered.wait)
    waiting.cancel()
    await asyncio.wait([waiting])

    assert list(executor_work(lambda variables: variables.get(caller_name) == "another")) == []
    # The thread that waited for the beginning has the same variables, and lets go of them a moment after its end.
    await eventually(lambda: len(list(executor_work(lambda variables: variables.get(caller_name) == "somebody"))) == 1)
    (future,) = executor_work(lambda variables: variables.get(caller_name) == "somebody")
    go_on.set()
    assert await asyncio.wrap_future(future) == "late"
    await eventually(lambda: not list(executor_work(lambda variables: variables.get(caller_name) == "somebody")))
