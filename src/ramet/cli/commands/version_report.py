"""`ramet --version --json`: the version, and what is installed beside it. Nothing is tried; see `ramet doctor`."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

from ramet.cli.render.json_output import print_json

#: A module that only this extra brings, by the extra's name.
EXTRA_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "anthropic": ("langchain_anthropic",),
    "google": ("langchain_google_genai",),
    "kubernetes": ("lightkube", "cryptography"),
    "mcp": ("mcp",),
    "openai": ("langchain_openai",),
    "otel": ("opentelemetry.sdk",),
    "postgres": ("psycopg",),
    "server": ("starlette", "uvicorn", "httpx2"),
}


def print_version(version: str) -> int:
    """Print one JSON object."""
    extras = [name for name, modules in EXTRA_MODULES.items() if all(map(_is_installed, modules))]
    is_linux = sys.platform == "linux"
    report: dict[str, Any] = {
        "version": version,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "extras": extras,
        "backends": {
            "bwrap": is_linux and shutil.which("bwrap") is not None,
            "local": True,
            "kubernetes": "kubernetes" in extras,
        },
    }
    print_json(json.dumps(report))
    return 0


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is not installed
        return False
