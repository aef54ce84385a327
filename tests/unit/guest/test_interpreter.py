"""The interpreter of a code agent: its output, its names, and code that misbehaves."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ramet.guest import interpreter as module
from ramet.guest.captured_output import KEEP
from ramet.guest.interpreter import Concluded, Interpreter
from tests.support.waiting import eventually

#: What a test may need that is not meant to reach any limit.
AMPLE_S = 60.0


@pytest.fixture
async def interpreter() -> AsyncIterator[Interpreter]:
    """An open interpreter, whose threads have ended after the test."""
    interpreter = Interpreter()
    await interpreter.open()
    worker = interpreter._worker
    yield interpreter
    interpreter.close()
    assert worker is not None
    await eventually(lambda: not worker.thread.is_alive())


async def run(interpreter: Interpreter, code: str, timeout_s: float = AMPLE_S) -> str:
    """Return the result of code that succeeds."""
    ran = await interpreter.run(code, timeout_s=timeout_s)
    assert ran.ok, ran.text
    return ran.text


async def fail(interpreter: Interpreter, code: str, timeout_s: float = AMPLE_S) -> str:
    """Return the result of code that fails."""
    ran = await interpreter.run(code, timeout_s=timeout_s)
    assert not ran.ok, ran.text
    return ran.text


async def fail_after_its_time(interpreter: Interpreter, code: str, timeout_s: float) -> str:
    """Return the result of code that does not end; its time passes from its `has_begun.set()` on."""
    interpreter._module.__dict__["has_begun"] = has_begun = threading.Event()
    with interpreter.waiting():
        running = asyncio.create_task(fail(interpreter, code, timeout_s))
        await eventually(has_begun.is_set)
    return await running


async def test_output_and_the_last_value_come_back(interpreter: Interpreter) -> None:
    """Both streams come in the order written, then the value's `repr`; None is not shown."""
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n{'a': 1}"

    assert await run(interpreter, code) == "out\nerr\n{'a': 1}"
    assert await run(interpreter, "None") == "(no output)"
    assert await run(interpreter, "") == "(no output)"
    assert await run(interpreter, "print('a', end='')") == "a"


async def test_names_stay_between_calls(interpreter: Interpreter) -> None:
    """Calls share one namespace and one thread."""
    await run(interpreter, "import threading\nx = 41\ndef f(): return x + 1\nthread = threading.get_ident()")

    assert await run(interpreter, "f(), __name__, thread == threading.get_ident()") == "(42, '__main__', True)"


async def test_code_runs_beside_the_event_loop(interpreter: Interpreter) -> None:
    """The code has a thread of its own, and the loop continues."""
    interpreter._module.__dict__.update(event=(event := threading.Event()), ran=(ran := threading.Event()))
    working = asyncio.create_task(interpreter.run("ran.set()\nevent.wait()", timeout_s=AMPLE_S))

    await eventually(ran.is_set)
    event.set()

    assert (await working).text == "True"
    assert await run(interpreter, "import threading; threading.get_ident()") != str(threading.get_ident())


async def test_await_works_at_the_top_level(interpreter: Interpreter) -> None:
    """Statements and the last expression may await in one loop, and a task may outlive its call."""
    assert await run(interpreter, "import asyncio\nawait asyncio.sleep(0)\nawait asyncio.sleep(0, 'x')") == "'x'"
    await run(
        interpreter, "async def work():\n    return 7\nawait asyncio.sleep(0)\ntask = asyncio.create_task(work())"
    )

    assert await run(interpreter, "await task") == "7"
    assert await run(interpreter, "asyncio.run(work())") == "7"


async def test_an_exception_shows_only_frames_of_the_code(interpreter: Interpreter) -> None:
    """Frames of earlier calls are shown with their lines; frames of libraries and of ramet are not."""
    await run(interpreter, "import json\ndef read(text):\n    return json.loads(text)")

    text = await fail(interpreter, "print('before')\nread('{')")

    assert text.startswith("before\nTraceback (most recent call last):\n")
    assert "File \"<python 2>\", line 2, in <module>\n    read('{')" in text
    assert 'File "<python 1>", line 3, in read\n    return json.loads(text)' in text
    assert "JSONDecodeError: Expecting property name" in text
    assert text.count("File ") == 2


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = (", "SyntaxError"),
        ("import sys\nsys.exit(3)", "SystemExit: 3\n[it ended this call, not the agent]"),
        ("exit()", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("a = []\na = [a]\nfor _ in range(100_000): a = [a]\nrepr(a)", "RecursionError"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E"),
        ("class V:\n    def __repr__(self): raise ValueError('no')\nV()", "ValueError: no"),
        ("async def f(): raise OSError('x')\nawait f()", "OSError: x"),
        ("raise StopIteration", "StopIteration"),
        ("import asyncio\nraise asyncio.CancelledError", "CancelledError"),
        ("raise ExceptionGroup('g', [ValueError('one'), KeyError('two')])", "ValueError: one"),
        ("1 / 0 if not await __import__('asyncio').sleep(0) else 0", "ZeroDivisionError"),
        ("'\\ud800'.encode()", "UnicodeEncodeError"),
        ("input()", "Error"),
        ("x" * 100 + " = " * 40_000, "SyntaxError"),
        ("nul\0", "null bytes"),
        ("raise BaseException('all')", "BaseException: all"),
    ],
)
async def test_any_error_is_reported_and_the_next_call_works(interpreter: Interpreter, code: str, says: str) -> None:
    """The result is an error, and the names stay."""
    await run(interpreter, "kept = 1")

    assert says in await fail(interpreter, code)

    assert await run(interpreter, "kept") == "1"


async def test_output_is_bounded(interpreter: Interpreter) -> None:
    """The beginning and the end stay; a value and an error are bounded too."""
    text = await run(interpreter, "for i in range(200_000): print('line', i)")

    assert text.startswith("line 0\n")
    assert text.endswith("line 199999")
    assert "bytes left out here" in text
    assert len(text) < 2 * KEEP + 200
    assert len(await run(interpreter, "'x' * 10_000_000")) < module.MAX_SHOWN + 200
    assert len(await fail(interpreter, "raise ValueError('x' * 10_000_000)")) < module.MAX_SHOWN + 200


async def test_text_that_is_not_unicode_is_escaped(interpreter: Interpreter) -> None:
    """Lone surrogates and NUL are shown by their codes."""
    assert await run(interpreter, "print('a\\ud800b\\0c')") == "a\\ud800b␀c"


# An interrupt that meets a destructor is lost there, with a warning, and the next one comes.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import asyncio\nawait asyncio.sleep(1000)",
        "while True:\n    try:\n        while True: pass\n    except Exception: pass",
        "n = 0\nwhile True:\n    try:\n        while True: pass\n    except KeyboardInterrupt:\n        n += 1\n"
        "        if n > 3: break",
        "import asyncio\nasync def spin():\n    while True: await asyncio.sleep(0)\nawait spin()",
    ],
)
async def test_endless_code_is_stopped_after_its_time(interpreter: Interpreter, code: str) -> None:
    """The printed output comes back, the names stay, and the next call works."""
    text = await fail_after_its_time(interpreter, f"kept = 1\nprint('began')\nhas_begun.set()\n{code}", 0.2)

    assert text == "began\n[stopped after 0.2 s; the names it had set until then are kept]"
    assert await run(interpreter, "kept") == "1"
    assert await run(interpreter, "import asyncio\nawait asyncio.sleep(0, 2)") == "2"


