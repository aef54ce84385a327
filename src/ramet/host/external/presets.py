"""Known programs: how each is started, configured and spoken to. Every line was measured (`tests/agents/README.md`).

What the settings achieve, beside the address of the models: no update, telemetry or other request but those of the
dialogue; no second attempt after a refusal, as a refusal is meant; the program's own sandbox is off, as it cannot start
inside another; calls are asked about, and by the user, not by another model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ramet.core.errors import InvalidValue
from ramet.wire.external_program import PermissionMode, Protocol


class Choice(NamedTuple):
    """A model by its provider and its name; both empty: as the program chooses."""

    provider: str = ""
    name: str = ""


class Candidate(NamedTuple):
    """A way to start a program: the name of its executable, and what it is told."""

    executable: str
    package: str  #: of npm, which brings it
    protocol: Protocol
    arguments: Callable[[Choice, PermissionMode], list[str]]
    memory_mb: int
    pids: int
    env: Mapping[str, str] = {}
    can_ask: bool = True  #: it asks before calls that need permission, or does not do them


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A known program."""

    providers: tuple[str, ...]  #: whose models it can ask
    candidates: tuple[Candidate, ...]  #: the first that is found is used
    env: Callable[[Choice], dict[str, str]]
    files: Callable[[Choice, PermissionMode], dict[str, str]]
    needs_model: bool = False
    #: folders of its own, by name below the user's home, which a user may want to pass on
    config_folders: tuple[str, ...] = field(default=())


def choice_of(preset: str, known: Preset, model: str | None) -> Choice:
    """Return a model of a preset by its name. Raises InvalidValue for one that the program cannot ask."""
    accepted = ", ".join(f"{each}:…" for each in known.providers)
    if model is None:
        if known.needs_model:
            raise InvalidValue("model", model, f"a model for {preset}: {accepted}")
        return Choice()
    provider, _, name = model.partition(":")
    if provider not in known.providers or not name:
        raise InvalidValue("model", model, f"a model that {preset} can ask: {accepted}")
    return Choice(provider, name)


# ---- Claude Code


def _claude_env(choice: Choice) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": "${anthropic_url}",
        "ANTHROPIC_API_KEY": "${key}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false",
        "ENABLE_TOOL_SEARCH": "false",  # tools of MCP servers are in the request, not looked up first
    } | ({"ANTHROPIC_MODEL": choice.name} if choice.name else {})


def _claude_files(_: Choice, mode: PermissionMode) -> dict[str, str]:
    # Its adapter's own default lets a model judge each tool call, in a request of its own.
    default = "default" if mode == "ask" else "bypassPermissions"
    return {".claude/settings.json": json.dumps({"permissions": {"defaultMode": default}})}


_CLAUDE_CODE = Preset(
    providers=("anthropic",),
    candidates=(
        Candidate("claude-agent-acp", "@agentclientprotocol/claude-agent-acp", "acp", lambda _, mode: [], 1536, 192),
        Candidate(
            "claude",
            "@anthropic-ai/claude-code",
            "stream-json",
            lambda _, mode: ["-p", "--output-format", "stream-json", "--verbose", "--", "${prompt}"],
            1024,
            128,
        ),
    ),
    env=_claude_env,
    files=_claude_files,
    config_folders=(".claude",),
)

# ---- Codex

