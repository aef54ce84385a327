"""A missing key is reported before a model is asked, and before anything is reserved."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic

from ramet import Agent, AgentRuntime, Session
from ramet.core.errors import ModelFailed
from ramet.core.events import ModelAsked
from ramet.models.rate_limit import RetryPolicy
from ramet.models.scripted.model import ScriptedModel
from tests.support.providers import provider
from tests.trips.kits.sessions import answers, of_kind, session_events, specialist_call

NAMES = {"anthropic:claude-sonnet-5-5": "ANTHROPIC_API_KEY", "openai:gpt-5": "OPENAI_API_KEY"}


@pytest.fixture(autouse=True)
def environment_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_session_with_a_named_model_requires_its_key(name: str) -> None:
    """The error names the environment variable of the key."""
    with pytest.raises(ModelFailed, match=NAMES[name]) as refusal:
        Session(model=name)

    assert not refusal.value.retryable


@pytest.mark.parametrize("key", ["", " ", "\n"], ids=repr)
async def test_a_session_refuses_a_client_without_a_key(key: str) -> None:
    """The provider gets no request: a retry would find no key either."""
    async with provider([]) as server:
        with pytest.raises(ModelFailed, match="ANTHROPIC_API_KEY"):
            Session(server.anthropic(api_key=key))

    assert server.count == 0


async def test_a_key_in_a_client_s_headers_is_accepted() -> None:
    """Proxies often get their key in a header."""
    async with provider(["Hello."]) as server:
        model = server.anthropic(api_key="", default_headers={"Authorization": "Bearer test"})
        async with Session(model) as session:
            assert (await session.ask("Go.")).value == "Hello."


async def test_a_child_without_a_key_sends_no_request() -> None:
    """The parent reads which variable is missing, and the child has reserved nothing."""
    fields: dict[str, Any] = {"model": "claude-sonnet-5-5", "base_url": "http://127.0.0.1:9"}
    child = Agent(name="child", description="A child.", model=ChatAnthropic(**fields))
    model = ScriptedModel([specialist_call("Look.", subagent_type="child"), "It has no key."])
    async with AgentRuntime(retry=RetryPolicy(base_s=0)) as runtime:
        async with Session(model, agents=[child], runtime=runtime) as session:
            result = await session.ask("Go.")
            (report,) = answers(session.messages).values()
            model_requests = of_kind(session_events(session), ModelAsked)

    assert result.value == "It has no key."
    assert "ANTHROPIC_API_KEY" in report
    assert len(model_requests) == 2  # Both are the root's.
