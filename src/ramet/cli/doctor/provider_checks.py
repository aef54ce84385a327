"""Checks of model providers: whether a package is installed, and which keys are set, by name and never by value.

No package of a provider is imported, and nobody is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from ramet.cli.doctor.check_result import CheckResult
from ramet.disk.installation import install_command
from ramet.models.resolve import PROVIDERS

#: The variables with the keys of the providers that are extras of ramet.
_KEYS = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "google_genai": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
}


def check_providers(environ: Mapping[str, str]) -> Sequence[CheckResult]:
    """Report the providers that are extras, then the others whose packages are installed."""
    results = [_extra(name, variables, environ) for name, variables in _KEYS.items()]
    extras = {PROVIDERS[name].module for name in _KEYS}
    others = [name for name, each in PROVIDERS.items() if each.module not in extras and _is_installed(each.module)]
    if others:
        meaning = f"installed: {', '.join(others)}; their keys are not looked for"
        results.append(CheckResult(name="other providers", state="ok", meaning=meaning))
    return results


def _extra(name: str, variables: Sequence[str], environ: Mapping[str, str]) -> CheckResult:
    label = f"provider {name}"
    found = [each for each in variables if environ.get(each, "").strip()]
    provider = PROVIDERS[name]
    if not _is_installed(provider.module):
        assert provider.extra is not None, "all of these are extras"
        command = install_command(provider.extra)
        with_key = f"; {found[0]} is set" if found else ""
        meaning = f"its package is not installed{with_key}: the model offline needs none"
        return CheckResult(name=label, state="missing", meaning=meaning, remedy=command)
    if not found:
        meaning = "its package is installed, and no key is set"
        return CheckResult(name=label, state="limited", meaning=meaning, remedy=f"export {variables[0]}=…")
    return CheckResult(name=label, state="ok", meaning=f"its package is installed, and {found[0]} is set")


def _is_installed(module: str) -> bool:
    # The top module alone: the search for a module below would import it.
    return find_spec(module.partition(".")[0]) is not None
