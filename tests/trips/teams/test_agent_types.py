"""What is each agent type's own; what all of them promise is in tests/conformance/test_agent_types.py."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import msgspec
import pytest
from langchain_core.messages import AIMessage
from langchain_core.messages.tool import tool_call

from ramet import AgentRuntime, Limits, Policy, ScriptedModel
from ramet.core.errors import Aborted, BusyError, InvalidValue, MailRefused, RametError, TaskFailed, Unknown
from ramet.models.scripted.dialogue import Call, Fail, Hang, Say, Script
from ramet.services.agent_types.bundle_operations import LoadBundle
from ramet.services.agent_types.function.agent import FunctionAgent
from ramet.services.agent_types.function.call import MAY_MISS
from ramet.services.agent_types.function.invoke import call_inside
from ramet.services.agent_types.function.turn_log import FunctionTurn, FunctionTurns
from ramet.services.agent_types.function.type import FunctionInfo, FunctionType
from ramet.services.agent_types.llm.agent import Compact, ListTools, SetModel
from ramet.services.agent_types.llm.type import LlmInfo, LlmType
from ramet.services.contract import PLAIN, AgentSpec, AgentType, Image, RunningAgent
from ramet.services.errors import TakenOver
from ramet.services.formats.registry import format_of
from ramet.services.packaging.service import PackagingService
from ramet.services.teams.loaded_bundles import AgentShelf
from ramet.store.sqlite.store import SqliteStore
from tests.support.tars import tar
from tests.support.waiting import eventually
from tests.trips.agents import served_functions

Backend = Literal["bwrap", "local"]
both = pytest.mark.parametrize("backend", ["bwrap", "local"])
FUNCTIONS = "tests.trips.agents.served_functions"


def asked(text: str) -> bytes:
    """A body of either format."""
    return json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode()


def text_of(chunks: list[bytes]) -> str:
    """What an answer in OpenAI's format says, as far as it came."""
    said = [json.loads(chunk)["choices"][0]["delta"].get("content") for chunk in chunks]
    return "".join(filter(None, said))


async def say(agent: RunningAgent, text: str) -> str:
    """One turn, whole; the answer's text."""
    chunks = [chunk async for chunk in agent.turn(asked(text), "openai")]
    whole = json.loads(format_of("openai").fold(chunks))
    assert whole["choices"][0]["finish_reason"] == "stop"
    return str(whole["choices"][0]["message"]["content"])


@asynccontextmanager
async def answering(agent: RunningAgent, text: str) -> AsyncIterator[AsyncIterator[bytes]]:
    """A turn that is read as far as the block reads it."""
    answer = agent.turn(asked(text), "openai")
    try:
        yield answer
    finally:
        await answer.aclose()  # type: ignore[attr-defined]  # the types that ship give generators


@asynccontextmanager
async def lost(folder: pathlib.Path, backend: Backend | None) -> AsyncIterator[AgentRuntime]:
    """A runtime whose process is killed at the end of the block: from then on nothing that it does is on record."""
    store = SqliteStore(folder / "journal.db")
    runtime = await AgentRuntime(folder, backend=backend, store=store, grace_s=0.1).start()
    yield runtime
    for tree in runtime.trees.values():
        await tree.recorder.durable()  # type: ignore[misc]  # it has a journal
    await store.close()
    await runtime.stop()


async def ended(answer: AsyncIterator[bytes]) -> None:
    """What a turn in a runtime that was lost still says, which nobody hears."""
    with suppress(RametError):
        async for _ in answer:
            pass


def restarted(folder: pathlib.Path, backend: Backend | None) -> AgentRuntime:
    """One in its place."""
    return AgentRuntime(folder, backend=backend, store=SqliteStore(folder / "journal.db"))


async def heard(agent: RunningAgent, text: str) -> AsyncIterator[str]:
    """A turn, text for text, until it raises."""
    async with answering(agent, text) as answer:
        async for chunk in answer:
            yield text_of([chunk])


async def failure_of(agent: RunningAgent, text: str) -> str:
    """How a turn failed; empty if it did not."""
    try:
        await say(agent, text)
    except TaskFailed as failure:
        return failure.status
    return ""


async def interrupted_at(agent: RunningAgent, word: str) -> str:
    """A turn that is interrupted as soon as it has said a word; what it said. Raises what it raises then."""
    said = ""
    async for piece in heard(agent, "Go"):
        said += piece
        if word in piece:
            await agent.interrupt()
    return said


def saying(text: str, tool: str, **args: Any) -> AIMessage:
    """A reply that says something and calls a tool."""
    return AIMessage(text, tool_calls=[tool_call(name=tool, args=args, id=f"call-{text}")])


def opening(runtime: AgentRuntime, folder: pathlib.Path, info: Any, **more: Any) -> AgentSpec:
    """As the service makes one."""
    folder.mkdir(exist_ok=True)
    return AgentSpec(id="a-1", name="ada", path="team/ada", info=info, runtime=runtime, folder=folder, **more)


