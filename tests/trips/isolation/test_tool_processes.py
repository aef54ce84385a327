"""Synchronous tools in processes of their own: what a thread could not be stopped in the middle of, a process can."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import pathlib
import signal
import threading
import time
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
from tests.trips.kits.sessions import fresh, kept, of_kind
from tests.trips.recovery.test_resume import lost

MARK = "ramet-stuck-1"
PR_SET_NAME = 15


def begin(name: str = "begun") -> None:
    """Said by a tool: it is at work. Its process, and what it forks, is found by its name."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, MARK.encode(), 0, 0, 0)
    (pathlib.Path.home() / name).touch()


def marked() -> list[str]:
    """The processes of this machine that a stuck tool left."""
    found = []
    for each in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (each / "comm").read_text().strip() == MARK and alive(int(each.name)):
                found.append(each.name)
    return found


def home(session: Session) -> pathlib.Path:
    """Where the root's tools write."""
    return session.runtime.sandboxes.tool_folder(session.id, session.id) / "work"


def results(session: Session) -> list[ToolMessage]:
    return [message for message in session.messages if isinstance(message, ToolMessage)]


def in_processes(tools: Sequence[BaseTool], *said: Any, **more: Any) -> Session:
    return Session(ScriptedModel([*said, "done"]), tools, sync_tools="process", **more)


# --- what cannot be stopped


def in_c() -> str:
    """Stands still in a call of C."""
    begin()
    time.sleep(10_000)
    return "never"


def spinning() -> str:
    """Never lets go of its processor."""
    begin()
    while True:
        pass


def deaf() -> str:
    """Passes over SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    begin()
    while True:
        time.sleep(1)


def forking() -> str:
    """Has a child that left its session, and passes over SIGTERM as well."""
    begin("parent")
    if not os.fork():
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        begin()
    time.sleep(10_000)
    return "never"


STUCK = [in_c, spinning, deaf, forking]


@pytest.mark.parametrize("stuck", STUCK)
async def test_a_cancel_ends_a_tool_whatever_it_is_at(stuck: Callable[[], str]) -> None:
    """When `cancel` returns, no process of it is left, and the receipt has nothing to confess."""
    async with in_processes([StructuredTool.from_function(stuck)], Call(stuck.__name__)) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually((home(session) / "begun").exists)
        assert marked(), "it is at work, and can be seen"

        receipt = await session.cancel("enough")

        assert (receipt.left, marked()) == ((), [])
        assert (await turn).status is Status.CANCELLED


async def test_an_interrupt_ends_the_call_and_the_agent_goes_on() -> None:
    """The next turn has its tools, in processes that are new."""
    tools = [StructuredTool.from_function(in_c), StructuredTool.from_function(plus)]
    async with in_processes(tools, Call("in_c"), Call("plus", {"a": 1, "b": 2})) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually((home(session) / "begun").exists)
        await session.interrupt()
        await turn

        assert marked() == []
        assert (await session.ask("Again.")).status is Status.COMPLETED
        assert results(session)[-1].content == "3"


async def test_a_call_that_takes_too_long_is_ended_and_its_neighbour_is_not() -> None:
    """An error result for that call; nothing of its process is left when the turn goes on."""
    slow = StructuredTool.from_function(in_c, metadata={"timeout_s": 3, "concurrency_safe": True})
    quick = StructuredTool.from_function(plus, metadata={"concurrency_safe": True})
    async with in_processes([slow, quick], [Call("in_c"), Call("plus", {"a": 1, "b": 2})]) as session:
        result = await session.ask("Go.")

        assert (result.status, marked()) == (Status.COMPLETED, [])
        late, other = results(session)
        assert (late.status, late.content) == ("error", "in_c did not finish within 3 s and was stopped.")
        assert (other.status, other.content) == ("success", "3")


# --- calls


def plus(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_calls_that_may_run_together_do() -> None:
    """Two calls wait for one another: each has a process, and both see the folder of their agent."""

    def meet(me: str, other: str) -> str:
        """Wait for another call."""
        (pathlib.Path.home() / me).touch()
        while not (pathlib.Path.home() / other).exists():
            time.sleep(0.005)
        return f"{me} met {other}"

    both = StructuredTool.from_function(meet, metadata={"concurrency_safe": True})
    calls = [Call("meet", {"me": "a", "other": "b"}), Call("meet", {"me": "b", "other": "a"})]
    async with in_processes([both], calls) as session:
        await session.ask("Go.")

        assert [each.content for each in results(session)] == ["a met b", "b met a"]


@pytest.mark.parametrize(("how", "said"), [("leave", "exit status 3"), ("crash", "signal SIGSEGV")])
async def test_a_process_that_dies_is_an_error_of_its_call_alone(how: str, said: str) -> None:
    """What the model is told says how it ended; the next call has a new process."""

    def die(how: str) -> str:
        """End without a word."""
        if how == "leave":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(10_000)
        return "never"

    tools = [StructuredTool.from_function(die), StructuredTool.from_function(plus)]
    async with in_processes(tools, Call("die", {"how": how}), Call("plus", {"a": 1, "b": 2})) as session:
        result = await session.ask("Go.")

        dead, other = results(session)
        assert (dead.status, dead.content) == ("error", f"Crashed: it ended without a result: {said}")
        assert (result.status, other.content) == (Status.COMPLETED, "3")


async def test_a_child_has_its_tools_in_processes_too() -> None:
    """The setting is the whole tree's."""
    script: dict[str, Any] = {"add": [Call("plus", {"a": 1, "b": 2}), "three"], "": [fresh("add", "kid"), "done"]}
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


