"""Synchronous tools in processes of their own: a process can be terminated in the middle of a call, unlike a thread."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import pathlib
import signal
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, ToolException, tool

from ramet import Agent, AgentRuntime, Isolation, Policy, ScriptedModel, Session, Status
from ramet.core.errors import InvalidValue, NotShippable
from ramet.core.events import EndpointAsked, ToolStarted
from ramet.models.scripted.model import Call
from ramet.store.sqlite.store import SqliteStore
from ramet.tools.context import require_current_call
from tests.support.waiting import alive, eventually
from tests.trips.kits.sessions import of_kind, session_events, specialist_call
from tests.trips.recovery.test_resume import lost_runtime

PR_SET_NAME = 15


def mark_of(folder: pathlib.Path) -> str:
    """Return the name of the processes that work in a folder, which no other session on this machine has."""
    return f"stuck-{zlib.crc32(bytes(folder)):08x}"


def begin(name: str = "begun") -> None:
    """Mark the tool as active: its process and its forks are found by this name."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, mark_of(pathlib.Path.home()).encode(), 0, 0, 0)
    (pathlib.Path.home() / name).touch()


def marked_processes(session: Session) -> list[str]:
    """Return the processes that a stuck tool of the session's root left."""
    names, mark = [], mark_of(workspace_of(session))
    for each in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (each / "comm").read_text().strip() == mark and alive(int(each.name)):
                names.append(each.name)
    return names


def workspace_of(session: Session) -> pathlib.Path:
    """Return the folder that the root's tools write in."""
    return session.runtime.sandboxes.tool_folder(session.id, session.id) / "work"


def results(session: Session) -> list[ToolMessage]:
    return [message for message in session.messages if isinstance(message, ToolMessage)]


def session_with_tool_processes(tools: Sequence[BaseTool], *replies: Any, **more: Any) -> Session:
    return Session(ScriptedModel([*replies, "done"]), tools, sync_tools="process", **more)


# --- what cannot be stopped


def in_c() -> str:
    """Block in a call of C."""
    begin()
    time.sleep(10_000)
    return "never"


def spinning() -> str:
    """Never yield the processor."""
    begin()
    while True:
        pass


def deaf() -> str:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    begin()
    while True:
        time.sleep(1)


def forking() -> str:
    """Fork a child that leaves its session and ignores SIGTERM."""
    begin("parent")
    if not os.fork():
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        begin()
    time.sleep(10_000)
    return "never"


STUCK = [in_c, spinning, deaf, forking]


@pytest.mark.parametrize("stuck", STUCK)
async def test_cancel_ends_a_tool_process_in_any_state(stuck: Callable[[], str]) -> None:
    """No process of the tool remains when `cancel` returns, and the receipt names none."""
    async with session_with_tool_processes([StructuredTool.from_function(stuck)], Call(stuck.__name__)) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually((workspace_of(session) / "begun").exists)
        assert marked_processes(session), "it is at work, and can be seen"

        receipt = await session.cancel("enough")

        assert (receipt.left, marked_processes(session)) == ((), [])
        assert (await turn).status is Status.CANCELLED


async def test_an_interrupt_ends_the_call_and_the_agent_continues() -> None:
    """The next turn has its tools in new processes."""
    tools = [StructuredTool.from_function(in_c), StructuredTool.from_function(plus)]
    async with session_with_tool_processes(tools, Call("in_c"), Call("plus", {"a": 1, "b": 2})) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually((workspace_of(session) / "begun").exists)
        await session.interrupt()
        await turn

        assert marked_processes(session) == []
        assert (await session.ask("Again.")).status is Status.COMPLETED
        assert results(session)[-1].content == "3"


async def test_a_timeout_ends_its_call_and_not_a_parallel_one() -> None:
    """The call gets an error; none of its processes remains when the turn continues."""
    slow = StructuredTool.from_function(in_c, metadata={"timeout_s": 3, "concurrency_safe": True})
    quick = StructuredTool.from_function(plus, metadata={"concurrency_safe": True})
    async with session_with_tool_processes([slow, quick], [Call("in_c"), Call("plus", {"a": 1, "b": 2})]) as session:
        result = await session.ask("Go.")

        assert (result.status, marked_processes(session)) == (Status.COMPLETED, [])
        late, other = results(session)
        assert (late.status, late.content) == ("error", "in_c did not finish within 3 s and was stopped.")
        assert (other.status, other.content) == ("success", "3")