# "never" refuses what the model escalates, so it is no mode for a run that asks nobody: its driver allows each call.
# `codex exec` has "never" whatever is written here.
_CODEX_APPROVALS = """\
approval_policy = "on-request"
approvals_reviewer = "user"
default_permissions = "full"
"""
_CODEX_PROFILE = """\

[permissions.full]
filesystem = { ":root" = "write" }

[permissions.full.network]
enabled = true
"""
_CODEX_PROVIDER = """\

[model_providers.ramet]
name = "ramet"
base_url = "${openai_url}/v1"
env_key = "RAMET_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


def _codex_files(choice: Choice, _: PermissionMode) -> dict[str, str]:
    # A tool of the provider has a price of its own, which a limit of money cannot bind.
    head = 'model_provider = "ramet"\nweb_search = "disabled"\n'
    if choice.name:
        head = f"model = {json.dumps(choice.name)}\n{head}"
    return {".codex/config.toml": f"{head}{_CODEX_APPROVALS}{_CODEX_PROFILE}{_CODEX_PROVIDER}"}


_CODEX = Preset(
    providers=("openai",),
    candidates=(
        Candidate(
            "codex-acp",
            "@agentclientprotocol/codex-acp",
            "acp",
            lambda _, mode: [],
            768,
            160,
            env={"INITIAL_AGENT_MODE": "permission-profile:full"},  # it does not take that of config.toml
        ),
        Candidate(
            "codex",
            "@openai/codex",
            "stream-json",
            lambda _, mode: ["exec", "--skip-git-repo-check", "--json", "--", "${prompt}"],
            512,
            128,
            can_ask=False,
        ),
    ),
    env=lambda _: {"RAMET_KEY": "${key}"},
    files=_codex_files,
    config_folders=(".codex",),
)

# ---- Gemini CLI


def _gemini_files(_: Choice, mode: PermissionMode) -> dict[str, str]:
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "general": {"maxAttempts": 1}}
    return {".gemini/settings.json": json.dumps(settings)}


_GEMINI = Preset(
    providers=("google_genai",),
    candidates=(
        Candidate(
            "gemini",
            "@google/gemini-cli",
            "acp",
            lambda choice, mode: ["--acp", *(["-m", choice.name] if choice.name else [])],
            768,
            96,
        ),
    ),
    env=lambda _: {
        "GOOGLE_GEMINI_BASE_URL": "${google_url}",
        "GEMINI_API_KEY": "${key}",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_CLI_NO_RELAUNCH": "true",
    },
    files=_gemini_files,
    config_folders=(".gemini",),
)

# ---- OpenCode

#: The library by which it asks the models of a provider, and the address that this expects.
_OPENCODE_LIBRARIES = {
    "anthropic": ("@ai-sdk/anthropic", "${anthropic_url}/v1"),
    "openai": ("@ai-sdk/openai", "${openai_url}/v1"),
}
_OPENCODE_SWITCHES = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE")


def _opencode_files(choice: Choice, mode: PermissionMode) -> dict[str, str]:
    library, url = _OPENCODE_LIBRARIES[choice.provider]
    model: dict[str, Any] = {
        "name": choice.name,
        "limit": {"context": 200_000, "output": 32_000},
        "tool_call": True,
    }
    settings = {
        "model": f"ramet/{choice.name}",
        "small_model": f"ramet/{choice.name}",
        "autoupdate": False,
        "share": "disabled",
        "agent": {"title": {"disable": True}},
        "permission": {"bash": mode, "edit": mode, "webfetch": mode, "ramet_*": mode},
        "provider": {
            "ramet": {
                "npm": library,
                "name": "ramet",
                "options": {"baseURL": url, "apiKey": "${key}"},
                "models": {choice.name: model},
            }
        },
    }
    return {".config/opencode/opencode.json": json.dumps(settings)}


_OPENCODE = Preset(
    providers=tuple(_OPENCODE_LIBRARIES),
    candidates=(Candidate("opencode", "opencode-ai", "acp", lambda _, mode: ["acp"], 2048, 256),),
    env=lambda _: {f"OPENCODE_DISABLE_{each}": "1" for each in _OPENCODE_SWITCHES},
    files=_opencode_files,
    needs_model=True,
    config_folders=(".config/opencode",),
)

PRESETS: Mapping[str, Preset] = {
    "claude-code": _CLAUDE_CODE,
    "codex": _CODEX,
    "gemini": _GEMINI,
    "opencode": _OPENCODE,
}