async def say(call: Call, given: BaseTool, **more: Any) -> ToolMessage:
    """What one call came to."""
    async with in_processes([given], call, **more) as session:
        await session.ask("Go.")
        return results(session)[0]


async def test_a_tool_that_is_a_class_travels_with_what_it_holds() -> None:
    """Its fields are data."""
    assert (await say(Call("shout", {"text": "hey"}), Shout(mark="?"))).content == "HEY?"


async def test_errors_are_results_with_their_type_and_text() -> None:
    """As they are from a thread."""

    def fail() -> str:
        """Fail."""
        raise LookupError("no such thing")

    answer = await say(Call("fail"), StructuredTool.from_function(fail))
    assert (answer.status, answer.content) == ("error", "LookupError: no such thing")


async def test_a_tool_says_itself_what_becomes_of_its_refusals() -> None:
    """A ToolException is still one here: LangChain's own settings for it hold."""

    def refuse() -> str:
        """Refuse."""
        raise ToolException("not today")

    plain = StructuredTool.from_function(refuse)
    handled = StructuredTool.from_function(refuse, handle_tool_error=lambda error: f"<{error}>")
    assert (await say(Call("refuse"), plain)).content == "not today"
    assert (await say(Call("refuse"), handled)).content == "<not today>"


async def test_artifacts_come_back_as_data() -> None:
    """Bytes stay bytes; the content is what the model sees."""

    def draw() -> tuple[str, bytes]:
        """Draw."""
        return "a picture", b"\x89PNG\0"

    answer = await say(Call("draw"), StructuredTool.from_function(draw, response_format="content_and_artifact"))
    assert (answer.content, answer.artifact) == ("a picture", b"\x89PNG\0")


async def test_what_has_no_json_is_shown_as_text() -> None:
    """The model reads what it would read from a thread."""

    def odd() -> object:
        """Return a set."""
        return {1}

    assert (await say(Call("odd"), StructuredTool.from_function(odd))).content == "{1}"


async def test_a_message_of_its_own_is_the_answer() -> None:
    """A tool may answer with a ToolMessage, for its own call."""

    def answer() -> ToolMessage:
        """Answer."""
        return ToolMessage("mine", tool_call_id="another's", status="error")

    said = await say(Call("answer", id="c1"), StructuredTool.from_function(answer))
    assert (said.content, said.status, said.tool_call_id) == ("mine", "error", "c1")


async def test_a_call_knows_its_step_and_not_its_context() -> None:
    """The key of an effect is there, and so is what LangChain injects; the run itself stays with the host."""

    @tool
    def who(call: Annotated[str, InjectedToolCallId]) -> str:
        """Say who is calling."""
        try:
            told = str(require_current_call().context.run)
        except Exception as error:
            told = str(error)
        return " ".join((call, require_current_call().call_id, require_current_call().step_id, told))

    async with in_processes([who], Call("who", id="c1")) as session:
        await session.ask("Go.")
        [started] = of_kind(kept(session), ToolStarted)
        said = str(results(session)[0].content)
        assert said.startswith(
            f"c1 c1 {started.step_id} 'run' of a run's context is not available in a tool's own process"
        )


async def test_a_tool_reads_the_folder_and_writes_its_own(tmp_path: pathlib.Path) -> None:
    """It starts in the session's folder, which stays as it is; what it writes at home is there for the next call."""
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
        async with in_processes([StructuredTool.from_function(look)], *calls, cwd=tmp_path, runtime=runtime) as session:
            await session.ask("Go.")
            folder = home(session)

            assert [each.content for each in results(session)] == ["as it was x", "as it was xy"]
        await eventually(lambda: not folder.exists())