@asynccontextmanager
async def opened(kind: AgentType, start: AgentSpec) -> AsyncIterator[RunningAgent]:
    """An agent, checked and opened; closed in the end."""
    await kind.check(start)
    agent = await kind.open(start)
    try:
        yield agent
    finally:
        await agent.close("the test is over")
        assert agent.ended.result() is None


def llm(script: Script) -> LlmType:
    """The type, with a model "scripted" that plays this."""
    return LlmType({"scripted": ScriptedModel(script)}, default="scripted")


def policy_for(backend: Backend | None, **fields: Any) -> Policy | None:
    """The policy of an agent that works in this kind of sandbox, or in the host."""
    return Policy(**fields) if backend is not None else None


def image_of(folder: pathlib.Path) -> Image:
    """An image of one bundle: a module, a package, and a skill."""
    (folder / "kit").mkdir(parents=True)
    (folder / "kit" / "__init__.py").write_text("")
    (folder / "kit" / "words.py").write_text(
        "def twice(text):\n    return text * 2\n\n\ndef broken(text):\n    return 1 / 0\n"
    )
    (folder / "helper.py").write_text("from kit.words import twice\n\ndef answer(text):\n    return twice(text)\n")
    (folder / "skills" / "counting").mkdir(parents=True)
    (folder / "skills" / "counting" / "SKILL.md").write_text("---\ndescription: How to count\n---\nOne, two, three.\n")
    return Image("sha-1", (folder,), skills=(folder / "skills",))


# ---- a model


