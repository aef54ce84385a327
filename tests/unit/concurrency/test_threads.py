"""concurrency/threads.py: synchronous work beside the loop, whatever it does."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from ramet.concurrency import threads
from ramet.concurrency.threads import executor_work, in_thread
from tests.support.waiting import eventually

who = contextvars.ContextVar("who", default="nobody")


async def test_the_loop_goes_on_while_a_thread_works() -> None:
    """And what it returns arrives in the loop."""
    go_on = threading.Event()
    working = in_thread(lambda: go_on.wait(10), name="test")

    asyncio.get_running_loop().call_soon(go_on.set)

    assert await working is True


async def test_the_thread_is_named_and_never_keeps_the_process() -> None:
    """A stuck tool can be found in a dump, and does not hold up an exit."""
    name, daemon = await in_thread(
        lambda: (threading.current_thread().name, threading.current_thread().daemon), name="ramet-grep"
    )

    assert (name, daemon) == ("ramet-grep", True)


async def test_the_work_sees_its_callers_context_and_changes_only_its_own() -> None:
    """A tool in a thread knows whose call it is."""
    who.set("caller")

    def work() -> str:
        seen = who.get()
        who.set("work")
        return seen

    seen = await in_thread(work, name="test")

    assert (seen, who.get()) == ("caller", "caller")


async def test_an_error_is_raised_where_the_work_is_awaited() -> None:
    """The very same error."""
    error = ValueError("mine")

    def work() -> None:
        raise error

    with pytest.raises(ValueError, match="mine") as raised:
        await in_thread(work, name="test")

    assert raised.value is error


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration(1), GeneratorExit()], ids=repr
)
async def test_work_that_raises_what_is_no_error_neither_ends_the_host_nor_looks_cancelled(
    error: BaseException,
) -> None:
    """A tool that calls sys.exit() has failed, no more: the event loop and its other runs go on."""

    def work() -> None:
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__):
        await in_thread(work, name="test")


async def test_cancelling_only_stops_the_waiting() -> None:
    """The thread goes on to its end; what it returns late is nobody's, and disturbs nobody."""
    go_on, ended = threading.Event(), threading.Event()

    def work() -> str:
        go_on.wait(10)
        ended.set()
        return "late"

    working = in_thread(work, name="test")
    working.cancel()
    go_on.set()

    assert await in_thread(lambda: ended.wait(10), name="test")
    assert working.cancelled()


async def test_work_begins_once_there_is_room_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may have no room for a moment."""
    start, refused = threading.Thread.start, 0

    def refuse_twice(thread: threading.Thread) -> None:
        nonlocal refused
        if refused < 2:
            refused += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_twice)

    assert await in_thread(lambda: 7, name="test") == 7
    assert refused == 2


async def test_work_for_which_there_is_never_room_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the interpreter's own, after the last try."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(threads, "_RETRIES", 2)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        await in_thread(lambda: 7, name="test")


async def test_work_in_an_executor_is_found_by_its_context_variables() -> None:
    """Also once nobody waits for it any more; what has ended, or has other variables, is not found."""
    entered, go_on = threading.Event(), threading.Event()

    def work() -> str:
        entered.set()
        go_on.wait()
        return "late"

    who.set("somebody")
    waiting = asyncio.create_task(asyncio.to_thread(work))
    await asyncio.to_thread(entered.wait)
    waiting.cancel()
    await asyncio.wait([waiting])

    assert list(executor_work(lambda variables: variables.get(who) == "another")) == []
    # The thread that waited for the beginning has the same variables, and lets go of them a moment after its end.
    await eventually(lambda: len(list(executor_work(lambda variables: variables.get(who) == "somebody"))) == 1)
    (found,) = executor_work(lambda variables: variables.get(who) == "somebody")
    go_on.set()
    assert await asyncio.wrap_future(found) == "late"
    await eventually(lambda: not list(executor_work(lambda variables: variables.get(who) == "somebody")))
