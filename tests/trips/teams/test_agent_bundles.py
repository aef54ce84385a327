"""AC-S3-7: bundles are loaded into living agents and unloaded again. Their tools and skills reach the model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

import pytest
from langchain_core.messages import BaseMessage, SystemMessage, ToolMessage

import ramet
from ramet import Policy, ScriptedModel
from ramet.core.errors import InvalidValue, NotYours, RametError, Unknown
from ramet.models.scripted.dialogue import Call, Say, Script, Step
from ramet.services.agent_types.function.type import FunctionType
from ramet.services.agent_types.llm.type import LlmType
from ramet.services.client.client import Client
from ramet.services.contract import AgentType, SpawnedAgent
from ramet.services.errors import InUse
from ramet.services.packaging.bundles.requirements import Installs
from ramet.services.server.server import Server
from tests.support.tars import member, tar
from tests.support.waiting import eventually

Backend = Literal["bwrap", "local"]
both = pytest.mark.parametrize("backend", ["bwrap", "local"])

COUNT = '''
from typing import Annotated, Literal


def count_words(text: Annotated[str, "what is counted"], least: int = 1) -> int:
    """How many words a text has, of at least so many letters."""
    return sum(len(word) >= least for word in text.split())


async def shout(text: str) -> str:
    """The text, louder."""
    return text.upper()
'''
KIT = {
    "textkit.py": COUNT.encode(),
    "deep/er/thing.txt": b"deep",
    "skills/counting/SKILL.md": b"---\ndescription: How to count\n---\nOne, two, three.\n",
    "bundle.toml": b'tools = ["textkit:count_words", "textkit:shout"]\nskills = ["counting"]\n',
}
PLAIN_CODE = {"plain.py": b"def word():\n    return 'plain'\n", "deep/other.txt": b"other"}
IMPORTS_LATER = b"""
import time

def answer(text):
    print("called", flush=True)
    while True:
        try:
            from plain import word
            return word()
        except ImportError:
            time.sleep(0.01)