async def test_the_policy_says_which_endpoints_a_tool_reaches() -> None:
    """Through the host's proxy, which puts on the run's record what was asked for."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    def knock(port: int) -> str:
        """Ask for a tunnel."""
        import socket

        with socket.create_connection(("127.0.0.1", 3128)) as tunnel:
            tunnel.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            said = b""
            while more := tunnel.recv(1000):
                said += more
        return said.decode()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        policy = Policy(allowed_endpoints=(f"127.0.0.1:{port}",))
        calls = [Call("knock", {"port": each}) for each in (port, 1)]
        async with in_processes([StructuredTool.from_function(knock)], *calls, policy=policy) as session:
            await session.ask("Go.")

            reached, refused = (str(each.content) for each in results(session))
            assert reached.endswith("hello")
            assert "403" in refused
            asked = of_kind(kept(session), EndpointAsked)
            assert [(each.port, each.allowed) for each in asked] == [(port, True), (1, False)]


async def test_a_tool_that_uses_too_much_memory_is_an_error_of_its_call() -> None:
    """What the policy gives is what it has, for the model to read."""

    def swell() -> int:
        """Take a lot of memory."""
        return len(bytearray(400 * 1024 * 1024))

    answer = await say(Call("swell"), StructuredTool.from_function(swell))
    assert (answer.status, str(answer.content).split(":")[0]) == ("error", "OutOfMemory")


async def test_a_tool_may_ask_the_host_for_nothing() -> None:
    """Its channel is for its result; an agent it would start below is refused."""

    def spawn() -> str:
        """Start an agent."""
        from ramet.sub_agent_client import spawn_sub_agent

        return str(spawn_sub_agent(plus, Policy(), args=(1, 2)))

    answer = await say(Call("spawn"), StructuredTool.from_function(spawn))
    assert answer.status == "error"
    assert "may send no request to its host" in str(answer.content)


# --- what is refused


def test_a_tool_that_cannot_travel_is_refused_when_the_session_opens() -> None:
    """The refusal names the tool, what holds it here, and the ways out; nothing was started."""
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

    for given, name, word in (
        (StructuredTool.from_function(locked), "locked", "variable 'lock' of"),
        (StructuredTool.from_function(configured), "configured", "'config'"),
        (Bound(), "shout", "a lock"),
    ):
        with pytest.raises(NotShippable) as refused:
            Session(ScriptedModel(["never"]), [given], sync_tools="process")
        assert refused.value.what == f"tool '{name}'"
        assert word in str(refused.value)
        assert "sync_tools='thread'" in refused.value.remedy
        Session(ScriptedModel(["never"]), [given])  # In threads it is a tool like any other.


def test_the_tools_of_definitions_are_looked_at_as_well() -> None:
    """A type that could never be born is refused before anybody asks for it."""
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
def test_settings_that_cannot_be_are_refused(more: dict[str, Any]) -> None:
    """Another word, and a level that a process of the kind local does not have."""
    with pytest.raises(InvalidValue) as refused:
        Session(ScriptedModel(["never"]), **more)
    assert refused.value.field == "sync_tools"


async def test_asynchronous_tools_stay_where_they_are() -> None:
    """They can be cancelled in the loop: they need no process, and may hold what they like."""
    lock = threading.Lock()

    @tool
    async def here() -> bool:
        """Look at a lock."""
        return lock.locked()

    async with in_processes([here], Call("here")) as session:
        await session.ask("Go.")

        assert results(session)[0].content == "false"
        assert session.runtime.sandboxes._local is None, "nothing was started for it"
        assert isinstance(session.messages[-1], AIMessage)


# --- after a restart


async def test_the_setting_outlives_its_process(tmp_path: pathlib.Path) -> None:
    """Who goes on has tools in processes, too, and is refused one that cannot travel."""
    lock = threading.Lock()
    tools = [StructuredTool.from_function(in_c)]
    async with lost(SqliteStore(tmp_path / "j.db")) as runtime:
        session = await in_processes(tools, Call("in_c"), runtime=runtime, session_id="talk").start()
        turn = asyncio.create_task(session.ask("Go."))
        await eventually((home(session) / "begun").exists)
    await turn

    bad = StructuredTool.from_function(lambda: lock.locked(), name="in_c", description="Look.")
    async with AgentRuntime(store=SqliteStore(tmp_path / "j.db")) as runtime:
        with pytest.raises(NotShippable, match="tool 'in_c'"):
            await Session.resume("talk", ScriptedModel([]), [bad], runtime=runtime)

        model = ScriptedModel([Call("in_c"), "done"])
        session = await Session.resume("talk", model, tools, runtime=runtime)
        await eventually((home(session) / "begun").exists)
        receipt = await session.cancel()

        assert "cut off" in str(results(session)[0].content)
        assert (receipt.left, marked()) == ((), [])
