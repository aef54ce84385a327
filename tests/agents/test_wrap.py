"""The real programs at a real terminal, as `ramet wrap` starts them: in a sandbox, under a budget, without a key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.agents.scripts import TITLES, each, turns
from tests.support.agent_programs import Program, executables
from tests.support.providers import Script, provider
from tests.trips.kits.forwarding import KEY, host_key, use_server
from tests.trips.kits.terminal import ramet, terminal

__all__ = ["host_key"]

pytestmark = pytest.mark.usefixtures("host_key")


class Wrapped(NamedTuple):
    """A program on the command line of `ramet wrap`."""

    name: str
    model: str
    prompt: tuple[str, ...]  #: arguments by which it answers once
    leave: str = ""  #: typed at its prompt, its end
    leaving: str = ""  #: shown once that is typed


# Codex offers a newer model at its start in the place of some that it knows, as gpt-5.5.
PROGRAMS = {
    "claude-code": Wrapped("claude", "anthropic:claude-sonnet-5-5", ("-p",), "/exit", "/exit"),
    "codex": Wrapped("codex", "openai:gpt-5.4", ("exec", "--skip-git-repo-check"), "/quit", "exit Codex"),
    "gemini-cli": Wrapped("gemini", "google_genai:gemini-2.5-pro", ("-p",)),
    "opencode": Wrapped("opencode", "openai:gpt-5.5", ("run",)),
}
SCRIPT: Script = {**TITLES, "": ["forty-two-exactly"] * 3}


@pytest.fixture(autouse=True)
def installed_programs(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the pinned programs into PATH, as a user has them."""
    own = Path(program.command[-1]).parent  # That of Claude Code: its package's installer did not run.
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, (own, *executables())), os.environ["PATH"]]))


def words(wrapped: Wrapped, folder: Path, *limits: str) -> tuple[str, ...]:
    """Return the words of a command line, up to the program."""
    return ("wrap", "--dir", str(folder), *limits, "--model", wrapped.model, "--", wrapped.name)


@each(("claude-code", "codex", "gemini-cli", "opencode"))
async def test_a_prompt_is_answered_between_pipes(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = PROGRAMS[program.name]
    async with provider(SCRIPT) as server:
        use_server(monkeypatch, server.url)
        answered = await ramet(*words(wrapped, folder, "--usd", "5"), *wrapped.prompt, "What is the answer?")
        refused = await ramet(*words(wrapped, folder, "--model-calls", "0"), *wrapped.prompt, "What is the answer?")

    assert (answered.status, answered.out.strip()) == (0, "forty-two-exactly"), answered.err
    assert "1 model call · " in answered.err.splitlines()[-1]
    assert refused.status == 4, refused
    assert "refused at the limit of model_calls" in refused.err.splitlines()[-1]
    assert server.count == 1
    assert KEY not in answered.out + answered.err + refused.out + refused.err


@each(("claude-code", "codex"))
async def test_a_person_talks_to_a_program_at_the_terminal(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = PROGRAMS[program.name]
    async with provider(SCRIPT) as server:
        use_server(monkeypatch, server.url)
        command = words(wrapped, folder, "--usd", "5")
        async with terminal(*command, server=server, columns=100, lines=40) as window:
            await window.shows("for shortcuts")
            await window.enter("hello-there", "hello-there")
            await window.shows("forty-two-exactly")
            await window.enter(wrapped.leave, wrapped.leaving)
            assert await window.end() == 0

    assert server.count >= 1
    assert f"ramet: {wrapped.name} ended with status 0" in window.text
    assert KEY not in window.text


@each(("claude-code", "codex", "gemini-cli", "opencode"))
async def test_a_program_has_the_tools_of_the_tree_if_it_is_asked_for(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first request offers them to its model; Codex names their server. Without the option there are none."""
    wrapped = PROGRAMS[program.name]
    async with provider(SCRIPT) as server:
        use_server(monkeypatch, server.url)
        for options in (("--with-tools",), ()):
            answered = await ramet(*words(wrapped, folder, *options), *wrapped.prompt, "What is the answer?")
            assert answered.status == 0, answered.err
    offered, usual = (str(request.body.get("tools")) for request in turns(server.requests))

    name = "mcp__ramet" if program.name == "codex" else "spawn_agent"
    assert name in offered
    assert name not in usual