# --- calls


def plus(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_concurrency_safe_calls_run_in_parallel() -> None:
    """Two calls wait for one another: each has a process, and both see the folder of their agent."""

    def meet(me: str, other: str) -> str:
        """Wait for another call."""
        (pathlib.Path.home() / me).touch()
        while not (pathlib.Path.home() / other).exists():
            time.sleep(0.005)
        return f"{me} met {other}"

    meeting_tool = StructuredTool.from_function(meet, metadata={"concurrency_safe": True})
    calls = [Call("meet", {"me": "a", "other": "b"}), Call("meet", {"me": "b", "other": "a"})]
    async with session_with_tool_processes([meeting_tool], calls) as session:
        await session.ask("Go.")

        assert [each.content for each in results(session)] == ["a met b", "b met a"]


@pytest.mark.parametrize(("mode", "reason"), [("leave", "exit status 3"), ("crash", "signal SIGSEGV")])
async def test_a_process_that_dies_fails_only_its_call(mode: str, reason: str) -> None:
    """The error says how the process ended; the next call has a new process."""

    def die(method: str) -> str:
        """End without a word."""
        if method == "leave":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(10_000)
        return "never"

    tools = [StructuredTool.from_function(die), StructuredTool.from_function(plus)]
    async with session_with_tool_processes(
        tools, Call("die", {"method": mode}), Call("plus", {"a": 1, "b": 2})
    ) as session:
        result = await session.ask("Go.")

        dead, other = results(session)
        assert (dead.status, dead.content) == ("error", f"Crashed: it ended without a result: {reason}")
        assert (result.status, other.content) == (Status.COMPLETED, "3")


async def test_children_also_run_tools_in_processes() -> None:
    """The setting holds for the whole tree."""
    script: dict[str, Any] = {
        "add": [Call("plus", {"a": 1, "b": 2}), "three"],
        "": [specialist_call("add", "kid"), "done"],
    }
    async with Session(ScriptedModel(script), [StructuredTool.from_function(plus)], sync_tools="process") as session:
        await session.ask("Go.")
        kid = session.handle("main/kid").run

        assert kid.context.processes is session.context.processes is not None
        assert [str(m.content) for m in kid.context.history if isinstance(m, ToolMessage)] == ["3"]
        assert session.runtime.sandboxes.tool_folder(session.id, kid.info.id).exists()


# --- what a tool has, and gives back


class Shout(BaseTool):
    """A tool as a class."""

    name: str = "shout"
    description: str = "Say it loud."
    mark: str = "!"

    def _run(self, text: str) -> str:
        return text.upper() + self.mark


async def call_tool(call: Call, tool: BaseTool, **more: Any) -> ToolMessage:
    """Return the answer of one call."""
    async with session_with_tool_processes([tool], call, **more) as session:
        await session.ask("Go.")
        return results(session)[0]


async def test_a_tool_class_is_packed_with_its_fields() -> None:
    """The process has the field's value."""
    assert (await call_tool(Call("shout", {"text": "hey"}), Shout(mark="?"))).content == "HEY?"


async def test_an_error_of_a_tool_is_a_result_with_type_and_text() -> None:
    """A process gives the error that a thread gives."""

    def fail() -> str:
        """Fail."""
        raise LookupError("no such thing")

    answer = await call_tool(Call("fail"), StructuredTool.from_function(fail))
    assert (answer.status, answer.content) == ("error", "LookupError: no such thing")


async def test_a_tool_handles_its_own_tool_exceptions() -> None:
    """LangChain's `handle_tool_error` works for a ToolException of a process."""

    def refuse() -> str:
        """Refuse."""
        raise ToolException("not today")

    plain = StructuredTool.from_function(refuse)
    handled = StructuredTool.from_function(refuse, handle_tool_error=lambda error: f"<{error}>")
    assert (await call_tool(Call("refuse"), plain)).content == "not today"
    assert (await call_tool(Call("refuse"), handled)).content == "<not today>"


async def test_an_artifact_returns_as_data() -> None:
    """Bytes stay bytes, and the content is what the model reads."""

    def draw() -> tuple[str, bytes]:
        """Draw."""
        return "a picture", b"\x89PNG\0"

    answer = await call_tool(Call("draw"), StructuredTool.from_function(draw, response_format="content_and_artifact"))
    assert (answer.content, answer.artifact) == ("a picture", b"\x89PNG\0")


async def test_a_value_without_json_is_shown_as_text() -> None:
    """The model reads what it would read from a thread."""

    def odd() -> object:
        """Return a set."""
        return {1}

    assert (await call_tool(Call("odd"), StructuredTool.from_function(odd))).content == "{1}"


async def test_a_tool_may_answer_with_a_tool_message() -> None:
    """The answer gets the id of its own call."""

    def answer() -> ToolMessage:
        """Answer."""
        return ToolMessage("mine", tool_call_id="another's", status="error")

    result = await call_tool(Call("answer", id="c1"), StructuredTool.from_function(answer))
    assert (result.content, result.status, result.tool_call_id) == ("mine", "error", "c1")


async def test_a_tool_process_has_its_step_and_not_its_run() -> None:
    """The process has the idempotency key and LangChain's injected id; the run stays in the host."""

    @tool
    def caller(call: Annotated[str, InjectedToolCallId]) -> str:
        """Say who is calling."""
        try:
            text = str(require_current_call().context.run)
        except Exception as error:
            text = str(error)
        return " ".join((call, require_current_call().call_id, require_current_call().step_id, text))

    async with session_with_tool_processes([caller], Call("caller", id="c1")) as session:
        await session.ask("Go.")
        [tool_start] = of_kind(session_events(session), ToolStarted)
        text = str(results(session)[0].content)
        assert text.startswith(
            f"c1 c1 {tool_start.step_id} 'run' of a run's context is not available in a tool's own process"
        )


async def test_a_tool_process_reads_the_folder_and_writes_its_home(tmp_path: pathlib.Path) -> None:
    """The session's folder is read-only; files of the home folder stay for the next call, until the session closes."""
    (tmp_path / "note").write_text("as it was")

    def look(write: str) -> str:
        """Read and write."""
        try:
            pathlib.Path("note").write_text(write)
        except OSError:
            with (pathlib.Path.home() / "log").open("a") as log:
                log.write(write)
        return pathlib.Path("note").read_text() + " " + (pathlib.Path.home() / "log").read_text()

    calls = [Call("look", {"write": each}) for each in "xy"]
    async with AgentRuntime() as runtime:
        async with session_with_tool_processes(
            [StructuredTool.from_function(look)], *calls, cwd=tmp_path, runtime=runtime
        ) as session:
            await session.ask("Go.")
            folder = workspace_of(session)

            assert [each.content for each in results(session)] == ["as it was x", "as it was xy"]
        await eventually(lambda: not folder.exists())


async def test_the_policy_limits_the_endpoints_of_a_tool_process() -> None:
    """Requests go through the host's proxy, which records each of them."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    def knock(port: int) -> str:
        """Ask for a tunnel."""
        import socket

        with socket.create_connection(("127.0.0.1", 3128)) as tunnel:
            tunnel.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            output = b""
            while more := tunnel.recv(1000):
                output += more
        return output.decode()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        policy = Policy(allowed_endpoints=(f"127.0.0.1:{port}",))
        calls = [Call("knock", {"port": each}) for each in (port, 1)]
        async with session_with_tool_processes([StructuredTool.from_function(knock)], *calls, policy=policy) as session:
            await session.ask("Go.")

            reached_text, refusal = (str(each.content) for each in results(session))
            assert reached_text.endswith("hello")
            assert "403" in refusal
            requests = of_kind(session_events(session), EndpointAsked)
            assert [(each.port, each.allowed) for each in requests] == [(port, True), (1, False)]


async def test_a_tool_beyond_its_memory_fails_only_its_call() -> None:
    """The model reads an OutOfMemory error."""

    def swell() -> int:
        """Take a lot of memory."""
        return len(bytearray(400 * 1024 * 1024))

    answer = await call_tool(Call("swell"), StructuredTool.from_function(swell))
    assert (answer.status, str(answer.content).split(":")[0]) == ("error", "OutOfMemory")


async def test_a_tool_process_cannot_ask_its_host() -> None:
    """The host refuses to spawn an agent for a tool process."""

    def spawn() -> str:
        """Start an agent."""
        from ramet.sub_agent_client import spawn_sub_agent

        return str(spawn_sub_agent(plus, Policy(), args=(1, 2)))

    answer = await call_tool(Call("spawn"), StructuredTool.from_function(spawn))
    assert answer.status == "error"
    assert "may send no request to its host" in str(answer.content)


# --- what is refused


def test_a_session_refuses_a_tool_that_cannot_be_packed() -> None:
    """The error names the tool, the reason and the remedy, before a process starts."""
    lock = threading.Lock()

    def locked() -> str:
        """Hold a lock."""
        with lock:
            return "held"

    def configured(config: RunnableConfig) -> str:
        """Want the run's own objects."""
        return str(config)

    class Bound(Shout):
        held: Any = lock

    for rejected_tool, name, word in (
        (StructuredTool.from_function(locked), "locked", "variable 'lock' of"),
        (StructuredTool.from_function(configured), "configured", "'config'"),
        (Bound(), "shout", "a lock"),
    ):
        with pytest.raises(NotShippable) as refusal:
            Session(ScriptedModel(["never"]), [rejected_tool], sync_tools="process")
        assert refusal.value.what == f"tool '{name}'"
        assert word in str(refusal.value)
        assert "sync_tools='thread'" in refusal.value.remedy
        Session(ScriptedModel(["never"]), [rejected_tool])  # In threads it is a tool like any other.


def test_a_session_checks_the_tools_of_agent_types() -> None:
    """A type with a tool that cannot be packed is refused at once."""
    lock = threading.Lock()
    bad = StructuredTool.from_function(lambda: lock.locked(), name="bad", description="Look.")
    agent = Agent(name="kid", description="Has it.", tools=[bad])
    with pytest.raises(NotShippable, match="tool 'bad'"):
        Session(ScriptedModel(["never"]), agents=[agent], sync_tools="process")


@pytest.mark.parametrize(
    "more",
    [{"sync_tools": "fork"}, {"sync_tools": "process", "policy": Policy(isolation=Isolation.L2)}],
    ids=["word", "level"],
)
def test_invalid_sync_tools_settings_are_refused(more: dict[str, Any]) -> None:
    """An unknown value, and a level that local processes do not have, raise InvalidValue."""
    with pytest.raises(InvalidValue) as refusal:
        Session(ScriptedModel(["never"]), **more)
    assert refusal.value.field == "sync_tools"


async def test_asynchronous_tools_stay_in_the_host() -> None:
    """An asynchronous tool can be cancelled in the loop, needs no process, and may hold any object."""
    lock = threading.Lock()

    @tool
    async def here() -> bool:
        """Look at a lock."""
        return lock.locked()

    async with session_with_tool_processes([here], Call("here")) as session:
        await session.ask("Go.")

        assert results(session)[0].content == "false"
        assert session.runtime.sandboxes._local is None, "nothing was started for it"
        assert isinstance(session.messages[-1], AIMessage)


# --- after a restart


async def test_a_resumed_session_keeps_tools_in_processes(tmp_path: pathlib.Path) -> None:
    """The resumed session has tools in processes, and refuses one that cannot be packed."""
    lock = threading.Lock()
    tools = [StructuredTool.from_function(in_c)]
    async with lost_runtime(SqliteStore(tmp_path / "j.db")) as runtime:
        session = await session_with_tool_processes(tools, Call("in_c"), runtime=runtime, session_id="talk").start()
        turn = asyncio.create_task(session.ask("Go."))
        await eventually((workspace_of(session) / "begun").exists)
    await turn

    bad = StructuredTool.from_function(lambda: lock.locked(), name="in_c", description="Look.")
    async with AgentRuntime(store=SqliteStore(tmp_path / "j.db")) as runtime:
        with pytest.raises(NotShippable, match="tool 'in_c'"):
            await Session.resume("talk", ScriptedModel([]), [bad], runtime=runtime)

        model = ScriptedModel([Call("in_c"), "done"])
        session = await Session.resume("talk", model, tools, runtime=runtime)
        await eventually((workspace_of(session) / "begun").exists)
        receipt = await session.cancel()

        assert "cut off" in str(results(session)[0].content)
        assert (receipt.left, marked_processes(session)) == ((), [])
