"""Conversations in sandboxes between two turns: they hold no process, and nothing of them is lost."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from langchain_core.messages import BaseMessage

from ramet import Agent, AgentRuntime, Policy, ScriptedModel, Session, Status, workspace_tools
from ramet.core.errors import SandboxFailed
from ramet.core.events import MailPushed, TurnEnded
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.local import LocalBackend
from ramet.isolation.zygote.sandbox import ForkedSandbox
from ramet.models.scripted.dialogue import Call, Fail, ReplyStep
from ramet.store.memory import MemoryStore
from tests.support.cut_journals import cut_behind
from tests.support.waiting import alive, eventually
from tests.trips.kits.isolated import BackendName, backend
from tests.trips.kits.sessions import (
    is_tree_idle,
    is_valid,
    newest_human,
    run_of,
    session_events,
    specialist_call,
    typed_texts,
)

__all__ = ["backend"]


class WatchedBackend(LocalBackend):
    """A backend whose starts of sandboxes can be made to fail, or to wait."""

    def __init__(self, working_dir: pathlib.Path) -> None:
        super().__init__(working_dir / ".ramet" / "runs")
        self.is_failing = False
        self.is_starting, self.may_start = asyncio.Event(), asyncio.Event()
        self.may_start.set()

    async def start(self, spec: SandboxSpec) -> ForkedSandbox:
        self.is_starting.set()
        await self.may_start.wait()
        if self.is_failing:
            raise SandboxFailed("there is no room")
        return await super().start(spec)


def conversation(runtime: AgentRuntime, model: ScriptedModel, name: str = "talk") -> Session:
    """Return a session whose root works in a sandbox."""
    return Session(model, workspace_tools(), runtime=runtime, session_id=name, root_policy=Policy(), unattended=True)


def count_descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


async def test_an_idle_conversation_holds_no_process_and_no_descriptor(
    tmp_path: pathlib.Path, backend: BackendName
) -> None:
    """The process of a turn has ended, and its descriptors are closed, once the turn is over."""
    pids: list[int] = []

    def reply(messages: list[BaseMessage]) -> ReplyStep:
        sandbox = run_of(sessions[-1], "main").sandbox.current
        assert sandbox is not None, "the process of the turn works"
        pids.append(sandbox.pid)
        return "done" if messages[-1].type == "tool" else Call("Bash", {"command": "sleep 1000 & echo hi > note"})

    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        sessions = [conversation(runtime, ScriptedModel(reply), "first")]
        assert (await sessions[-1].ask("go")).value == "done"
        await eventually(lambda: not alive(pids[-1]))
        descriptors = count_descriptors()
        for number in range(4):
            sessions.append(conversation(runtime, ScriptedModel(reply), f"talk-{number}"))
            assert (await sessions[-1].ask("go")).value == "done"
            run = run_of(sessions[-1], "main")
            assert (run.state, run.sandbox.current) == ("idle", None)
        await eventually(lambda: not any(map(alive, pids)) and count_descriptors() <= descriptors)


async def test_a_conversation_in_a_sandbox_has_the_transcript_of_one_in_the_host(tmp_path: pathlib.Path) -> None:
    """Prompts, tools, mail and a failed turn leave the same messages, although each turn has a new process."""
    (tmp_path / "note").write_text("a note")
    transcripts: list[list[tuple[str, str]]] = []
    for name, policy in (("host", None), ("sandbox", Policy(readonly_mounts=(str(tmp_path),)))):
        model = ScriptedModel([
            Call("Read", {"file_path": str(tmp_path / "note")}), "It is a note.", "Heard.", Fail("no such model"),
            Call("Glob", {"pattern": "note"}), "There is one.",
        ])  # fmt: skip
        async with AgentRuntime(tmp_path / name, backend="local") as runtime:
            session = Session(
                model, workspace_tools(), runtime=runtime, cwd=tmp_path, session_id=name, root_policy=policy,
                unattended=True,
            )  # fmt: skip
            assert (await session.ask("Read it.")).value == "It is a note."
            session.send("by mail")
            await eventually(lambda: "Heard." in str(session.messages[-1:]) and is_tree_idle(session))  # noqa: B023
            assert (await session.ask("Fail.")).status is Status.FAILED
            assert (await session.ask("Find it.")).value == "There is one."
            assert is_valid(session.messages)
            transcripts.append(typed_texts(session.messages))

    assert transcripts[0] == transcripts[1]
    assert [text for kind, text in transcripts[0] if kind == "human"] == ["Read it.", "by mail", "Fail.", "Find it."]


async def test_messages_are_not_lost_if_the_next_process_cannot_be_started(tmp_path: pathlib.Path) -> None:
    """The prompt is in the conversation, mail waits, and the error is that of any start."""
    backend, model = WatchedBackend(tmp_path), ScriptedModel(["one", "two"])
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        session = conversation(runtime, model)
        assert (await session.ask("first")).value == "one"
        backend.is_failing = True
        failed = await session.ask("second")
        session.send("by mail")
        await eventually(lambda: is_tree_idle(session))
        assert [each.text for each in run_of(session, "main").context.mailbox.unread] == ["by mail"]
        backend.is_failing = False
        assert (await session.ask("third")).value == "two"

    assert (failed.status, failed.error and failed.error.type) == (Status.FAILED, "SandboxFailed")
    texts = [text for _, text in typed_texts(model.requests[-1].messages)]
    assert texts == ["first", "one", "second", "third", "by mail"]
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        resumed = await Session.resume("talk", ScriptedModel([]), runtime=runtime)
        assert typed_texts(resumed.messages) == typed_texts(session.messages), "they are recorded"


async def test_a_prompt_is_not_lost_if_it_is_interrupted_while_its_process_starts(tmp_path: pathlib.Path) -> None:
    """The next turn has it: a start takes seconds where the sandbox is a pod."""
    backend, model = WatchedBackend(tmp_path), ScriptedModel(["done"])
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        session = conversation(runtime, model)
        backend.may_start.clear()
        turn = asyncio.create_task(session.ask("first"))
        await backend.is_starting.wait()
        interruption = asyncio.create_task(session.interrupt())
        await eventually(lambda: run_of(session, "main").turn.stop_result is not None)
        backend.may_start.set()  # A start is not cut off: its sandbox is ended when it is there.
        await interruption
        assert (await turn).status is Status.CANCELLED
        assert (await session.ask("second")).value == "done"

    assert [text for _, text in typed_texts(model.requests[-1].messages)] == ["first", "second"]


async def test_a_child_whose_sandbox_could_not_be_started_knows_its_task_when_it_is_woken(
    tmp_path: pathlib.Path,
) -> None:
    """Mail to the failed child has it work on its brief."""
    backend = WatchedBackend(tmp_path)

    def reply(messages: list[BaseMessage]) -> ReplyStep:
        newest = messages[-1].text
        if newest == "go":
            backend.is_failing = True
            return specialist_call("count the stars", "kid")
        if messages[0].text == "count the stars":
            return " and ".join(each.text for each in messages)
        backend.is_failing = False
        if messages[-1].type == "tool" and "there is no room" in newest:
            return Call("SendMessage", {"to": "kid", "message": "try again"})
        return "done" if "count the stars and" in newest else "waiting"

    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        session = Session(
            ScriptedModel(reply), runtime=runtime, agents=[Agent(name="general-purpose")], policy=Policy()
        )
        await session.ask("go")
        await eventually(lambda: typed_texts(session.messages)[-1] == ("ai", "done"))


async def act_at(session: Session, place: int, act: Callable[[], Awaitable[object] | object]) -> bool:
    """Prompt the session, and act when it yields its item number `place`; return whether there was one."""
    has_acted, number = False, 0
    async with aclosing(session.submit_message("go")) as items:
        async for _ in items:
            if number == place:
                has_acted = True
                if isinstance(work := act(), Awaitable):
                    await work
            number += 1
    return has_acted


def call_once(messages: list[BaseMessage]) -> ReplyStep:
    """Reply with a call to the first message of a conversation, and else with a text."""
    return Call("Bash", {"command": "echo hi"}) if newest_human(messages) == "go" and len(messages) == 1 else "done"


async def test_mail_is_read_once_whenever_it_comes(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """Mail that comes at any event of a turn, the end of the process included, is read in that turn or in the next."""

    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        for place in range(100):
            session = conversation(runtime, ScriptedModel(call_once), f"talk-{place}")
            has_acted = await act_at(session, place, lambda: session.send("by mail"))  # noqa: B023
            if not has_acted:
                session.send("by mail")
            await eventually(lambda: "by mail" in str(session.messages) and is_tree_idle(session))  # noqa: B023
            humans = [text for kind, text in typed_texts(session.messages) if kind == "human"]
            assert (sorted(humans), is_valid(session.messages)) == (["by mail", "go"], True), place
            assert run_of(session, "main").sandbox.current is None
            if not has_acted:
                break
    assert place > 5


async def test_an_interrupt_at_any_event_leaves_an_idle_conversation(tmp_path: pathlib.Path) -> None:
    """No process is left, and the next turn knows the prompt of the interrupted one."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        for place in range(100):
            session = conversation(runtime, ScriptedModel(call_once), f"talk-{place}")
            has_acted = await act_at(session, place, session.interrupt)
            run = run_of(session, "main")
            assert (run.state, run.sandbox.current) == ("idle", None), place
            assert (await session.ask("again")).value == "done"
            humans = [text for kind, text in typed_texts(session.messages) if kind == "human"]
            assert (humans, is_valid(session.messages)) == (["go", "again"], True), place
            if not has_acted:
                break
    assert place > 5


