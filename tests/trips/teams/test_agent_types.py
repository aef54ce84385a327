"""The parts of each agent type that differ. Promises of every type are in tests/conformance/test_agent_types.py."""

from __future__ import annotations

import asyncio
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
from langchain_core.outputs import ChatGenerationChunk

from ramet import AgentRuntime, Limits, Policy, ScriptedModel
from ramet.core.errors import (
    Aborted,
    BusyError,
    InvalidValue,
    MailRefused,
    ModelFailed,
    RametError,
    TaskFailed,
    Unknown,
)
from ramet.models.scripted.dialogue import Call, Cut, Fail, Hang, Say, Script
from ramet.services.agent_types.bundle_operations import LoadBundle
from ramet.services.agent_types.conversation_log import ConversationLog, ConversationTurn
from ramet.services.agent_types.function.agent import FunctionAgent
from ramet.services.agent_types.function.call import MAY_MISS
from ramet.services.agent_types.function.invoke import call_inside
from ramet.services.agent_types.function.type import FunctionInfo, FunctionType
from ramet.services.agent_types.llm.agent_operations import Compact, ListTools, SetModel
from ramet.services.agent_types.llm.type import LlmInfo, LlmType
from ramet.services.contract import PLAIN, AgentSpec, AgentType, Image, RunningAgent
from ramet.services.errors import TakenOver
from ramet.services.formats.registry import format_of
from ramet.services.packaging.service import PackagingService
from ramet.services.rules import Rules
from ramet.services.teams.loaded_bundles import AgentImportDir
from ramet.store.sqlite.store import SqliteStore
from tests.support.image_jobs import wait_finished
from tests.support.tars import tar
from tests.support.waiting import eventually
from tests.trips.agents import served_functions

Backend = Literal["bwrap", "local"]
both = pytest.mark.parametrize("backend", ["bwrap", "local"])
FUNCTIONS = "tests.trips.agents.served_functions"


def request_body(text: str) -> bytes:
    """Return a request body that both formats accept."""
    return json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode()


def text_of(chunks: list[bytes]) -> str:
    """Return the text of an answer in OpenAI's format, as far as it came."""
    contents = [json.loads(chunk)["choices"][0]["delta"].get("content") for chunk in chunks]
    return "".join(filter(None, contents))


async def say(agent: RunningAgent, text: str) -> str:
    """Take one whole turn, and return the answer's text."""
    chunks = [chunk async for chunk in agent.turn(request_body(text), "openai")]
    reply = json.loads(format_of("openai").fold(chunks))
    assert reply["choices"][0]["finish_reason"] == "stop"
    return str(reply["choices"][0]["message"]["content"])


@asynccontextmanager
async def begin_turn(agent: RunningAgent, text: str) -> AsyncIterator[AsyncIterator[bytes]]:
    """Begin a turn that is read only as far as the block reads it."""
    answer = agent.turn(request_body(text), "openai")
    try:
        yield answer
    finally:
        await answer.aclose()  # type: ignore[attr-defined]  # the types that ship give generators


@asynccontextmanager
async def lost_runtime(folder: pathlib.Path, backend: Backend | None) -> AsyncIterator[AgentRuntime]:
    """A runtime whose process is killed at the end of the block: nothing it does after that is recorded."""
    store = SqliteStore(folder / "journal.db")
    runtime = await AgentRuntime(folder, backend=backend, store=store, grace_s=0.1).start()
    yield runtime
    for tree in runtime.trees.values():
        await tree.recorder.durable()  # type: ignore[misc]  # it has a journal
    await store.close()
    await runtime.stop()


async def read_to_end(answer: AsyncIterator[bytes]) -> None:
    """Read a turn of a lost runtime to its end, and ignore its errors."""
    with suppress(RametError):
        async for _ in answer:
            pass


def new_runtime(folder: pathlib.Path, backend: Backend | None) -> AgentRuntime:
    """Return a runtime that replaces the lost one."""
    return AgentRuntime(folder, backend=backend, store=SqliteStore(folder / "journal.db"))


async def turn_pieces(agent: RunningAgent, text: str) -> AsyncIterator[str]:
    """Yield the text pieces of a turn, until it raises."""
    async with begin_turn(agent, text) as answer:
        async for chunk in answer:
            yield text_of([chunk])


async def failure_of(agent: RunningAgent, text: str) -> str:
    """Return the status of a failed turn, or an empty text."""
    try:
        await say(agent, text)
    except TaskFailed as failure:
        return failure.status
    return ""


async def interrupt_turn_at(agent: RunningAgent, word: str) -> str:
    """Interrupt a turn once it has said a word, and return its text. Raises the error of the turn."""
    text = ""
    async for piece in turn_pieces(agent, "Go"):
        text += piece
        if word in piece:
            await agent.interrupt()
    return text


def reply_with_call(text: str, tool: str, **args: Any) -> AIMessage:
    """Return a reply with a text and a tool call."""
    return AIMessage(text, tool_calls=[tool_call(name=tool, args=args, id=f"call-{text}")])