"""


class ServerWithModel(NamedTuple):
    """A server, its client, and the model that its agents ask."""

    server: Server
    client: Client
    model: ScriptedModel

    async def spawn(self, kind: str, info: Mapping[str, Any], **more: Any) -> SpawnedAgent:
        """Spawn an agent in the team `crew`, in a sandbox by default."""
        with contextlib.suppress(InvalidValue):
            await self.client.create_team({"agents": 8}, name="crew")
        return await self.client.spawn_agent("crew", f"{kind}-1", kind, info, **{"policy": Policy(), **more})

    async def upload(self, files: Mapping[str, bytes]) -> str:
        """Upload a bundle, and return its id."""
        return (await self.client.upload_bundle(tar(files))).id

    async def image(self, files: Mapping[str, bytes]) -> str:
        """Create an image of one bundle, and return its id."""
        job = await self.client.create_image([await self.upload(files)])
        while (job := await self.client.job(job.id)).state != "done":
            assert job.error is None, job.error
            await asyncio.sleep(0.002)
        return job.id

    async def change(self, agent: SpawnedAgent, operation: str, bundle: str) -> dict[str, Any]:
        """Load or unload a bundle."""
        message = {"@type": f"{operation}_bundle", "bundle": bundle}
        change_answer: dict[str, Any] = await self.client.control(agent.agent.id, message, key=agent.nonce)
        return change_answer

    async def tools(self, agent: SpawnedAgent) -> dict[str, Any]:
        """Return the tools that the agent lists, by name."""
        listing = await self.client.control(agent.agent.id, {"@type": "list_tools"}, key=agent.nonce)
        assert isinstance(listing, list)
        return {each["name"]: each for each in listing}

    async def say(self, agent: SpawnedAgent, text: str) -> str:
        """Take one turn, and return its text."""
        body = json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode()
        response = await self.client.say(agent.agent.id, body, format="openai", key=agent.nonce)
        chunks = [json.loads(line) for line in response.replace(b"}{", b"}\n{").splitlines()]
        return "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"])

    async def results(self, agent: SpawnedAgent) -> list[str]:
        """Return the results of the agent's tool calls."""
        history = await self.client.history(agent.agent.id, key=agent.nonce)
        return [each["content"] for each in history if each["role"] == "tool"]

    @property
    def import_dir_names(self) -> list[str]:
        """The names of the agents' import folders on disk."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(each.name for each in (self.server.folder / "runs" / ".shelves").iterdir())
        return []


@asynccontextmanager
async def serving_model(folder: pathlib.Path, backend: Backend, script: Script = ()) -> AsyncIterator[ServerWithModel]:
    """Start a server whose agents ask a scripted model."""
    model = ScriptedModel(script)
    types: dict[str, AgentType] = {"llm": LlmType({"scripted": model}, default="scripted"), "function": FunctionType()}
    async with (
        Server(folder, backend=backend, types=types, installs=Installs()) as server,
        ramet.connect(server.listen_address) as client,
    ):
        yield ServerWithModel(server, client, model)


def newest_request(model: ScriptedModel) -> tuple[str, set[str]]:
    """Return the system text and the tools of the newest model request."""
    newest = model.requests[-1]
    system = "\n".join(str(each.content) for each in newest.messages if isinstance(each, SystemMessage))
    return system, set(newest.tools)


async def test_an_image_or_bundle_in_use_is_not_deleted(folder: pathlib.Path) -> None:
    """The refusal names the image or the agent that uses it.

    A key of a team cannot delete, and unused ones can be deleted.
    """
    async with serving_model(folder, "local") as server:
        base, plain = await server.upload({"base.py": b"x = 1\n"}), await server.upload(PLAIN_CODE)
        image = await server.image({"base.py": b"x = 1\n"})
        agent = await server.spawn("llm", {}, image=image)
        await server.change(agent, "load", plain)
        team = await server.client.create_team({"agents": 1}, name="other")
        for kind, id, users in (
            ("bundle", base, (image,)),
            ("bundle", plain, ("crew/llm-1",)),
            ("image", image, ("crew/llm-1",)),
        ):
            delete = server.client.delete_bundle if kind == "bundle" else server.client.delete_image
            with pytest.raises(InUse) as refusal:
                await delete(id)
            assert (refusal.value.kind, refusal.value.name, tuple(refusal.value.users)) == (kind, id, users)
            with pytest.raises(NotYours):
                await delete(id, key=team.key)
        assert {each.id for each in await server.client.list_bundles(key=team.key)} == {base, plain}

        await server.change(agent, "unload", plain)
        await server.client.delete_bundle(plain)
        await server.client.kill_agent(agent.agent.id, key=agent.nonce)
        await server.client.delete_image(image)
        await server.client.delete_bundle(base)
        assert (await server.client.list_bundles(), await server.client.list_images()) == ([], [])
        assert list((folder / ".ramet" / "packaging" / "bundles").iterdir()) == []
        for delete in (server.client.delete_bundle, server.client.delete_image):
            for id in (base, "0" * 64):
                with pytest.raises(Unknown):
                    await delete(id)
        assert await server.upload(PLAIN_CODE) == plain


def step_from_last_result(say: Callable[[str], Step]) -> Callable[[Sequence[BaseMessage]], Step]:
    """Return a step that depends on the last tool result."""
    return lambda messages: say(next(str(each.content) for each in reversed(messages) if isinstance(each, ToolMessage)))


IMPORTED = "import textkit; print(textkit.count_words('a b'), end='')"
#: What a command sees that waits inside for what the host loads, and then tries to change it.
WAITS = f"""
echo begun > begun; until python3 -c "{IMPORTED}" 2>/dev/null; do sleep 0.02; done
cd "$(python3 -c 'import os, textkit; print(os.path.dirname(textkit.__file__))')" && cat deep/er/thing.txt
(echo x > new || echo x >> textkit.py || rm -f textkit.py || mv deep other) 2>/dev/null && echo CHANGED || echo refused
"""
#: Likewise, until it is not there any more.
UNTIL_GONE = f'echo it > imported; while python3 -c "{IMPORTED}" >/dev/null 2>&1; do sleep 0.02; done; echo gone'


@both
async def test_a_bundle_is_loaded_into_an_active_agent_and_unloaded(folder: pathlib.Path, backend: Backend) -> None:
    """AC-S3-7: the active sandbox can import it at once.

    Its tools and skills come with the next turn, also on a later server.
    """
    script: Script = [
        Call("Bash", {"command": WAITS}), "Waited.",
        Call("count_words", {"text": "one two three", "least": 4}), step_from_last_result(Say),
        [Call("Skill", {"skill": "counting"}), Call("shout", {"text": "ah"}), Call("count_words", {"text": 5})],
        "Tried.",
    ]  # fmt: skip
    async with serving_model(folder, backend, script) as server:
        kit, agent = await server.upload(KIT), await server.spawn("llm", {"tools": ["Bash"]})
        assert set(await server.tools(agent)) == {"Bash"}
        turn = asyncio.create_task(server.say(agent, "Wait"))
        await eventually(lambda: list((folder / ".ramet" / "runs").glob("*/workspace/begun")))
        load_answer = await server.change(agent, "load", kit)
        assert load_answer == {"bundles": [kit], "tools": ["count_words", "shout"], "skills": ["counting"]}
        assert await turn == "Waited."
        assert newest_request(server.model)[1] == {"Bash"}  # The turn under way goes on with what it began with.
        assert (await server.results(agent))[0].startswith("2deeprefused\n")

        assert await server.say(agent, "Count") == "1"
        system, tools = newest_request(server.model)
        assert "- counting: How to count" in system
        assert "One, two, three." not in system
        assert tools == {"Bash", "Skill", "count_words", "shout"}
        assert (await server.tools(agent))["count_words"] == {
            "name": "count_words",
            "description": "How many words a text has, of at least so many letters.",
            "input_schema": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "what is counted"},
                    "least": {"type": "integer", "default": 1},
                },
                "required": ["text"],
                "additionalProperties": False,
            },
        }
        assert await server.say(agent, "Try") == "Tried."
        skill, shouted, wrong = (await server.results(agent))[2:]
        assert skill.endswith("One, two, three.")
        assert shouted == "AH"
        assert wrong.startswith("count_words was called wrongly. text:")

    second_script: Script = [
        Call("Bash", {"command": f"python3 -c \"{IMPORTED}\""}), Call("count_words", {"text": "one"}),
        Call("Bash", {"command": UNTIL_GONE}), Call("count_words", {"text": "one two"}), "Still here.",
        Call("Bash", {"command": f"python3 -c \"{IMPORTED}\""}), "Gone.",
    ]  # fmt: skip
    async with serving_model(folder, backend, second_script) as server:
        info = await server.client.get_agent(agent.agent.id, key=agent.nonce)
        assert (info.bundles, info.state) == ([kit], "idle")
        turn = asyncio.create_task(server.say(agent, "Again"))
        await eventually(lambda: list((folder / ".ramet" / "runs").glob("*/workspace/imported")))
        assert await server.change(agent, "unload", kit) == {"bundles": []}
        assert await turn == "Still here."
        # What was imported stays imported, and the turn goes on with what it began with.
        assert (await server.results(agent))[-4:] == ["2\n[exit code 0]", "1", "gone\n[exit code 0]", "2"]
        assert "- counting: How to count" in newest_request(server.model)[0]

        assert await server.say(agent, "And now") == "Gone."
        assert "ModuleNotFoundError" in (await server.results(agent))[-1]
        system, tools = newest_request(server.model)
        assert ("How to count" in system, tools, set(await server.tools(agent))) == (False, {"Bash"}, {"Bash"})
        assert server.import_dir_names == [agent.agent.id]
        await server.client.kill_agent(agent.agent.id, key=agent.nonce)
        assert server.import_dir_names == []


@both
async def test_an_active_function_can_import_a_bundle_loaded_during_its_call(
    folder: pathlib.Path, backend: Backend
) -> None:
    """AC-S3-7: an import that failed before succeeds in the same process.

    Unloading another bundle keeps these files.
    """
    async with serving_model(folder, backend) as server:
        image, plain = await server.image({"later.py": IMPORTS_LATER}), await server.upload(PLAIN_CODE)
        agent = await server.spawn("function", {"function": "later:answer"}, image=image)
        kit = await server.upload({**KIT, "bundle.toml": b""})
        assert await server.change(agent, "load", kit) == {"bundles": [kit], "tools": [], "skills": []}
        stream = server.client.turn(
            agent.agent.id, b'{"messages": [{"role": "user", "content": "Go"}]}', key=agent.nonce
        )
        async with contextlib.aclosing(stream) as chunks:
            bodies = [chunk.body async for chunk in _read_until(chunks, b"called")]
            await server.change(agent, "load", plain)
            bodies += [chunk.body async for chunk in chunks]
        assert b"plain" in b"".join(bodies)
        import_dir = folder / ".ramet" / "runs" / ".shelves" / agent.agent.id
        assert {str(each.relative_to(import_dir)) for each in import_dir.rglob("*.txt")} == {
            "deep/er/thing.txt",
            "deep/other.txt",
        }
        await server.change(agent, "unload", kit)
        assert {str(each.relative_to(import_dir)) for each in import_dir.rglob("*")} == {
            "plain.py",
            "deep",
            "deep/other.txt",
        }


async def _read_until(chunks: AsyncIterator[Any], word: bytes) -> AsyncIterator[Any]:
    async for chunk in chunks:
        yield chunk
        if word in chunk.body:
            return


async def test_an_invalid_bundle_is_refused_and_changes_nothing(folder: pathlib.Path) -> None:
    """AC-S3-7: a bundle may be unknown, loaded already, damaged, or in conflict with a module.

    An agent in the host takes none.
    """
    async with serving_model(folder, "local") as server:
        base = {"base.py": b"def shout():\n    '''Loud.'''\n", "bundle.toml": b'tools = ["base:shout"]'}
        agent = await server.spawn("llm", {}, image=await server.image(base))
        plain = await server.upload(PLAIN_CODE)
        await server.change(agent, "load", plain)
        before = await server.tools(agent)
        damaged = await server.upload({"soft.py": b"x = 1"})
        path = folder / ".ramet" / "packaging" / "bundles" / damaged / "soft.py"
        path.chmod(0o644)
        path.write_bytes(b"x = 2")
        refusals: list[tuple[type[RametError], str, str]] = [
            (Unknown, "bundle", "0" * 64),
            (Unknown, "bundle", "../../bundles"),
            (InvalidValue, "not loaded yet", plain),
            (InvalidValue, "json", await server.upload({"json.py": b""})),
            (InvalidValue, "ramet", await server.upload({"ramet/__init__.py": b""})),
            (InvalidValue, "base", await server.upload({"base.py": b"other"})),
            (InvalidValue, "plain", await server.upload({"plain/__init__.py": b""})),
            (InvalidValue, "requirements", await server.upload({"requirements.txt": b"left-pad", "a.py": b""})),
            (InvalidValue, "shout", await server.upload({**KIT, "textkit.py": COUNT.encode() + b"\n"})),
            (RametError, "the request is not the cause", damaged),
        ]
        for error, message, bundle in refusals:
            with pytest.raises(error, match=message):
                await server.change(agent, "load", bundle)
        with pytest.raises(Unknown, match="loaded bundle"):
            await server.change(agent, "unload", "0" * 64)
        with pytest.raises(InvalidValue, match=r"\.\."):
            await server.client.upload_bundle(member(b"../out.py", b"x") + bytes(1024))
        assert await server.tools(agent) == before
        import_dir = folder / ".ramet" / "runs" / ".shelves" / agent.agent.id
        assert {each.name for each in import_dir.rglob("*")} == {"plain.py", "deep", "other.txt"}
        assert list((await server.client.get_agent(agent.agent.id, key=agent.nonce)).bundles) == [plain]

        hosted = await server.client.spawn_agent("crew", "hosted", "llm", {})
        with pytest.raises(InvalidValue, match="sandbox"):
            await server.change(hosted, "load", plain)