async def test_a_conversation_goes_on_if_its_kernel_is_killed_between_two_turns(tmp_path: pathlib.Path) -> None:
    """At each event from the end of a turn to the first message of the next one, its transcript and its mail remain."""
    store = MemoryStore()
    async with AgentRuntime(tmp_path, store=store, backend="local") as runtime:
        session = conversation(runtime, ScriptedModel(call_once))
        await session.ask("go")
        session.send("by mail")
        await eventually(lambda: "by mail" in str(session.messages) and is_tree_idle(session))
        events, whole = session_events(session), typed_texts(session.messages)
    first_turn = next(number for number, event in enumerate(events, 1) if isinstance(event, TurnEnded))

    for number in range(first_turn, first_turn + 6):
        cut_store = await cut_behind(store, lambda _: True, number)
        async with AgentRuntime(tmp_path, store=cut_store, backend="local") as runtime:
            resumed = await Session.resume("talk", ScriptedModel(call_once), workspace_tools(), runtime=runtime)
            await eventually(lambda: is_tree_idle(resumed))  # noqa: B023
            assert (await resumed.ask("again")).value == "done"
            assert run_of(resumed, "main").sandbox.current is None
            texts = typed_texts(resumed.messages)
        is_sent = any(isinstance(event, MailPushed) for event in events[:number])
        humans = [text for kind, text in texts if kind == "human"]
        assert humans == ["go", *(["by mail"] if is_sent else []), "again"], number
        assert texts[: len(whole) - 2] == whole[:-2], number