def agent_spec(runtime: AgentRuntime, folder: pathlib.Path, info: Any, **more: Any) -> AgentSpec:
    """Return an AgentSpec as the service would make it."""
    folder.mkdir(exist_ok=True)
    return AgentSpec(id="a-1", name="ada", path="team/ada", info=info, runtime=runtime, folder=folder, **more)


@asynccontextmanager
async def open_agent(kind: AgentType, start: AgentSpec) -> AsyncIterator[RunningAgent]:
    """Check and open an agent, and close it in the end."""
    await kind.check(start)
    agent = await kind.open(start)
    try:
        yield agent
    finally:
        await agent.close("the test is over")
        assert agent.end.result() is None


def llm(script: Script) -> LlmType:
    """Return the type with a scripted model."""
    return LlmType({"scripted": ScriptedModel(script)}, default="scripted")


def policy_for(backend: Backend | None, **fields: Any) -> Policy | None:
    """Return the policy of an agent in this kind of sandbox, or None in the host."""
    return Policy(**fields) if backend is not None else None


def image_of(folder: pathlib.Path) -> Image:
    """Return an image of one bundle: a module, a package, and a skill."""
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
async def test_the_second_turn_has_the_folder_and_tree_of_the_first(
    tmp_path: pathlib.Path, backend: Backend | None
) -> None:
    """Files of the first turn are still there, and usage of both turns is counted."""
    script: Script = [
        Call("Bash", {"command": "echo first >> notes.txt"}),
        "Noted.",
        Call("Bash", {"command": "cat notes.txt; echo second >> notes.txt; wc -l < notes.txt"}),
        "Two.",
    ]
    start_with = LlmInfo(tools=["Bash"], system_prompt="You keep notes.")
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", start_with, policy=policy_for(backend))
        async with open_agent(llm(script), start) as agent:
            assert await say(agent, "Note this.") == "Noted."
            run = agent.run
            assert await say(agent, "How many?") == "Two."
            assert (agent.run, agent.isolation == "none") == (run, backend is None)
            history, spent = await agent.history(), agent.usage()
    assert [each["role"] for each in history] == ["user", "assistant", "tool", "assistant"] * 2
    assert [each["content"] for each in history if each["role"] == "user"] == ["Note this.", "How many?"]
    assert history[6]["content"].startswith("first\n2")
    assert (spent["model_calls"], spent["tool_calls"]) == (4, 2)
    assert spent["tokens"] > 0


async def test_an_answer_is_streamed_with_the_tokens_of_its_turn(tmp_path: pathlib.Path) -> None:
    """The pieces come one by one in the other format, too. The end has the tokens of that turn alone."""
    kind = llm(["One two three.", "Four five six."])
    async with AgentRuntime() as runtime, open_agent(kind, agent_spec(runtime, tmp_path, LlmInfo())) as agent:
        chunks = [chunk async for chunk in agent.turn(request_body("Count"), "anthropic")]
        chunks_again = [chunk async for chunk in agent.turn(request_body("On"), "anthropic")]
        spent = agent.usage()
    deltas = [json.loads(chunk) for chunk in chunks if b"content_block_delta" in chunk]
    assert [each["delta"]["text"] for each in deltas] == ["One ", "two ", "three."]
    usages = [json.loads(format_of("anthropic").fold(each))["usage"] for each in (chunks, chunks_again)]
    assert sum(each["input_tokens"] + each["output_tokens"] for each in usages) == spent["tokens"]


@pytest.mark.parametrize(
    ("show", "expected"),
    [
        (True, 'I look.\n\n[Glob {"pattern": "*.txt"}]\n\nFound none.'),
        (False, "I look.\n\nFound none."),
    ],
    ids=["shown", "hidden"],
)
async def test_tool_calls_are_shown_as_text_or_hidden(tmp_path: pathlib.Path, show: bool, expected: str) -> None:
    """`show_tools` decides. An empty line separates replies either way."""
    kind = llm([reply_with_call("I look.", "Glob", pattern="*.txt"), "Found none."])
    info = LlmInfo(tools=["Glob"], show_tools=show)
    async with AgentRuntime() as runtime, open_agent(kind, agent_spec(runtime, tmp_path, info)) as agent:
        assert await say(agent, "Look") == expected


