"""Models by name."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, Never

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, model_validator

from ramet.core.errors import InvalidValue, MissingExtra, ModelFailed, Unknown
from ramet.models.prices import cost_usd, price_of
from ramet.models.resolve import ALIASES, PROVIDERS, MissingPackage, model_name, parse, resolve
from ramet.models.scripted.model import ScriptedModel
from tests.support.plain_models import Plain

INSTALLED = {"anthropic", "openai", "azure_openai"}  # for these tests


def test_a_provider_and_a_model_are_resolved() -> None:
    """The strings of init_chat_model are accepted; retries are off, other arguments are passed on."""
    claude = resolve("anthropic:claude-sonnet-4-5", api_key="k", temperature=0.2)
    gpt = resolve("openai:gpt-5", api_key="k")

    assert isinstance(claude, ChatAnthropic)
    assert (claude.model, claude.max_retries, claude.temperature) == ("claude-sonnet-4-5", 0, 0.2)
    assert isinstance(gpt, ChatOpenAI)
    assert (gpt.model_name, gpt.max_retries) == ("gpt-5", 0)


@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5"),
        ("gpt-5", "openai", "gpt-5"),
        ("o1-mini", "openai", "o1-mini"),
        ("o3", "openai", "o3"),
        ("o4-mini", "openai", "o4-mini"),
        ("chatgpt-4o-latest", "openai", "chatgpt-4o-latest"),
        ("gemini-2.5-pro", "google_genai", "gemini-2.5-pro"),
        ("command-r", "cohere", "command-r"),
        ("accounts/fireworks/models/x", "fireworks", "accounts/fireworks/models/x"),
        ("mistral-large", "mistralai", "mistral-large"),
        ("deepseek-chat", "deepseek", "deepseek-chat"),
        ("grok-4", "xai", "grok-4"),
        ("sonar-pro", "perplexity", "sonar-pro"),
        ("solar-pro", "upstage", "solar-pro"),
        ("anthropic.claude-3-sonnet-20240229-v1:0", "bedrock", "anthropic.claude-3-sonnet-20240229-v1:0"),
        ("ollama:llama3:8b", "ollama", "llama3:8b"),
        ("azure-openai:gpt-4o", "azure_openai", "gpt-4o"),
        ("OpenAI:gpt-5", "openai", "gpt-5"),
        ("openai:ft:gpt-4o:acme::1", "openai", "ft:gpt-4o:acme::1"),
        (" openai:gpt-5 ", "openai", "gpt-5"),
    ],
)
def test_names_are_parsed(name: str, provider: str, model: str) -> None:
    """Names work with a provider or without, as in init_chat_model."""
    assert parse(name) == (provider, model)


@pytest.mark.parametrize("alias", ["sonnet", "opus", "haiku"])
def test_short_names_of_agent_files_are_resolved(alias: str) -> None:
    """Short names stand for the current models of Anthropic."""
    model = resolve(alias, api_key="k")

    assert isinstance(model, ChatAnthropic)
    assert f"anthropic:{model.model}" == ALIASES[alias]
    assert alias in model.model


def test_inherit_gives_the_model_of_the_parent() -> None:
    """The name is an error if there is no parent."""
    parents = ScriptedModel(["x"])

    assert resolve("inherit", parent_model=parents) is parents
    with pytest.raises(InvalidValue, match="inherit"):
        resolve("inherit")


@pytest.mark.parametrize("name", ["nobody:model", "llama3", "foo", "scripted:x", ":x"])
def test_an_unknown_provider_is_refused_with_the_known_ones(name: str) -> None:
    """The name never resolves to some other model."""
    with pytest.raises(Unknown) as unknown:
        resolve(name)

    assert unknown.value.kind == "model provider"
    assert "anthropic" in unknown.value.known


@pytest.mark.parametrize(
    "name", ["", "   ", "x" * 1_000_000, "openai:gpt\0", "openai:", "openai: ", "a\nb", "\x1b[31m", 7, None]
)
def test_an_invalid_name_is_refused(name: Any) -> None:
    """The error stays short for any name."""
    with pytest.raises(InvalidValue) as invalid:
        resolve(name)

    assert len(str(invalid.value)) < 400


@pytest.mark.parametrize("provider", sorted(PROVIDERS.keys() - INSTALLED))
def test_a_missing_package_is_reported_with_the_command_that_installs_it(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is an extra of ours, or the provider's own."""
    monkeypatch.setitem(sys.modules, PROVIDERS[provider].module.partition(".")[0], None)
    with pytest.raises(MissingExtra) as missing:
        resolve(f"{provider}:model")

    package = PROVIDERS[provider].module.partition(".")[0].replace("_", "-")
    expected = "pip install 'langchain-google-genai<5,>=4.2" if provider == "google_genai" else f"pip install {package}"
    assert expected in str(missing.value)
    assert provider in str(missing.value)
    assert isinstance(missing.value, MissingPackage) == (provider != "google_genai")


