"""Objects that settings lead to: models with keys, backends by name, a store, and the limits of a conversation."""

from __future__ import annotations

import pathlib

import pytest
from langchain_openai import ChatOpenAI

from ramet.core.errors import InvalidValue, ModelFailed
from ramet.services.agent_types.llm.type import LlmType
from ramet.services.config.adapters import find_backend
from ramet.services.config.build import store_of, turn_limits
from ramet.services.config.models import ModelAliases
from ramet.services.config.settings import ModelAlias, PostgresUrl, SecretReference, ServiceLimits
from ramet.services.turns.queue import TurnLimits
from ramet.store.postgres import PostgresStore
from ramet.store.sqlite.store import SqliteStore

KEY = "key-that-nobody-is-shown"
SMART = ModelAlias("openai:gpt-5.4-mini", SecretReference("env", "SMART_KEY"))


def test_an_alias_without_a_key_stands_for_the_models_name() -> None:
    """The provider's package looks for a key in its usual place."""
    models = ModelAliases({"fast": ModelAlias("anthropic:claude-haiku-5-5")}, {})
    assert dict(models) == {"fast": "anthropic:claude-haiku-5-5"}
    assert LlmType(models).model("fast") == "anthropic:claude-haiku-5-5"
    assert LlmType(models).model("offline") == "offline"


def test_a_model_is_reused_until_its_key_changes() -> None:
    """The key is read each time that the model is asked for, and a new key makes a new model."""
    environ = {"SMART_KEY": KEY}
    models = ModelAliases({"smart": SMART}, environ)

    first = models["smart"]

    assert isinstance(first, ChatOpenAI)
    assert first.openai_api_key is not None
    assert first.openai_api_key.get_secret_value() == KEY  # type: ignore[union-attr]  # a text was given
    assert KEY not in repr(first)
    assert models["smart"] is first
    environ["SMART_KEY"] = "another"
    assert models["smart"] is not first


def test_a_missing_key_is_named() -> None:
    """The error comes when the model is asked for."""
    models = ModelAliases({"smart": SMART}, {})
    with pytest.raises(InvalidValue, match="env:SMART_KEY"):
        models.get("smart")


def test_a_model_that_takes_no_key_is_refused() -> None:
    """The model is not made without the key."""
    models = ModelAliases({"off": ModelAlias("offline", SecretReference("env", "SMART_KEY"))}, {"SMART_KEY": KEY})
    with pytest.raises((InvalidValue, ModelFailed)) as refusal:
        models.get("off")
    assert KEY not in str(refusal.value)


def test_an_error_of_a_provider_package_does_not_repeat_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an error may hold the key; neither the message nor the traceback shows it."""

    def loud(self: object, **fields: object) -> None:
        raise ValueError(f"not with {fields}")

    monkeypatch.setattr(ChatOpenAI, "__init__", loud)
    with pytest.raises(ModelFailed, match="env:SMART_KEY") as refusal:
        ModelAliases({"smart": SMART}, {"SMART_KEY": KEY}).get("smart")
    assert KEY not in str(refusal.value)
    assert refusal.value.__suppress_context__


@pytest.mark.parametrize("name", ["bwrap", "local"])
def test_our_own_backends_are_found_by_name(tmp_path: pathlib.Path, name: str) -> None:
    """The runtime makes them itself."""
    assert find_backend(name, tmp_path) == name


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ("no_such_module:Moon", "ModuleNotFoundError"),
        ("tests.support.moon_backend:Nothing", "AttributeError"),
        ("tests.support.waiting:eventually", "TypeError"),
        ("types:SimpleNamespace", "it has no name"),
        ("tests.unit.services.test_configured:EmptyBackend", "it has no method 'probe'"),
    ],
    ids=["module", "attribute", "arguments", "name", "method"],
)
def test_an_invalid_backend_is_refused_by_its_entry_point(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, point: str, reason: str
) -> None:
    """The error gives the fault."""
    info = tmp_path / "moon-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moon\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[ramet.backends]\nmoon = {point}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidValue) as refusal:
        find_backend("moon", tmp_path)
    assert (refusal.value.field, refusal.value.value) == ("entry point 'moon' in 'ramet.backends'", point)
    assert reason in refusal.value.accepted


class EmptyBackend:
    """A class that has a backend's name and nothing else."""

    name = "moon"

    def __init__(self, runs: pathlib.Path) -> None:
        self.runs = runs


def test_a_store_is_a_file_or_a_server(tmp_path: pathlib.Path) -> None:
    """The default store needs no object: the runtime has it, and other commands find it there."""
    assert store_of(None, tmp_path) is None
    assert store_of(tmp_path / ".ramet" / "journal.db", tmp_path) is None
    assert isinstance(store_of(tmp_path / "all.db", tmp_path), SqliteStore)
    assert isinstance(store_of(PostgresUrl("postgresql://me@db/ramet"), tmp_path), PostgresStore)


def test_the_limits_of_a_conversation_follow_from_the_settings() -> None:
    """One message of the largest size may wait, and the answers of all waiting messages are kept."""
    assert turn_limits(ServiceLimits()) == TurnLimits()
    large = turn_limits(ServiceLimits(body_bytes=2**30, queue=100))
    assert (large.body_bytes, large.waiting, large.waiting_bytes, large.kept_turns) == (2**30, 100, 2**30, 101)
