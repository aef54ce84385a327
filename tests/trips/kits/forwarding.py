"""A host whose functions may have model requests forwarded, to loopback servers that count them."""

from __future__ import annotations

import pytest

import ramet
from ramet.spawn.forwarding import forwarded_requests
from ramet.spawn.run import Run
from ramet.tools.forwarding import ForwardRights

KEY = "sk-of-the-host-1234567890"


@pytest.fixture
def host_key(monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the host a key of each provider."""
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, KEY)
    return KEY


def grant_rights(monkeypatch: pytest.MonkeyPatch, rights: ForwardRights) -> None:
    """Give these rights to all runs."""

    def forward_rights(run: Run) -> ForwardRights | None:
        return rights

    monkeypatch.setattr(forwarded_requests, "forward_rights", forward_rights)


def create_file(runtime: ramet.AgentRuntime, run: str, name: str) -> None:
    """Create a file in the workspace of a run, which its program waits for."""
    folder = runtime.sandboxes.folder_of(run)
    assert folder is not None, "a run in a sandbox has a folder"
    (folder.workspace / name).touch()


def use_server(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let the host forward to a loopback server."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", url)