async def test_a_reply_that_was_cut_off_begins_again_behind_a_note(tmp_path: pathlib.Path) -> None:
    """The reader has a part of the first attempt. The second one is cut off before its text, and needs no note."""
    is_read = asyncio.Event()

    class CutWhenRead(ScriptedModel):
        def __init__(self, script: Script) -> None:
            super().__init__(script)

        async def _astream(self, *args: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
            try:
                async for chunk in super()._astream(*args, **options):
                    yield chunk
            except ModelFailed:
                await is_read.wait()
                raise

    kind = LlmType({"cut": CutWhenRead([Cut(3, "One"), Cut(0), "One two."])}, default="cut")
    async with AgentRuntime() as runtime, open_agent(kind, agent_spec(runtime, tmp_path, LlmInfo())) as agent:
        text = ""
        async for chunk in agent.turn(request_body("Count"), "openai"):
            text += text_of([chunk])
            if text:
                is_read.set()
    assert text == "One\n\n[the reply was cut off; it begins again]\n\nOne two."


@pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])
async def test_a_turn_can_be_interrupted_in_a_tool(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """The history keeps the text and the tool call, and the next turn knows both."""
    kind = llm([reply_with_call("I begin", "Bash", command="sleep 600"), "Here again."])
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = agent_spec(
            runtime, tmp_path / "ada", LlmInfo(tools=["Bash"], show_tools=True), policy=policy_for(backend)
        )
        async with open_agent(kind, start) as agent:
            with pytest.raises(Aborted, match="interrupted"):
                await interrupt_turn_at(agent, "[Bash")
            assert await say(agent, "And now?") == "Here again."
            history = await agent.history()
    assert [each["role"] for each in history] == ["user", "assistant", "tool", "user", "assistant"]
    assert not agent.end.cancelled()


async def test_a_reader_that_leaves_interrupts_the_turn(tmp_path: pathlib.Path) -> None:
    """The agent takes the next turn."""
    kind = llm([Hang(), "Back."])
    async with AgentRuntime() as runtime, open_agent(kind, agent_spec(runtime, tmp_path, LlmInfo())) as agent:
        async with begin_turn(agent, "Go") as answer:
            async for _ in answer:
                break
        assert await say(agent, "Still there?") == "Back."


@pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])
async def test_a_failed_turn_of_a_model_raises_a_typed_error(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """The error has the status and the run. The agent takes the next turn."""
    kind = llm([Fail(400), "Better now."])
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", LlmInfo(), policy=policy_for(backend))
        async with open_agent(kind, start) as agent:
            with pytest.raises(TaskFailed) as failure:
                await say(agent, "Go")
            assert (failure.value.status, failure.value.run) == ("failed", agent.run)
            assert await say(agent, "Again") == "Better now."


async def test_limits_hold_for_the_whole_conversation(tmp_path: pathlib.Path) -> None:
    """The second turn does not get back what the first one used."""
    kind = llm(["One.", "Two.", "Three."])
    start_with = {"limits": Limits(model_calls=2)}
    async with (
        AgentRuntime() as runtime,
        open_agent(kind, agent_spec(runtime, tmp_path, LlmInfo(), **start_with)) as agent,
    ):
        assert await say(agent, "Go") == "One."
        answers = [await failure_of(agent, "On") for _ in range(2)]
    assert answers[-1] == "budget_exhausted"


@both
async def test_an_agent_can_use_the_code_and_skills_of_its_image(tmp_path: pathlib.Path, backend: Backend) -> None:
    """The agent's Python and commands import the code, and cannot change it.

    A skill's description is in the prompt, and its text comes when the agent loads it.
    """
    image = image_of(tmp_path / "bundle")
    model = ScriptedModel(
        [
            Call("python", {"code": "import helper\nhelper.answer('ab')"}),
            Call("Bash", {"command": "python3 -c 'import kit.words; print(kit.words.twice(\"cd\"))'; echo $MOOD"}),
            [Call("Skill", {"skill": "counting"}), Call("Bash", {"command": f"echo x > {image.folders[0]}/new"})],
            "Done.",
        ]
    )
    kind = LlmType({"scripted": model}, default="scripted")
    info = LlmInfo(tools=["python", "Bash"], skills=["counting"])
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", info, image=image, policy=Policy(), env={"MOOD": "bright"})
        async with open_agent(kind, start) as agent:
            assert await say(agent, "Go") == "Done."
            results = [each["content"] for each in await agent.history() if each["role"] == "tool"]
    assert "abab" in results[0]
    assert results[1].startswith("cdcd\nbright\n")
    assert "One, two, three." in results[2]
    assert not (image.folders[0] / "new").exists()
    system = str(model.requests[0].messages[0].content)
    assert "- counting: How to count" in system
    assert "One, two, three." not in system


@both
async def test_tools_of_an_image_run_in_the_sandbox_of_the_agent(tmp_path: pathlib.Path, backend: Backend) -> None:
    """An image offers the tools and skills that its bundles declare, and functions that the spawn names."""
    tools = b'import os\n\ndef where(of: str) -> str:\n    "Where it runs."\n    return f"{os.getpid()} {of}"\n\n'
    tools += b'def fails() -> None:\n    "It fails."\n    1 / 0\n\ndef quiet():\n    pass\n'
    files = {"tooling.py": tools, "skills/a/SKILL.md": b"---\ndescription: x\n---\nMind the gap.\n"}
    files["bundle.toml"] = b'tools = ["tooling:where"]\nskills = ["a"]'
    model = ScriptedModel([[Call("where", {"of": "me"}), Call("fails"), Call("Skill", {"skill": "a"})], "Done."])
    kind = LlmType({"scripted": model}, default="scripted")
    async with (
        PackagingService(tmp_path / "packaging") as packaging,
        AgentRuntime(tmp_path, backend=backend) as runtime,
    ):
        job = await packaging.create_image("", [(await packaging.upload(tar(files))).id])
        image = await packaging.image((await wait_finished(packaging, job.id)).image)
        more: dict[str, Any] = {"policy": Policy(), "image": image}
        info = LlmInfo(tools=["tooling:fails"])
        async with open_agent(kind, agent_spec(runtime, tmp_path / "ada", info, **more)) as agent:
            assert await say(agent, "Go") == "Done."
            path_text, error_text, skill = [each["content"] for each in await agent.history() if each["role"] == "tool"]
            listing = await agent.control(ListTools())
        wrong: list[tuple[type[RametError], str, dict[str, Any]]] = [
            (InvalidValue, "nothing", {"info": LlmInfo(tools=["tooling:nothing"]), **more}),
            (InvalidValue, "elsewhere", {"info": LlmInfo(tools=["elsewhere:where"]), **more}),
            (InvalidValue, "docstring", {"info": LlmInfo(tools=["tooling:quiet"]), **more}),
            (InvalidValue, "'module:name'", {"info": LlmInfo(tools=["../tooling:where"]), **more}),
            (InvalidValue, "does not run in the host", {"info": LlmInfo(tools=["os:getcwd"])}),
        ]
        trees = len(runtime.trees)
        for error, message, fields in wrong:
            with pytest.raises(error, match=message):
                await kind.check(agent_spec(runtime, tmp_path / "ada", **fields))
        assert len(runtime.trees) == trees
    assert path_text.endswith(" me")
    assert int(path_text.split()[0]) != os.getpid()
    assert "ZeroDivisionError" in error_text
    assert skill.endswith("Mind the gap.")
    assert [(each["name"], each["input_schema"]["required"]) for each in listing] == [
        ("where", ["of"]),
        ("fails", []),
        ("Skill", ["skill"]),
    ]


async def test_an_invalid_model_agent_is_refused_by_field(tmp_path: pathlib.Path) -> None:
    """The refusal comes before a tree exists."""
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
        for error, message, fields in wrong:
            with pytest.raises(error, match=message):
                await kind.check(agent_spec(runtime, tmp_path / "ada", **fields))
        with pytest.raises(InvalidValue, match="default"):
            await LlmType().check(agent_spec(runtime, tmp_path / "ada", LlmInfo()))
        assert not runtime.trees
    with pytest.raises(msgspec.ValidationError, match="colour"):
        msgspec.json.decode(b'{"colour": "red"}', type=LlmInfo)


@both
async def test_an_agent_can_work_in_its_image(tmp_path: pathlib.Path, backend: Backend) -> None:
    """The agent reads the files of the image, and cannot write there."""
    script: Script = [
        Call("Glob", {"pattern": "*.py"}),
        Call("Write", {"file_path": "new.py", "content": "x = 1"}),
        "Seen.",
    ]
    more: dict[str, Any] = {"policy": Policy(), "image": image_of(tmp_path / "bundle")}
    (tmp_path / "bundle").chmod(0o555)  # as bundles are kept
    info = LlmInfo(tools=["Glob", "Write"], in_image=True)
    async with AgentRuntime(tmp_path / "work", backend=backend) as runtime:
        async with open_agent(llm(script), agent_spec(runtime, tmp_path / "ada", info, **more)) as agent:
            assert await say(agent, "Look") == "Seen."
            listing, write_result = [each for each in await agent.history() if each["role"] == "tool"]
    (tmp_path / "bundle").chmod(0o755)
    assert "helper.py" in listing["content"].splitlines()
    assert write_result["status"] == "error"
    assert not (tmp_path / "bundle" / "new.py").exists()


async def test_the_offline_model_needs_no_key(tmp_path: pathlib.Path) -> None:
    """The offline model is always available."""
    (tmp_path / "log.txt").write_text("error: timeout of 3000 ms\n")
    info = LlmInfo(model="offline", tools=["*"])
    async with AgentRuntime() as runtime, open_agent(LlmType(), agent_spec(runtime, tmp_path, info)) as agent:
        assert "offline" in (await say(agent, "Which timeout is in the log?")).lower()
        assert runtime.get(agent.run).run.agent.name == "ada", "whoever lists runs tells agents apart by it"


async def test_operations_list_tools_and_set_the_model(tmp_path: pathlib.Path) -> None:
    """The next question goes to the new model. An unknown name changes nothing."""
    kind = LlmType({"one": ScriptedModel(["From one."]), "two": ScriptedModel(["From two."])}, default="one")
    info = LlmInfo(tools=["Read", "Bash"])
    async with AgentRuntime() as runtime, open_agent(kind, agent_spec(runtime, tmp_path, info)) as agent:
        assert [each["name"] for each in await agent.control(ListTools())] == ["Read", "Bash"]
        assert await say(agent, "Who?") == "From one."
        with pytest.raises(Unknown):
            await agent.control(SetModel("nobody:none"))
        assert await agent.control(SetModel("two")) == {"model": "scripted"}
        assert await say(agent, "Who?") == "From two."


async def test_an_operation_compacts_a_conversation(tmp_path: pathlib.Path) -> None:
    """The agent's own model writes the summary. During a turn, the operation is refused and changes nothing."""
    long = [f"{number} " + "word " * 6_000 for number in range(8)]
    script: Script = [*(Say(text, chunks=(text,)) for text in long), "They counted.", Hang(), "On."]
    async with AgentRuntime() as runtime, open_agent(llm(script), agent_spec(runtime, tmp_path, LlmInfo())) as agent:
        for _ in long:
            await say(agent, "Go on")
        before = await agent.history()
        compact_answer = await agent.control(Compact())
        after = await agent.history()
        assert compact_answer == {"compacted": True, "messages": len(after)}
        assert len(after) < len(before)
        assert after[-1] == before[-1]
        assert any("They counted." in each["content"] for each in after)
        async with begin_turn(agent, "Hang") as answer:
            async for _ in answer:
                with pytest.raises(BusyError):
                    await agent.control(Compact())
                break
        assert await say(agent, "Go") == "On."


async def test_mail_wakes_an_idle_agent(tmp_path: pathlib.Path) -> None:
    """The history has the agent's answer to the mail. A closed agent refuses mail."""
    kind = llm(["Hello.", "I have read it.", "Yes."])
    async with AgentRuntime() as runtime, open_agent(kind, agent_spec(runtime, tmp_path, LlmInfo())) as agent:
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
async def test_mail_wakes_an_agent_before_its_first_turn(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """An agent without a turn is idle, too."""
    kind = llm(["I have read it.", "Hello."])
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", LlmInfo(), policy=policy_for(backend))
        async with open_agent(kind, start) as agent:
            await agent.mail("a letter")
            await eventually(lambda: runtime.get(agent.run).run.state == "idle")
            assert await say(agent, "Hi") == "Hello."
            texts = [each["content"] for each in await agent.history()]
    assert texts == ["a letter", "I have read it.", "Hi", "Hello."]


async def test_an_agent_reports_the_end_of_its_tree(tmp_path: pathlib.Path) -> None:
    """`ended` has the error, and the agent takes no more turns."""
    kind = llm(["Hello.", "never said"])
    async with AgentRuntime() as runtime:
        agent = await kind.open(agent_spec(runtime, tmp_path, LlmInfo()))
        await say(agent, "Hi")
        await runtime.get(agent.run).cancel("its budget is wanted elsewhere")
        error = await agent.end
        assert error is not None
        assert "wanted elsewhere" in error.message
        with pytest.raises(RametError, match="ended"):
            await say(agent, "Hi")
        await agent.close("over")


@pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])
async def test_another_server_resumes_the_conversation(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """The run keeps its history, folder, environment, limits and usage."""
    info = LlmInfo(tools=["Bash"], model="one")
    policy = policy_for(backend, secrets={"key": "a-long-secret"}, env_vars={"MOOD": "bright"})
    more: dict[str, Any] = {"policy": policy, "limits": Limits(model_calls=5)}
    first = LlmType({"one": ScriptedModel([Call("Bash", {"command": "echo kept > file"}), "Written."])})
    async with lost_runtime(tmp_path, backend) as runtime:
        agent = await first.open(agent_spec(runtime, tmp_path / "ada", info, **more))
        assert await say(agent, "Write it down") == "Written."
        run, spent = agent.run, dict(agent.usage())

    reads = "cat file; echo $MOOD; cat /run/secrets/key" if backend else "cat file"
    second = LlmType({"one": ScriptedModel([Call("Bash", {"command": reads}), "It says kept.", "too much"])})
    async with new_runtime(tmp_path, backend) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", info, run=run, **more)
        async with open_agent(second, start) as second_agent:
            assert (second_agent.run, second_agent.usage()) == (run, spent)
            assert await say(second_agent, "What does it say?") == "It says kept."
            with pytest.raises(TaskFailed, match="budget"):
                await say(second_agent, "On")
            history = await second_agent.history()
    users = [each["content"] for each in history if each["role"] == "user"]
    assert users[:2] == ["Write it down", "What does it say?"]
    [_, file_text] = [each["content"] for each in history if each["role"] == "tool"]
    assert file_text.startswith("kept\nbright\na-long-secret" if backend else "kept\n")


async def test_another_server_resumes_after_an_orderly_stop(tmp_path: pathlib.Path) -> None:
    """The tree was closed with its server. Another server has the history and the remaining limits."""
    run, more = "", {"limits": Limits(model_calls=4)}
    for number, word in enumerate(("one", "two", "three")):
        async with new_runtime(tmp_path, None) as runtime:
            start = agent_spec(runtime, tmp_path / word, LlmInfo(), run=run, **more)
            async with open_agent(llm([word, "the last word"]), start) as agent:
                assert agent.usage()["model_calls"] == number
                assert await say(agent, f"say {word}") == word
                assert len(await agent.history()) == 2 * (number + 1)
                if number == 2:
                    assert await failure_of(agent, "On") == "budget_exhausted"
                run = agent.run


async def test_a_changed_model_survives_a_restart(tmp_path: pathlib.Path) -> None:
    """The operation `set_model` outlives the process that received it."""
    kind = LlmType({"one": ScriptedModel(["From one."]), "two": ScriptedModel(["From two."])}, default="one")
    async with lost_runtime(tmp_path, None) as runtime:
        agent = await kind.open(agent_spec(runtime, tmp_path / "ada", LlmInfo()))
        assert await say(agent, "Who?") == "From one."
        await agent.control(SetModel("two"))
        run = agent.run
    async with new_runtime(tmp_path, None) as runtime:
        async with open_agent(kind, agent_spec(runtime, tmp_path / "ada", LlmInfo(), run=run)) as second_agent:
            assert await say(second_agent, "Who?") == "From two."


async def test_a_changed_model_is_checked_against_the_rules_of_the_next_server(tmp_path: pathlib.Path) -> None:
    """An operator who takes a model away has taken it from agents, too, that chose it before."""
    kind = LlmType({"one": ScriptedModel(["From one."]), "two": ScriptedModel(["From two."])}, default="one")
    async with lost_runtime(tmp_path, None) as runtime:
        agent = await kind.open(agent_spec(runtime, tmp_path / "ada", LlmInfo()))
        assert await say(agent, "Who?") == "From one."
        await agent.control(SetModel("two"))
        run = agent.run
    async with new_runtime(tmp_path, None) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", LlmInfo(), run=run, rules=Rules(models=["one"]))
        with pytest.raises(InvalidValue, match=r"a model of rules\.models: one"):
            await kind.open(start)


async def test_a_turn_of_a_killed_server_is_completed(tmp_path: pathlib.Path) -> None:
    """The next turn waits for the resumed one, and is not refused."""
    async with lost_runtime(tmp_path, None) as runtime:
        agent = await llm([Hang()]).open(agent_spec(runtime, tmp_path / "ada", LlmInfo()))
        answer = agent.turn(request_body("First"), "openai")
        await anext(answer)
        run = agent.run
        await eventually(lambda: runtime.get(run).run.context.history)
    await read_to_end(answer)
    async with new_runtime(tmp_path, None) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", LlmInfo(), run=run)
        async with open_agent(llm(["The first.", "The second."]), start) as second_agent:
            assert await say(second_agent, "Second") == "The second."
            texts = [each["content"] for each in await second_agent.history()]
    assert texts == ["First", "The first.", "Second", "The second."]


async def test_a_resumed_turn_has_the_bundles_loaded_before_the_kill(tmp_path: pathlib.Path) -> None:
    """Code, tools and skills are there from the first question on, although the recorded spawn has none."""
    kit = {
        "bundle.toml": b'tools = ["kit:twice"]',
        "kit.py": b"def twice(text: str) -> str:\n    'Twice.'\n    return 2 * text",
    }
    async with PackagingService(tmp_path / "packaging") as packaging:
        bundle = (await packaging.upload(tar(kit))).id

        def loaded_bundles(runtime: AgentRuntime, *bundle: str) -> AgentImportDir:
            return AgentImportDir("a-1", "", lambda: runtime.sandboxes.folders, packaging, PLAIN, bundle)

        async with lost_runtime(tmp_path, "local") as runtime:
            more: dict[str, Any] = {"policy": Policy(), "loaded_bundles": loaded_bundles(runtime)}
            await more["loaded_bundles"].open()
            agent = await llm(["Ready.", Hang()]).open(agent_spec(runtime, tmp_path / "ada", LlmInfo(), **more))
            assert await say(agent, "Hello") == "Ready."
            await agent.control(LoadBundle(bundle))
            answer = agent.turn(request_body("First"), "openai")
            await anext(answer)
            run = agent.run
            await eventually(lambda: len(runtime.get(run).run.context.history) > 2)
        await read_to_end(answer)
        model = ScriptedModel([Call("twice", {"text": "ab"}), "The first.", "The second."])
        async with new_runtime(tmp_path, "local") as runtime:
            more["loaded_bundles"] = loaded_bundles(runtime, bundle)
            await more["loaded_bundles"].open()
            start = agent_spec(runtime, tmp_path / "ada", LlmInfo(), run=run, **more)
            async with open_agent(LlmType({"scripted": model}, default="scripted"), start) as second_agent:
                assert await say(second_agent, "Second") == "The second."
                history = await second_agent.history()
    assert [each["content"] for each in history if each["role"] == "tool"] == ["abab"]


# ---- a function


def function(name: str, **more: Any) -> dict[str, Any]:
    """Return the arguments that open an agent of one of these functions."""
    return {"info": FunctionInfo(function=f"{FUNCTIONS}:{name}"), **more}


OURS = FunctionType(allowed=["tests.trips"])


async def test_a_function_receives_the_history_of_earlier_turns(tmp_path: pathlib.Path) -> None:
    """Each turn calls the function once, in a tree of its own."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        start = agent_spec(runtime, tmp_path / "ada", **function("remembers", policy=Policy()))
        async with open_agent(OURS, start) as agent:
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
async def test_the_yielded_values_of_a_function_are_streamed(
    tmp_path: pathlib.Path, backend: Backend | None, name: str
) -> None:
    """The function may be synchronous or not, in the host or in a sandbox."""
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", **function(name, policy=policy_for(backend)))
        async with open_agent(OURS, start) as agent:
            assert await say(agent, "a b c") == "abc"


@both
async def test_the_prints_of_a_sandboxed_function_are_streamed(tmp_path: pathlib.Path, backend: Backend) -> None:
    """The returned value follows, as JSON."""
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", **function("prints", policy=Policy()))
        async with open_agent(OURS, start) as agent:
            assert await say(agent, "a b") == 'a\nb\n{"words":2}'


@pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])
async def test_a_failed_turn_of_a_function_raises_a_typed_error(
    tmp_path: pathlib.Path, backend: Backend | None
) -> None:
    """The error comes after the text before it, and the next turn works."""
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", **function("breaks", policy=policy_for(backend)))
        async with open_agent(OURS, start) as agent:
            for _ in range(2):
                with pytest.raises(TaskFailed, match="ValueError: not today"):
                    await say(agent, "today")
            contents = [each["content"] for each in await agent.history()]
    assert contents == ["today", "so far\n" if backend else ""] * 2


@pytest.mark.parametrize(("backend", "name"), [(None, "waits"), ("local", "sleeps")])
async def test_a_function_can_be_interrupted(tmp_path: pathlib.Path, backend: Backend | None, name: str) -> None:
    """The process ends, and the history keeps the function's text."""
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", **function(name, policy=policy_for(backend)))
        async with open_agent(OURS, start) as agent:
            with pytest.raises(Aborted, match="interrupted"):
                await interrupt_turn_at(agent, "begun")
            async with begin_turn(agent, "x") as answer:
                async for chunk in answer:
                    if "begun" in text_of([chunk]):
                        break
            assert [each["content"].strip() for each in await agent.history()] == ["Go", "begun", "x", "begun"]
            assert not runtime.trees


@both
async def test_a_function_of_an_image_runs_only_in_a_sandbox(tmp_path: pathlib.Path, backend: Backend) -> None:
    """The host reads its code, and only the sandbox runs it."""
    image = image_of(tmp_path / "bundle")
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        for info, expected in (("helper:answer", "abab"), ("kit.words:twice", "abab")):
            start = agent_spec(runtime, tmp_path / "ada", FunctionInfo(function=info), image=image, policy=Policy())
            async with open_agent(FunctionType(), start) as agent:
                assert await say(agent, "ab") == expected


@pytest.mark.parametrize(
    ("info", "message"),
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
async def test_an_invalid_function_reference_is_refused(tmp_path: pathlib.Path, info: str, message: str) -> None:
    """The error has the field `spawn_info.function`, and comes before a tree exists."""
    image = image_of(tmp_path / "bundle")
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        with pytest.raises(InvalidValue, match=message) as refusal:
            await OURS.check(
                agent_spec(runtime, tmp_path / "ada", FunctionInfo(function=info), image=image, policy=Policy())
            )
        assert refusal.value.field == "spawn_info.function"


@pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])
async def test_another_server_knows_the_turns_of_a_function(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """The history has every finished turn, also if the agent's folder is another one."""
    policy = policy_for(backend)
    async with lost_runtime(tmp_path, backend) as runtime:
        agent = await OURS.open(agent_spec(runtime, tmp_path / "ada", **function("remembers", policy=policy)))
        await say(agent, "one")
        run = agent.run
    async with new_runtime(tmp_path, backend) as runtime:
        start = agent_spec(runtime, tmp_path / "eve", **function("remembers", policy=policy, run=run))
        async with open_agent(OURS, start) as second_agent:
            assert await say(second_agent, "two") == "user: one | assistant: one | two"
            assert len(await second_agent.history()) == 4


@pytest.mark.parametrize(("backend", "name"), [(None, "waits"), ("local", "sleeps")])
async def test_a_function_interrupted_by_a_kill_is_called_again(
    tmp_path: pathlib.Path, backend: Backend | None, name: str
) -> None:
    """The turn and the run stay the same, also without a reader, and can be interrupted."""
    start = function(name, policy=policy_for(backend))
    async with lost_runtime(tmp_path, backend) as runtime:
        agent = await OURS.open(agent_spec(runtime, tmp_path / "ada", **start))
        answer = agent.turn(request_body("x"), "openai")
        while "begun" not in text_of([await anext(answer)]):
            pass
        run = agent.run
    await read_to_end(answer)
    async with new_runtime(tmp_path, backend) as runtime:
        late = ConversationLog(await runtime.open_store(), "a-1")
        await late.read()
        second_agent = await OURS.open(agent_spec(runtime, tmp_path / "ada", **start, run=run))
        assert isinstance(second_agent, FunctionAgent)
        assert late.active_turn is not None
        with pytest.raises(TakenOver):
            await late.write(late.active_turn)
        assert (second_agent.turns_taken, second_agent.run, [*runtime.trees]) == (1, run, [run])
        assert await second_agent.history() == []
        await eventually(lambda: second_agent._call is not None and second_agent._call._texts)
        await second_agent.interrupt()
        assert (await runtime.result(run)).status == "cancelled"
        assert [each["content"].strip() for each in await second_agent.history()] == ["x", "begun"]
        await second_agent.close("it is over")


@asynccontextmanager
async def killed_after_the_call(
    folder: pathlib.Path, name: str, policy: Policy | None
) -> AsyncIterator[tuple[FunctionAgent, str]]:
    """Yield an agent, and its run, as a kernel leaves them that was killed just after the call ended."""
    async with AgentRuntime(folder, backend="local") as runtime:
        run, turns = runtime.mint(), ConversationLog(await runtime.open_store(), "a-1")
        await turns.write(ConversationTurn(number=1, run=run, asked="a b"))
        served_function = getattr(served_functions, name)
        args: tuple[Any, ...] = (served_function, "a b", []) if policy is not None else ("a b",)
        call = await runtime.spawn(call_inside if policy else served_function, args=args, policy=policy, run=run)
        assert (await call.result()).status == "completed"
        agent = await OURS.open(agent_spec(runtime, folder / "ada", **function(name, policy=policy)))
        assert isinstance(agent, FunctionAgent)
        yield agent, run
        await agent.close("it is over")


async def test_a_function_that_ended_before_a_kill_is_not_called_again(tmp_path: pathlib.Path) -> None:
    """The reader gets the missing part of the answer once, because the prints are recorded."""
    async with killed_after_the_call(tmp_path, "prints", Policy()) as (agent, run):
        writer = format_of("openai").Writer(run, "prints", 0)
        chunks = [*writer.begin(), *writer.text("a\n")]
        rest = [chunk async for chunk in agent.resume_turn(1, b"", "openai", chunks)]
        assert text_of(rest) == 'b\n{"words":2}'
        assert [chunk async for chunk in agent.resume_turn(1, b"", "openai", [*chunks, *rest[:-1]])] == rest[-1:]
        assert [each["content"] for each in await agent.history()] == ["a b", 'a\nb\n{"words":2}']


async def test_the_missing_output_of_a_host_function_is_announced_after_a_kill(
    tmp_path: pathlib.Path,
) -> None:
    """The journal has only the returned value, so the reader gets a note and that value."""
    async with killed_after_the_call(tmp_path, "shout", None) as (agent, run):
        writer = format_of("openai").Writer(run, "shout", 0)
        chunks = [*writer.begin(), *writer.text("so far")]
        rest = [chunk async for chunk in agent.resume_turn(1, b"", "openai", chunks)]
        assert text_of(rest) == f"\n\n{MAY_MISS}\nA B"
        assert [each["content"] for each in await agent.history()] == ["a b", f"so far{text_of(rest)}"]


async def test_a_turn_of_a_function_that_cannot_resume_ends_with_the_reason(tmp_path: pathlib.Path) -> None:
    """The secret of its policy is missing. The agent takes the next turn."""
    async with lost_runtime(tmp_path, "local") as runtime:
        policy = Policy(secrets={"KEY": "a secret"})
        agent = await OURS.open(agent_spec(runtime, tmp_path / "ada", **function("sleeps", policy=policy)))
        answer = agent.turn(request_body("x"), "openai")
        chunks = [await anext(answer)]
        while "begun" not in text_of(chunks):
            chunks.append(await anext(answer))
    await read_to_end(answer)
    async with new_runtime(tmp_path, "local") as runtime:
        start = agent_spec(runtime, tmp_path / "ada", **function("shout", policy=Policy()))
        async with open_agent(OURS, start) as second_agent:
            assert isinstance(second_agent, FunctionAgent)
            with pytest.raises(Aborted, match="the turn cannot be resumed: the journal names secret 'KEY'"):
                _ = [chunk async for chunk in second_agent.resume_turn(1, b"", "openai", chunks)]
            assert await say(second_agent, "on") == "ON"