def test_a_missing_key_is_reported_before_the_first_request() -> None:
    """OpenAI's class cannot be made without one."""
    with pytest.raises((ModelFailed, InvalidValue), match=r"(?i)api[_ ]key"):
        resolve("openai:gpt-5")


def test_a_missing_key_is_reported_in_the_words_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's class refuses all arguments together: the error names none of them, and shows no value."""

    class ChatGoogleGenerativeAI(BaseModel):
        model: str
        base_url: str

        @model_validator(mode="after")
        def check_key(self) -> Never:
            raise ValueError("API key required. Set GOOGLE_API_KEY.")

    google = SimpleNamespace(ChatGoogleGenerativeAI=ChatGoogleGenerativeAI)
    monkeypatch.setitem(sys.modules, "langchain_google_genai", google)

    with pytest.raises(ModelFailed) as missing:
        resolve("gemini-3-pro", base_url="http://sk-secret.example")
    with pytest.raises(InvalidValue, match="base_url: Input should be a valid string") as wrong:
        resolve("gemini-3-pro", base_url=["sk-secret"])

    expected = "gemini-3-pro: ChatGoogleGenerativeAI cannot be created: API key required. Set GOOGLE_API_KEY."
    assert str(missing.value) == expected
    assert "sk-secret" not in str(wrong.value)


def test_a_wrong_argument_is_refused() -> None:
    """The error gives its name."""
    with pytest.raises(InvalidValue, match="temperature"):
        resolve("anthropic:claude-sonnet-4-5", api_key="k", temperature="warm")
    with pytest.raises(InvalidValue, match="RetryPolicy"):
        resolve("anthropic:claude-sonnet-4-5", api_key="k", max_retries=3)


def test_names_for_events_and_prices_are_known() -> None:
    """Names are the model's own, or that of its class."""
    assert model_name(resolve("anthropic:claude-sonnet-4-5", api_key="k")) == "claude-sonnet-4-5"
    assert model_name(resolve("openai:gpt-5", api_key="k")) == "gpt-5"
    assert model_name(ScriptedModel([])) == "scripted"
    assert model_name(Plain()) == "Plain"


def test_no_provider_is_imported_before_it_is_needed() -> None:
    """Importing the module and failing to resolve load no SDK."""
    code = (
        "import sys, ramet.models.resolve as r, ramet.models.call, ramet.models.rate_limit\n"
        "try: r.resolve('nobody:x')\n"
        "except LookupError: pass\n"
        "assert not {'anthropic', 'openai', 'langchain_anthropic', 'langchain_openai'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_offline_model_needs_no_key_and_no_network() -> None:
    """`offline` is its name, and it costs nothing."""
    model = resolve("offline")

    assert type(model).__name__ == "OfflineResearcher"
    assert cost_usd({"input_tokens": 10, "output_tokens": 10, "total_tokens": 20}, price_of(model_name(model))) == 0