async def test_code_that_cannot_be_stopped_is_abandoned_and_reported(
    interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call has a new namespace and says so once; late output is dropped."""
    monkeypatch.setattr(module, "STOP_S", 0.2)
    old = interpreter._worker
    assert old is not None
    interpreter._module.__dict__["event"] = event = threading.Event()

    text = await fail_after_its_time(interpreter, "kept = 1\nhas_begun.set()\nevent.wait()\nprint('late')", 0.1)

    assert "it cannot be stopped" in text
    assert "a new namespace" in text
    assert (await run(interpreter, "'kept' in globals()")).splitlines() == [
        "[this is a new namespace: earlier code could not be stopped, and its names are lost]",
        "False",
    ]
    assert await run(interpreter, "1") == "1"
    event.set()
    await eventually(lambda: not old.thread.is_alive())
    new = interpreter._worker
    interpreter.close()
    assert new is not None
    await eventually(lambda: not new.thread.is_alive())


async def test_time_spent_waiting_for_agents_does_not_count(interpreter: Interpreter) -> None:
    """The code's own work counts."""
    interpreter._module.__dict__.update(waiting=interpreter.waiting, event=(event := threading.Event()))
    asyncio.get_running_loop().call_later(2.5, event.set)

    assert await run(interpreter, "with waiting(): event.wait()\n'done'", timeout_s=2) == "'done'"


async def test_threads_left_by_code_continue_and_are_reported(interpreter: Interpreter) -> None:
    """The result gives their number."""
    interpreter._module.__dict__["event"] = event = threading.Event()
    code = "import threading\nt = threading.Thread(target=event.wait, daemon=True)\nt.start()\n'on'"

    assert await run(interpreter, code) == "'on'\n[threads that this code started and that still run: 1]"
    assert await run(interpreter, "t.is_alive()") == "True"
    event.set()
    assert await run(interpreter, "t.join()") == "(no output)"


async def test_a_cancelled_call_interrupts_its_code(interpreter: Interpreter) -> None:
    """The waiting caller is released at once, and the thread can run the next call."""
    interpreter._module.__dict__["ran"] = ran = threading.Event()
    working = asyncio.create_task(interpreter.run("ran.set()\nwhile True: pass", timeout_s=AMPLE_S))
    await eventually(ran.is_set)

    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    assert await run(interpreter, "1") == "1"


async def test_an_error_of_the_first_names_is_raised() -> None:
    """No thread and no replaced stream is left."""

    def prepare() -> dict[str, Any]:
        raise LookupError("not there")

    interpreter, before = Interpreter(prepare), (sys.stdout, sys.modules["__main__"])
    with pytest.raises(LookupError, match="not there"):
        await interpreter.open()
    interpreter.close()

    assert (sys.stdout, sys.modules["__main__"]) == before
    await eventually(lambda: not any(each.name == "ramet-python" for each in threading.enumerate()))


async def test_a_conclusion_ends_the_code_without_being_an_error(interpreter: Interpreter) -> None:
    """The conclusion passes through functions, coroutines and `except Exception`; code that catches it continues."""

    def conclude() -> None:
        raise Concluded("[over]")

    interpreter._module.__dict__["conclude"] = conclude

    assert await run(interpreter, "print('a')\nconclude()\nprint('never')") == "a\n[over]"
    assert await run(interpreter, "async def f(): conclude()\nawait f()\nprint('never')") == "[over]"
    assert await run(interpreter, "try:\n    conclude()\nexcept Exception:\n    print('never')") == "[over]"
    assert await run(interpreter, "try:\n    conclude()\nexcept BaseException:\n    pass\n'on'") == "'on'"