@pytest.mark.parametrize("backend", [None, "bwrap"], ids=["host", "bwrap"])
async def test_the_second_turn_has_the_folder_of_the_first(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """And its tree: what was written is there in the next turn, what was used is counted."""
    script: Script = [
        Call("Bash", {"command": "echo first >> notes.txt"}),
        "Noted.",
        Call("Bash", {"command": "cat notes.txt; echo second >> notes.txt; wc -l < notes.txt"}),
        "Two.",
    ]
    start_with = LlmInfo(tools=["Bash"], system_prompt="You keep notes.")
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = opening(runtime, tmp_path / "ada", start_with, policy=policy_for(backend))
        async with opened(llm(script), start) as agent:
            assert await say(agent, "Note this.") == "Noted."
            run = agent.run
            assert await say(agent, "How many?") == "Two."
            assert (agent.run, agent.isolation == "none") == (run, backend is None)
            history, spent = await agent.history(), agent.spent()
    assert [each["role"] for each in history] == ["user", "assistant", "tool", "assistant"] * 2
    assert [each["content"] for each in history if each["role"] == "user"] == ["Note this.", "How many?"]
    assert history[6]["content"].startswith("first\n2")
    assert (spent["model_calls"], spent["tool_calls"]) == (4, 2)
    assert spent["tokens"] > 0


async def test_an_answer_is_streamed_as_it_comes_and_says_what_it_took(tmp_path: pathlib.Path) -> None:
    """Piece for piece, in the other format, too; at its end the tokens of this turn alone."""
    kind = llm(["One two three.", "Four five six."])
    async with AgentRuntime() as runtime, opened(kind, opening(runtime, tmp_path, LlmInfo())) as agent:
        chunks = [chunk async for chunk in agent.turn(asked("Count"), "anthropic")]
        again = [chunk async for chunk in agent.turn(asked("On"), "anthropic")]
        spent = agent.spent()
    deltas = [json.loads(chunk) for chunk in chunks if b"content_block_delta" in chunk]
    assert [each["delta"]["text"] for each in deltas] == ["One ", "two ", "three."]
    used = [json.loads(format_of("anthropic").fold(each))["usage"] for each in (chunks, again)]
    assert sum(each["input_tokens"] + each["output_tokens"] for each in used) == spent["tokens"]


@pytest.mark.parametrize(
    ("show", "expected"),
    [
        (True, 'I look.\n\n[Glob {"pattern": "*.txt"}]\n\nFound none.'),
        (False, "I look.\n\nFound none."),
    ],
    ids=["shown", "hidden"],
)
async def test_tool_calls_are_shown_as_text_or_hidden(tmp_path: pathlib.Path, show: bool, expected: str) -> None:
    """As the agent was asked to; replies are apart from each other either way."""
    kind = llm([saying("I look.", "Glob", pattern="*.txt"), "Found none."])
    info = LlmInfo(tools=["Glob"], show_tools=show)
    async with AgentRuntime() as runtime, opened(kind, opening(runtime, tmp_path, info)) as agent:
        assert await say(agent, "Look") == expected


@pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])
async def test_a_turn_is_interrupted_in_a_tool(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """What was said is kept, the tool's call included, and the next turn knows of it."""
    kind = llm([saying("I begin", "Bash", command="sleep 600"), "Here again."])
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = opening(runtime, tmp_path / "ada", LlmInfo(tools=["Bash"], show_tools=True), policy=policy_for(backend))
        async with opened(kind, start) as agent:
            with pytest.raises(Aborted, match="interrupted"):
                await interrupted_at(agent, "[Bash")
            assert await say(agent, "And now?") == "Here again."
            history = await agent.history()
    assert [each["role"] for each in history] == ["user", "assistant", "tool", "user", "assistant"]
    assert not agent.ended.cancelled()


async def test_a_reader_that_leaves_interrupts_the_turn(tmp_path: pathlib.Path) -> None:
    """As the contract has it; the agent takes the next one."""
    kind = llm([Hang(), "Back."])
    async with AgentRuntime() as runtime, opened(kind, opening(runtime, tmp_path, LlmInfo())) as agent:
        async with answering(agent, "Go") as answer:
            async for _ in answer:
                break
        assert await say(agent, "Still there?") == "Back."


@pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])
async def test_a_turn_that_fails_is_told_of_as_an_error(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """Typed, with its status, behind what was said; the agent lives on."""
    kind = llm([Fail(400), "Better now."])
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = opening(runtime, tmp_path / "ada", LlmInfo(), policy=policy_for(backend))
        async with opened(kind, start) as agent:
            with pytest.raises(TaskFailed) as failure:
                await say(agent, "Go")
            assert (failure.value.status, failure.value.run) == ("failed", agent.run)
            assert await say(agent, "Again") == "Better now."


async def test_limits_hold_for_the_whole_conversation(tmp_path: pathlib.Path) -> None:
    """The agent's, not a turn's: what the first has used the second does not have."""
    kind = llm(["One.", "Two.", "Three."])
    start_with = {"limits": Limits(model_calls=2)}
    async with AgentRuntime() as runtime, opened(kind, opening(runtime, tmp_path, LlmInfo(), **start_with)) as agent:
        assert await say(agent, "Go") == "One."
        answers = [await failure_of(agent, "On") for _ in range(2)]
    assert answers[-1] == "budget_exhausted"


@both
async def test_an_agent_imports_and_reads_what_its_image_brings(tmp_path: pathlib.Path, backend: Backend) -> None:
    """Its own Python does, and the commands that it runs; its skills are in its prompt, their files are there."""
    image = image_of(tmp_path / "bundle")
    model = ScriptedModel(
        [
            Call("python", {"code": "import helper\nhelper.answer('ab')"}),
            Call("Bash", {"command": "python3 -c 'import kit.words; print(kit.words.twice(\"cd\"))'; echo $MOOD"}),
            Call("Bash", {"command": f"cat {image.skills[0]}/counting/SKILL.md; echo x > {image.folders[0]}/new"}),
            "Done.",
        ]
    )
    kind = LlmType({"scripted": model}, default="scripted")
    info = LlmInfo(tools=["python", "Bash"], skills=["counting"])
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = opening(runtime, tmp_path / "ada", info, image=image, policy=Policy(), env={"MOOD": "bright"})
        async with opened(kind, start) as agent:
            assert await say(agent, "Go") == "Done."
            results = [each["content"] for each in await agent.history() if each["role"] == "tool"]
    assert "abab" in results[0]
    assert results[1].startswith("cdcd\nbright\n")
    assert "One, two, three." in results[2]
    assert not (image.folders[0] / "new").exists()
    assert "One, two, three." in str(model.requests[0].messages[0].content)


@both
async def test_tools_of_an_image_run_in_the_sandbox_of_the_agent(tmp_path: pathlib.Path, backend: Backend) -> None:
    """Those that its bundles declare, with their skills, and those of its code that it is asked with by name."""
    tools = b'import os\n\ndef where(of: str) -> str:\n    "Where it runs."\n    return f"{os.getpid()} {of}"\n\n'
    tools += b'def fails() -> None:\n    "It fails."\n    1 / 0\n\ndef quiet():\n    pass\n'
    files = {"tooling.py": tools, "skills/a/SKILL.md": b"---\ndescription: x\n---\nMind the gap.\n"}
    files["bundle.toml"] = b'tools = ["tooling:where"]\nskills = ["a"]'
    model = ScriptedModel([[Call("where", {"of": "me"}), Call("fails")], "Done."])
    kind = LlmType({"scripted": model}, default="scripted")
    async with (
        PackagingService(tmp_path / "packaging") as packaging,
        AgentRuntime(tmp_path, backend=backend) as runtime,
    ):
        job = await packaging.create_image("", [(await packaging.upload(tar(files))).id])
        image = await packaging.image((await packaging.finished(job.id)).image)
        more: dict[str, Any] = {"policy": Policy(), "image": image}
        info = LlmInfo(tools=["tooling:fails"])
        async with opened(kind, opening(runtime, tmp_path / "ada", info, **more)) as agent:
            assert await say(agent, "Go") == "Done."
            where, failed = [each["content"] for each in await agent.history() if each["role"] == "tool"]
            listed = await agent.control(ListTools())
        wrong: list[tuple[type[RametError], str, dict[str, Any]]] = [
            (InvalidValue, "nothing", {"info": LlmInfo(tools=["tooling:nothing"]), **more}),
            (InvalidValue, "elsewhere", {"info": LlmInfo(tools=["elsewhere:where"]), **more}),
            (InvalidValue, "docstring", {"info": LlmInfo(tools=["tooling:quiet"]), **more}),
            (InvalidValue, "'module:name'", {"info": LlmInfo(tools=["../tooling:where"]), **more}),
            (InvalidValue, "does not run in the host", {"info": LlmInfo(tools=["os:getcwd"])}),
        ]
        trees = len(runtime.trees)
        for error, named, fields in wrong:
            with pytest.raises(error, match=named):
                await kind.check(opening(runtime, tmp_path / "ada", **fields))
        assert len(runtime.trees) == trees
    assert where.endswith(" me")
    assert int(where.split()[0]) != os.getpid()
    assert "ZeroDivisionError" in failed
    assert "Mind the gap." in str(model.requests[0].messages[0].content)
    assert [(each["name"], each["input_schema"]["required"]) for each in listed] == [("where", ["of"]), ("fails", [])]


async def test_what_cannot_be_opened_is_refused_by_its_field(tmp_path: pathlib.Path) -> None:
    """Before anything is there."""
    kind, image = llm(["hi"]), image_of(tmp_path / "bundle")
    wrong: list[tuple[type[RametError], str, dict[str, Any]]] = [
        (Unknown, "Teleport", {"info": LlmInfo(tools=["Teleport"])}),
        (InvalidValue, "python", {"info": LlmInfo(tools=["python"])}),
        (InvalidValue, "modules", {"info": LlmInfo(modules=["os"])}),
        (Unknown, "nobody", {"info": LlmInfo(model="nobody:none")}),
        (Unknown, "singing", {"info": LlmInfo(skills=["singing"])}),
        (InvalidValue, "max_turns", {"info": LlmInfo(max_turns=0)}),
        (InvalidValue, "env", {"info": LlmInfo(), "env": {"A": "b"}}),
        (InvalidValue, "image", {"info": LlmInfo(), "image": image}),
        (InvalidValue, "in_image", {"info": LlmInfo(in_image=True), "policy": Policy()}),
        (InvalidValue, "in_image", {"info": LlmInfo(in_image=True), "image": Image("sha-2", ())}),
        (InvalidValue, "allow_sub_agents", {"info": LlmInfo(spawn=True), "policy": Policy(allow_sub_agents=False)}),
        (InvalidValue, "LD_PRELOAD", {"info": LlmInfo(), "policy": Policy(), "env": {"LD_PRELOAD": "x"}}),
    ]
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        for error, named, fields in wrong:
            with pytest.raises(error, match=named):
                await kind.check(opening(runtime, tmp_path / "ada", **fields))
        with pytest.raises(InvalidValue, match="default"):
            await LlmType().check(opening(runtime, tmp_path / "ada", LlmInfo()))
        assert not runtime.trees
    with pytest.raises(msgspec.ValidationError, match="colour"):
        msgspec.json.decode(b'{"colour": "red"}', type=LlmInfo)


@both
async def test_an_agent_may_work_in_its_image(tmp_path: pathlib.Path, backend: Backend) -> None:
    """It finds there what the image brings, and cannot write there."""
    script: Script = [
        Call("Glob", {"pattern": "*.py"}),
        Call("Write", {"file_path": "new.py", "content": "x = 1"}),
        "Seen.",
    ]
    more: dict[str, Any] = {"policy": Policy(), "image": image_of(tmp_path / "bundle")}
    (tmp_path / "bundle").chmod(0o555)  # as bundles are kept
    info = LlmInfo(tools=["Glob", "Write"], in_image=True)
    async with AgentRuntime(tmp_path / "work", backend=backend) as runtime:
        async with opened(llm(script), opening(runtime, tmp_path / "ada", info, **more)) as agent:
            assert await say(agent, "Look") == "Seen."
            found, written = [each for each in await agent.history() if each["role"] == "tool"]
    (tmp_path / "bundle").chmod(0o755)
    assert "helper.py" in found["content"].splitlines()
    assert written["status"] == "error"
    assert not (tmp_path / "bundle" / "new.py").exists()


async def test_the_offline_model_needs_no_key(tmp_path: pathlib.Path) -> None:
    """It is always there."""
    (tmp_path / "log.txt").write_text("error: timeout of 3000 ms\n")
    info = LlmInfo(model="offline", tools=["*"])
    async with AgentRuntime() as runtime, opened(LlmType(), opening(runtime, tmp_path, info)) as agent:
        assert "offline" in (await say(agent, "Which timeout is in the log?")).lower()
        assert runtime.get(agent.run).run.agent.name == "ada", "whoever lists runs tells agents apart by it"


async def test_its_tools_are_listed_and_its_model_is_set(tmp_path: pathlib.Path) -> None:
    """By operations; the next question goes to the new model, and a wrong name changes nothing."""
    kind = LlmType({"one": ScriptedModel(["From one."]), "two": ScriptedModel(["From two."])}, default="one")
    info = LlmInfo(tools=["Read", "Bash"])
    async with AgentRuntime() as runtime, opened(kind, opening(runtime, tmp_path, info)) as agent:
        assert [each["name"] for each in await agent.control(ListTools())] == ["Read", "Bash"]
        assert await say(agent, "Who?") == "From one."
        with pytest.raises(Unknown):
            await agent.control(SetModel("nobody:none"))
        assert await agent.control(SetModel("two")) == {"model": "scripted"}
        assert await say(agent, "Who?") == "From two."


async def test_a_conversation_is_shortened_by_an_operation(tmp_path: pathlib.Path) -> None:
    """Between turns, with a summary by its own model; in a turn it is refused, and nothing changes."""
    long = [f"{number} " + "word " * 6_000 for number in range(8)]
    script: Script = [*(Say(text, chunks=(text,)) for text in long), "They counted.", Hang(), "On."]
    async with AgentRuntime() as runtime, opened(llm(script), opening(runtime, tmp_path, LlmInfo())) as agent:
        for _ in long:
            await say(agent, "Go on")
        before = await agent.history()
        shortened = await agent.control(Compact())
        after = await agent.history()
        assert shortened == {"compacted": True, "messages": len(after)}
        assert len(after) < len(before)
        assert after[-1] == before[-1]
        assert any("They counted." in each["content"] for each in after)
        async with answering(agent, "Hang") as answer:
            async for _ in answer:
                with pytest.raises(BusyError):
                    await agent.control(Compact())
                break
        assert await say(agent, "Go") == "On."


async def test_mail_is_read_at_the_next_step(tmp_path: pathlib.Path) -> None:
    """An agent at rest is woken by it; what it says then is in its history."""
    kind = llm(["Hello.", "I have read it.", "Yes."])
    async with AgentRuntime() as runtime, opened(kind, opening(runtime, tmp_path, LlmInfo())) as agent:
        await say(agent, "Hi")
        await agent.mail("a letter")
        texts: list[str] = []
        while "I have read it." not in texts:
            await eventually(lambda: len(runtime.get(agent.run).run.context.history) >= 4)
            texts = [each["content"] for each in await agent.history()]
        assert texts == ["Hi", "Hello.", "a letter", "I have read it."]
        assert await say(agent, "Read?") == "Yes."
    with pytest.raises(MailRefused):
        await agent.mail("too late")


@pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])
async def test_mail_before_the_first_turn_is_read(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """An agent that has had no turn is at rest: it is woken as well."""
    kind = llm(["I have read it.", "Hello."])
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = opening(runtime, tmp_path / "ada", LlmInfo(), policy=policy_for(backend))
        async with opened(kind, start) as agent:
            await agent.mail("a letter")
            await eventually(lambda: runtime.get(agent.run).run.state == "idle")
            assert await say(agent, "Hi") == "Hello."
            texts = [each["content"] for each in await agent.history()]
    assert texts == ["a letter", "I have read it.", "Hi", "Hello."]


async def test_an_agent_whose_tree_was_ended_says_so(tmp_path: pathlib.Path) -> None:
    """It is told of through `ended`, and takes no turn any more."""
    kind = llm(["Hello.", "never said"])
    async with AgentRuntime() as runtime:
        agent = await kind.open(opening(runtime, tmp_path, LlmInfo()))
        await say(agent, "Hi")
        await runtime.get(agent.run).cancel("its budget is wanted elsewhere")
        error = await agent.ended
        assert error is not None
        assert "wanted elsewhere" in error.message
        with pytest.raises(RametError, match="ended"):
            await say(agent, "Hi")
        await agent.close("over")


@pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])
async def test_another_server_goes_on_with_the_conversation(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """By its run: the same history, folder, environment and limits, and what it has used is not forgotten."""
    info = LlmInfo(tools=["Bash"], model="one")
    policy = policy_for(backend, secrets={"key": "a-long-secret"}, env_vars={"MOOD": "bright"})
    more: dict[str, Any] = {"policy": policy, "limits": Limits(model_calls=5)}
    first = LlmType({"one": ScriptedModel([Call("Bash", {"command": "echo kept > file"}), "Written."])})
    async with lost(tmp_path, backend) as runtime:
        agent = await first.open(opening(runtime, tmp_path / "ada", info, **more))
        assert await say(agent, "Write it down") == "Written."
        run, spent = agent.run, dict(agent.spent())

    reads = "cat file; echo $MOOD; cat /run/secrets/key" if backend else "cat file"
    second = LlmType({"one": ScriptedModel([Call("Bash", {"command": reads}), "It says kept.", "too much"])})
    async with restarted(tmp_path, backend) as runtime:
        start = opening(runtime, tmp_path / "ada", info, run=run, **more)
        async with opened(second, start) as again:
            assert (again.run, again.spent()) == (run, spent)
            assert await say(again, "What does it say?") == "It says kept."
            with pytest.raises(TaskFailed, match="budget"):
                await say(again, "On")
            history = await again.history()
    users = [each["content"] for each in history if each["role"] == "user"]
    assert users[:2] == ["Write it down", "What does it say?"]
    [_, read] = [each["content"] for each in history if each["role"] == "tool"]
    assert read.startswith("kept\nbright\na-long-secret" if backend else "kept\n")


async def test_a_server_that_was_stopped_is_gone_on_from_too(tmp_path: pathlib.Path) -> None:
    """Its tree was closed with it: another one, on any machine, knows what was said, and has what the limits leave."""
    run, more = "", {"limits": Limits(model_calls=4)}
    for number, word in enumerate(("one", "two", "three")):
        async with restarted(tmp_path, None) as runtime:
            start = opening(runtime, tmp_path / word, LlmInfo(), run=run, **more)
            async with opened(llm([word, "the last word"]), start) as agent:
                assert agent.spent()["model_calls"] == number
                assert await say(agent, f"say {word}") == word
                assert len(await agent.history()) == 2 * (number + 1)
                if number == 2:
                    assert await failure_of(agent, "On") == "budget_exhausted"
                run = agent.run


async def test_a_model_that_was_set_is_asked_after_a_restart(tmp_path: pathlib.Path) -> None:
    """The operation's word outlives the process that heard it."""
    kind = LlmType({"one": ScriptedModel(["From one."]), "two": ScriptedModel(["From two."])}, default="one")
    async with lost(tmp_path, None) as runtime:
        agent = await kind.open(opening(runtime, tmp_path / "ada", LlmInfo()))
        assert await say(agent, "Who?") == "From one."
        await agent.control(SetModel("two"))
        run = agent.run
    async with restarted(tmp_path, None) as runtime:
        async with opened(kind, opening(runtime, tmp_path / "ada", LlmInfo(), run=run)) as again:
            assert await say(again, "Who?") == "From two."


async def test_a_turn_that_a_killed_server_had_begun_is_brought_to_its_end(tmp_path: pathlib.Path) -> None:
    """Before the next is begun, which waits for it and is not refused."""
    async with lost(tmp_path, None) as runtime:
        agent = await llm([Hang()]).open(opening(runtime, tmp_path / "ada", LlmInfo()))
        answer = agent.turn(asked("First"), "openai")
        await anext(answer)
        run = agent.run
        await eventually(lambda: runtime.get(run).run.context.history)
    await ended(answer)
    async with restarted(tmp_path, None) as runtime:
        start = opening(runtime, tmp_path / "ada", LlmInfo(), run=run)
        async with opened(llm(["The first.", "The second."]), start) as again:
            assert await say(again, "Second") == "The second."
            texts = [each["content"] for each in await again.history()]
    assert texts == ["First", "The first.", "Second", "The second."]


async def test_a_turn_that_a_killed_server_had_begun_has_what_was_loaded_before(tmp_path: pathlib.Path) -> None:
    """Code, tools and skills, from the first question of the next server on; the record of its birth knows none."""
    kit = {
        "bundle.toml": b'tools = ["kit:twice"]',
        "kit.py": b"def twice(text: str) -> str:\n    'Twice.'\n    return 2 * text",
    }
    async with PackagingService(tmp_path / "packaging") as packaging:
        bundle = (await packaging.upload(tar(kit))).id

        def shelf(runtime: AgentRuntime, *loaded: str) -> AgentShelf:
            return AgentShelf("a-1", "", lambda: runtime.sandboxes.folders, packaging, PLAIN, loaded)

        async with lost(tmp_path, "local") as runtime:
            more: dict[str, Any] = {"policy": Policy(), "shelf": shelf(runtime)}
            await more["shelf"].open()
            agent = await llm(["Ready.", Hang()]).open(opening(runtime, tmp_path / "ada", LlmInfo(), **more))
            assert await say(agent, "Hello") == "Ready."
            await agent.control(LoadBundle(bundle))
            answer = agent.turn(asked("First"), "openai")
            await anext(answer)
            run = agent.run
            await eventually(lambda: len(runtime.get(run).run.context.history) > 2)
        await ended(answer)
        model = ScriptedModel([Call("twice", {"text": "ab"}), "The first.", "The second."])
        async with restarted(tmp_path, "local") as runtime:
            more["shelf"] = shelf(runtime, bundle)
            await more["shelf"].open()
            start = opening(runtime, tmp_path / "ada", LlmInfo(), run=run, **more)
            async with opened(LlmType({"scripted": model}, default="scripted"), start) as again:
                assert await say(again, "Second") == "The second."
                history = await again.history()
    assert [each["content"] for each in history if each["role"] == "tool"] == ["abab"]


# ---- a function


def function(name: str, **more: Any) -> dict[str, Any]:
    """What to open one of ours with."""
    return {"info": FunctionInfo(function=f"{FUNCTIONS}:{name}"), **more}


OURS = FunctionType(allowed=["tests.trips"])


async def test_a_function_is_told_what_was_said(tmp_path: pathlib.Path) -> None:
    """A call a turn, each with the history of those before."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        start = opening(runtime, tmp_path / "ada", **function("remembers", policy=Policy()))
        async with opened(OURS, start) as agent:
            assert await say(agent, "one") == "one"
            first = agent.run
            assert await say(agent, "two") == "user: one | assistant: one | two"
            assert agent.run != first, "each turn is a tree of its own"
            assert await agent.history() == [
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "one"},
                {"role": "user", "content": "two"},
                {"role": "assistant", "content": "user: one | assistant: one | two"},
            ]


@pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])
@pytest.mark.parametrize("name", ["yields", "yields_async"])
async def test_what_a_function_yields_is_streamed(tmp_path: pathlib.Path, backend: Backend | None, name: str) -> None:
    """Synchronous or not, here or inside."""
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = opening(runtime, tmp_path / "ada", **function(name, policy=policy_for(backend)))
        async with opened(OURS, start) as agent:
            assert await say(agent, "a b c") == "abc"


@both
async def test_what_a_function_prints_in_a_sandbox_is_streamed(tmp_path: pathlib.Path, backend: Backend) -> None:
    """Then comes what it returns, data as JSON."""
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = opening(runtime, tmp_path / "ada", **function("prints", policy=Policy()))
        async with opened(OURS, start) as agent:
            assert await say(agent, "a b") == 'a\nb\n{"words": 2}'


@pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])
async def test_a_function_that_fails_is_told_of_as_an_error(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """Behind what it has said; the next turn works."""
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = opening(runtime, tmp_path / "ada", **function("breaks", policy=policy_for(backend)))
        async with opened(OURS, start) as agent:
            for _ in range(2):
                with pytest.raises(TaskFailed, match="ValueError: not today"):
                    await say(agent, "today")
            said = [each["content"] for each in await agent.history()]
    assert said == ["today", "so far\n" if backend else ""] * 2


@pytest.mark.parametrize(("backend", "name"), [(None, "waits"), ("local", "sleeps")])
async def test_a_function_is_interrupted(tmp_path: pathlib.Path, backend: Backend | None, name: str) -> None:
    """Its process is gone, what it had said is kept."""
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = opening(runtime, tmp_path / "ada", **function(name, policy=policy_for(backend)))
        async with opened(OURS, start) as agent:
            with pytest.raises(Aborted, match="interrupted"):
                await interrupted_at(agent, "begun")
            async with answering(agent, "x") as answer:
                async for chunk in answer:
                    if "begun" in text_of([chunk]):
                        break
            assert [each["content"].strip() for each in await agent.history()] == ["Go", "begun", "x", "begun"]
            assert not runtime.trees


@both
async def test_a_function_of_an_image_is_called_inside_only(tmp_path: pathlib.Path, backend: Backend) -> None:
    """Its code is looked at here, and run there."""
    image = image_of(tmp_path / "bundle")
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        for info, expected in (("helper:answer", "abab"), ("kit.words:twice", "abab")):
            start = opening(runtime, tmp_path / "ada", FunctionInfo(function=info), image=image, policy=Policy())
            async with opened(FunctionType(), start) as agent:
                assert await say(agent, "ab") == expected


@pytest.mark.parametrize(
    ("info", "named"),
    [
        ("no reference", "module:name"),
        ("os:system", "tests.trips"),
        ("tests.tripsy.kit:x", "tests.trips"),
        (f"{FUNCTIONS}:missing", "AttributeError"),
        ("tests.trips.nowhere:x", "ModuleNotFoundError"),
        (f"{FUNCTIONS}:KEPT", "a function; it is a str"),
        ("helper:missing", "image"),
        ("kit:twice", "image"),
        ("kit.nowhere:twice", "image"),
    ],
)
async def test_a_function_that_cannot_be_called_is_refused(tmp_path: pathlib.Path, info: str, named: str) -> None:
    """By its name, before anything is there."""
    image = image_of(tmp_path / "bundle")
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        with pytest.raises(InvalidValue, match=named) as refusal:
            await OURS.check(
                opening(runtime, tmp_path / "ada", FunctionInfo(function=info), image=image, policy=Policy())
            )
        assert refusal.value.field == "spawn_info.function"


@pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])
async def test_another_server_knows_what_a_function_was_told(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """All turns that were over, wherever it has its folder."""
    policy = policy_for(backend)
    async with lost(tmp_path, backend) as runtime:
        agent = await OURS.open(opening(runtime, tmp_path / "ada", **function("remembers", policy=policy)))
        await say(agent, "one")
        run = agent.run
    async with restarted(tmp_path, backend) as runtime:
        start = opening(runtime, tmp_path / "eve", **function("remembers", policy=policy, run=run))
        async with opened(OURS, start) as again:
            assert await say(again, "two") == "user: one | assistant: one | two"
            assert len(await again.history()) == 4


@pytest.mark.parametrize(("backend", "name"), [(None, "waits"), ("local", "sleeps")])
async def test_a_function_that_a_killed_server_had_called_is_called_again(
    tmp_path: pathlib.Path, backend: Backend | None, name: str
) -> None:
    """It is the same turn, and the same run, whether or not anybody follows it; it can be interrupted like any."""
    start = function(name, policy=policy_for(backend))
    async with lost(tmp_path, backend) as runtime:
        agent = await OURS.open(opening(runtime, tmp_path / "ada", **start))
        answer = agent.turn(asked("x"), "openai")
        while "begun" not in text_of([await anext(answer)]):
            pass
        run = agent.run
    await ended(answer)
    async with restarted(tmp_path, backend) as runtime:
        late = FunctionTurns(await runtime.open_store(), "a-1")
        await late.read()
        again = await OURS.open(opening(runtime, tmp_path / "ada", **start, run=run))
        assert isinstance(again, FunctionAgent)
        assert late.active_turn is not None
        with pytest.raises(TakenOver):
            await late.write(late.active_turn)
        assert (again.turns_taken, again.run, [*runtime.trees]) == (1, run, [run])
        assert await again.history() == []
        await eventually(lambda: again._call is not None and again._call._texts)
        await again.interrupt()
        assert (await runtime.result(run)).status == "cancelled"
        assert [each["content"].strip() for each in await again.history()] == ["x", "begun"]
        await again.close("it is over")


@asynccontextmanager
async def left_ended(
    folder: pathlib.Path, name: str, policy: Policy | None
) -> AsyncIterator[tuple[FunctionAgent, str]]:
    """As a kernel leaves it that was killed when its call had just ended: the agent elsewhere, and the run."""
    async with AgentRuntime(folder, backend="local") as runtime:
        run, turns = runtime.mint(), FunctionTurns(await runtime.open_store(), "a-1")
        await turns.write(FunctionTurn(number=1, run=run, asked="a b"))
        called = getattr(served_functions, name)
        args: tuple[Any, ...] = (called, "a b", []) if policy is not None else ("a b",)
        call = await runtime.spawn(call_inside if policy else called, args=args, policy=policy, run=run)
        assert (await call.result()).status == "completed"
        agent = await OURS.open(opening(runtime, folder / "ada", **function(name, policy=policy)))
        assert isinstance(agent, FunctionAgent)
        yield agent, run
        await agent.close("it is over")


async def test_a_function_that_had_ended_when_its_server_was_killed_is_not_called_again(tmp_path: pathlib.Path) -> None:
    """What its reader has not heard of its answer is told, once: it is on record, as far as it was printed last."""
    async with left_ended(tmp_path, "prints", Policy()) as (agent, run):
        writer = format_of("openai").Writer(run, "prints", 0)
        said = [*writer.begin(), *writer.text("a\n")]
        rest = [chunk async for chunk in agent.resume_turn(1, b"", "openai", said)]
        assert text_of(rest) == 'b\n{"words": 2}'
        assert [chunk async for chunk in agent.resume_turn(1, b"", "openai", [*said, *rest[:-1]])] == rest[-1:]
        assert [each["content"] for each in await agent.history()] == ["a b", 'a\nb\n{"words": 2}']


async def test_what_a_function_of_the_host_said_last_when_its_server_was_killed_is_said_to_be_missing(
    tmp_path: pathlib.Path,
) -> None:
    """It is on record only what it returned; where it had said nothing, that is all."""
    async with left_ended(tmp_path, "shout", None) as (agent, run):
        writer = format_of("openai").Writer(run, "shout", 0)
        said = [*writer.begin(), *writer.text("so far")]
        rest = [chunk async for chunk in agent.resume_turn(1, b"", "openai", said)]
        assert text_of(rest) == f"\n\n{MAY_MISS}\nA B"
        assert [each["content"] for each in await agent.history()] == ["a b", f"so far{text_of(rest)}"]


async def test_a_turn_of_a_function_that_nobody_can_go_on_with_is_over_and_says_why(tmp_path: pathlib.Path) -> None:
    """Its secret is not here any more; the agent answers on."""
    async with lost(tmp_path, "local") as runtime:
        policy = Policy(secrets={"KEY": "a secret"})
        agent = await OURS.open(opening(runtime, tmp_path / "ada", **function("sleeps", policy=policy)))
        answer = agent.turn(asked("x"), "openai")
        said = [await anext(answer)]
        while "begun" not in text_of(said):
            said.append(await anext(answer))
    await ended(answer)
    async with restarted(tmp_path, "local") as runtime:
        start = opening(runtime, tmp_path / "ada", **function("shout", policy=Policy()))
        async with opened(OURS, start) as again:
            assert isinstance(again, FunctionAgent)
            with pytest.raises(Aborted, match="the turn cannot be resumed: the journal names secret 'KEY'"):
                _ = [chunk async for chunk in again.resume_turn(1, b"", "openai", said)]
            assert await say(again, "on") == "ON"
