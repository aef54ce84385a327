"""Each program answers one prompt against a scripted model server, and ends with what the server refuses."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agents.conftest import Run
from tests.agents.scripts import ANSWERS, TITLES, each, turns
from tests.support.agent_programs import KEY, Program
from tests.support.providers import Fail, Script, provider


@each(ANSWERS)
async def test_a_prompt_is_answered_with_one_request(program: Program, run: Run, agent_home: Path) -> None:
    """A program asks the model that it is told, once, with the key that it is given, and says the reply."""
    script: Script = {**TITLES, "": ["The answer is forty-two."]}
    async with provider(script) as server:
        env = program.prepare(agent_home, server.url)

        ended = await run([*program.command, *program.prompt("What is the answer?")], env)

    assert (ended.code, ended.stdout.strip()) == (0, "The answer is forty-two."), ended
    (asked,) = server.requests
    assert "What is the answer?" in json.dumps(asked.body)
    assert program.model in asked.path + str(asked.body.get("model"))
    assert KEY in json.dumps(asked.headers)


@each(ANSWERS)
async def test_a_program_ends_at_the_first_refusal(program: Program, run: Run, agent_home: Path) -> None:
    """Status 402 is no reason for a program to ask again."""
    async with provider(lambda _: Fail(402)) as server:
        server.failure_headers = {"x-should-retry": "false"}
        env = program.prepare(agent_home, server.url)

        ended = await run([*program.command, *program.prompt("What is the answer?")], env)

    assert ended.code == 1, ended
    assert len(server.requests) == len(turns(server.requests)) == 1
