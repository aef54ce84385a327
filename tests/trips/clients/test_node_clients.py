"""The official SDKs for Node, unchanged, talk with an agent; the test runs where they are installed.

npm install --prefix FOLDER openai @anthropic-ai/sdk
RAMET_NODE=FOLDER pytest tests/trips/clients/test_node_clients.py
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import shutil
from typing import Any

import pytest

from tests.support.parrot_agents import ParrotType
from tests.support.serving import serving

SCRIPT = pathlib.Path(__file__).parents[2] / "support" / "node_clients.mjs"
pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not os.environ.get("RAMET_NODE"),
    reason="RAMET_NODE names no folder where npm has installed openai and @anthropic-ai/sdk, or there is no node",
)


async def test_both_node_sdks_talk_with_an_agent(folder: pathlib.Path) -> None:
    """Whole answers, streams, model lists and a repeated request work; refusals are each provider's own error."""
    async with serving(folder, listen=("127.0.0.1", 0), types={"parrot": ParrotType()}) as echo_server:
        nonce = (await echo_server.agent(agent_type="parrot"))[1]
        process = await asyncio.create_subprocess_exec(
            "node", str(SCRIPT), echo_server.server.listen_address, nonce,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    reports: dict[str, dict[str, Any]] = {each["name"]: each for each in map(json.loads, out.decode().splitlines())}
    assert {name: each["answer"] for name, each in reports.items() if "answer" in each} == {
        "openai whole": "1: a b ",
        "openai stream": "2: c ",
        "openai models": 1,
        "openai keyed": ["3: k ", "3: k "],
        "anthropic whole": "4: d ",
        "anthropic stream": "5: e ",
        "anthropic beta": "6: f ",
        "anthropic models": 1,
    }
    refusals = {
        name: (each["status"], each["kind"], each["type"]) for name, each in reports.items() if "status" in each
    }
    assert refusals == {
        "openai tools": (400, "BadRequestError", "invalid_request_error"),
        "openai responses": (404, "NotFoundError", "invalid_request_error"),
        "anthropic system": (400, "BadRequestError", "invalid_request_error"),
        "anthropic count": (404, "NotFoundError", "not_found_error"),
    }
    assert "tools" in reports["openai tools"]["message"]
    assert "system" in reports["anthropic system"]["message"]
