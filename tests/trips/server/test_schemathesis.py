"""Schemathesis reads the OpenAPI document and sends allowed and forbidden requests.

No answer contradicts the document.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pathlib
import sys
from typing import Any

import pytest

from ramet.services.http.routes.table import OPERATIONS
from ramet.services.turns.queue import TurnLimits
from tests.support import schemathesis_hooks
from tests.support.echo_agents import EchoType
from tests.support.parrot_agents import ParrotType
from tests.support.serving import EchoServer, serving
from tests.trips.agents import scheduled

#: Not `ignored_auth`: a key that opens nothing is told what a foreign one is told, that there is nothing (404).
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "positive_data_acceptance",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
)
#: Of requests that the document allows: a value may still be none here (422; 400 for clients of models), a turn over
#: (410), a queue full (429).
REFUSED = ["2xx", "400", "401", "403", "404", "409", "410", "422", "429"]
#: The document, which it reads before all else; and streams without an end, before which it has read nothing.
UNASKED = ("openapi", "changes", "follow_passages")
CHAT = ("chat_completions", "messages", "models")


async def create_targets(echo_server: EchoServer) -> dict[str, dict[str, str]]:
    """Create the agents, teams and schedules that operations need, and return the ids for each operation."""
    talker, over, ringed, victim = [
        (await echo_server.agent(name=name))[0] for name in ("talker", "over", "ringed", "victim")
    ]
    response = await echo_server.ask(
        "POST", f"/v1/agents/{talker}/turns", echo_server.server.operator, content=b"one two"
    )
    await echo_server.ask(
        "POST", f"/v1/agents/{over}/turns", echo_server.server.operator, content=b"die"
    )  # Its events end.
    ended_run = await echo_server.server.runtime.spawn(scheduled.note)  # So do its.
    await ended_run.result()
    path_values = {"run": ended_run.id, "schedule": "daily", "policy": "house"}
    daily = {"agent": f"{scheduled.__name__}:note", "every_s": 86_400, "name": "daily"}
    await echo_server.ask("POST", "/v1/schedules", echo_server.server.operator, json=daily)
    policy_body = {"policy": {"otherwise": "ask"}, "expected": 0}
    await echo_server.ask("POST", "/v1/safety/policies/house", echo_server.server.operator, json=policy_body)
    talking = ("get_agent", "turn", "read_turn", "interrupt", "control", "history", "mail")
    return {
        **{
            each.endpoint.id: {name: path_values[name]}
            for each in OPERATIONS
            for name in path_values
            if f"{{{name}}}" in each.endpoint.path
        },
        **{operation: {"agent": talker} for operation in talking},
        **{operation: {"agent": ringed} for operation in ("delegate", "revoke", "rotate")},
        "read_turn": {"agent": talker, "turn": response.headers["ramet-turn"]},
        "events": {"agent": over},
        "kill_agent": {"agent": victim},
        "get_team": {"team": (await echo_server.team())[0]},
        "delete_team": {"team": (await echo_server.team())[0]},
    }


async def settings_text(echo_server: EchoServer) -> str:
    """Return schemathesis' settings: the known ids, and the key of each operation."""
    _, chat = await echo_server.agent(name="chat", agent_type="parrot")
    lines = [
        f"hooks = {json.dumps(schemathesis_hooks.__file__)}",
        f"checks.positive_data_acceptance.expected-statuses = {json.dumps(REFUSED)}",
        'phases.coverage.unexpected-methods = ["PATCH"]',
    ]
    for operation, names in (await create_targets(echo_server)).items():
        lines += ["[[operations]]", f'include-operation-id = "{operation}"']
        lines += [f'parameters."path.{name}" = "{value}"' for name, value in names.items()]
    for operation in CHAT:
        lines += ["[[operations]]", f'include-operation-id = "{operation}"']
        lines += [f'headers = {{ Authorization = "Bearer {chat}" }}']
    return "\n".join(lines)


async def run_schemathesis(echo_server: EchoServer, folder: pathlib.Path, *options: str) -> tuple[int, str]:
    """Run schemathesis as its users do, and return its exit status and output."""
    file = folder / "schemathesis.toml"
    file.write_text(await settings_text(echo_server))
    process = await asyncio.create_subprocess_exec(
        pathlib.Path(sys.executable).with_name("schemathesis"), "--config-file", file,
        "run", f"{echo_server.server.listen_address}/openapi.json",
        "--header", f"Authorization: Bearer {echo_server.server.operator}",
        "--checks", ",".join(CHECKS), "--generation-deterministic", "--no-color", "--warnings", "off", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=folder,
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode()


PARTS = 4  #: so that none takes long, and two can run side by side


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
async def test_no_answer_contradicts_the_openapi_document(
    folder: pathlib.Path, caplog: pytest.LogCaptureFixture, part: int
) -> None:
    """Status, content type and body of each answer are in the document.

    A forbidden request is refused, never with a 500.
    """
    types: dict[str, Any] = {"echo": EchoType(), "parrot": ParrotType()}
    limits = TurnLimits(keep_s=3_600, kept_turns=10_000)  # A turn that is asked for stays for as long as this takes.
    operation_ids = sorted(each.endpoint.id for each in OPERATIONS if each.endpoint.id not in UNASKED)[part::PARTS]
    options = [word for each in operation_ids for word in ("--include-operation-id", each)]
    async with serving(folder, types=types, listen=("127.0.0.1", 0), talk=limits) as echo_server:
        status, output = await run_schemathesis(
            echo_server, folder, "--phases", "coverage,fuzzing", "--max-examples", "3", *options
        )

    assert status == 0, output
    assert f"Tested: {len(operation_ids)}\n" in output, output
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
