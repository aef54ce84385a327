"""Checks of isolation: a function runs in a real sandbox of each kind, and tries to read a file of the host."""

from __future__ import annotations

import asyncio
import linecache
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from ramet.cli.doctor.check_result import CheckResult
from ramet.cli.render.sanitize import one_line
from ramet.core.errors import IsolationUnavailable, RametError
from ramet.core.outcome import Status
from ramet.core.policy.policy import Policy
from ramet.host.runtime import AgentRuntime
from ramet.isolation.probe import NAMESPACES, Finding, probe_machine

BACKENDS: tuple[Literal["bwrap", "local"], ...] = ("bwrap", "local")
_TRIAL_S = 10.0
_CONTROLLERS = ("memory", "cpu", "pids")
_IN_ITS_PLACE = "rlimits and a watchdog, which measures repeatedly, keep the limits"
_MEANINGS = {
    "bwrap": "agents run apart from your files, processes and network",
    "local": "agents run in processes of their own, without namespaces",
}


def check_isolation() -> Sequence[CheckResult]:
    """Run a function in a sandbox of each backend, and report the mechanisms, each found by a trial."""
    findings = probe_machine()  # Once per process: the backends use the same trials.
    return [
        *asyncio.run(_run_trials()),
        _mechanism(findings, "user namespaces", NAMESPACES, "sandboxes see their own processes, mounts and network"),
        _mechanism(findings, "bubblewrap", ("bwrap",), "the backend bwrap starts"),
        _mechanism(findings, "Landlock", ("landlock", "landlock_tcp", "landlock_scopes"), "a second check of files"),
        _mechanism(findings, "seccomp", ("seccomp",), "agents in sandboxes can ask the system for little"),
        _cgroups(findings),
    ]


async def _run_trials() -> Sequence[CheckResult]:
    with tempfile.TemporaryDirectory(prefix="ramet-doctor-") as folder:
        file = Path(folder) / "file-of-the-host"
        file.write_text("readable by all\n")
        file.chmod(0o644)
        os.chmod(folder, 0o755)  # noqa: PTH101 - the sandbox has another user if the caller is root
        return [await run_trial(backend, file) for backend in BACKENDS]


async def run_trial(backend: Literal["bwrap", "local"], file: Path) -> CheckResult:
    """Run a function in a sandbox, which tries to read a file of the host."""
    name = f"sandbox {backend}"
    runtime = AgentRuntime(backend=backend)
    try:
        async with asyncio.timeout(_TRIAL_S):
            # A function of the standard library, so that the sandbox imports nothing of ours. It returns the first line
            # of a file, or "" if the file cannot be read.
            result = await runtime.run_agent(
                linecache.getline, args=(str(file), 1), policy=Policy(memory_mb=128, timeout_seconds=_TRIAL_S)
            )
            probe = await (await runtime.sandboxes.backend()).probe()
    except IsolationUnavailable as error:
        meaning = f"it does not start here, without {', '.join(error.missing)}"
        return CheckResult(name=name, state="missing", meaning=meaning, remedy=one_line(error.remedy, 500))
    except (RametError, OSError, TimeoutError) as error:
        reason = one_line(str(error), 300) or f"no answer within {_TRIAL_S:g} s"
        return CheckResult(name=name, state="missing", meaning=f"it does not start here: {reason}")
    finally:
        await runtime.stop()
    if result.status is not Status.COMPLETED:
        reason = one_line(f"a function ended there as {result.status}: {result.error}", 300)
        return CheckResult(name=name, state="missing", meaning=reason)
    level = f"level {probe.level.value}"
    if result.output:
        return CheckResult(
            name=name,
            state="limited",
            meaning=f"a function ran in it, and could read a file of this machine ({level}): for code that you trust",
            remedy=one_line(probe.remedy, 500),
        )
    meaning = f"a function ran in it, and could not read a file of this machine ({level}): {_MEANINGS[backend]}"
    missing = [each for each in probe.missing if not each.startswith("cgroup_")]  # These have a line of their own.
    if missing:
        remedy = one_line(" ".join(dict.fromkeys(probe_machine()[each].remedy for each in missing)), 500)
        meaning = f"{meaning}; without {', '.join(missing)}"
        return CheckResult(name=name, state="limited", meaning=meaning, remedy=remedy)
    return CheckResult(name=name, state="ok", meaning=meaning)


def _mechanism(findings: Mapping[str, Finding], name: str, parts: Sequence[str], meaning: str) -> CheckResult:
    broken = [each for each in parts if not findings[each].works]
    if not broken:
        return CheckResult(name=name, state="ok", meaning=meaning)
    details = ", ".join(_detail(each, findings[each]) for each in broken)
    return CheckResult(
        name=name,
        state="missing" if parts[0] in broken else "limited",
        meaning=one_line(f"without {details}", 300),
        remedy=one_line(" ".join(dict.fromkeys(findings[each].remedy for each in broken)), 500),
    )


def _cgroups(findings: Mapping[str, Finding]) -> CheckResult:
    missing = [each for each in _CONTROLLERS if not findings[f"cgroup_{each}"].works]
    if not missing:
        return CheckResult(name="cgroups", state="ok", meaning="the kernel keeps limits of memory, cpu and pids")
    found = [each for each in _CONTROLLERS if each not in missing]
    return CheckResult(
        name="cgroups",
        state="limited" if found else "missing",
        meaning=f"{' and '.join(found) or 'none'} can be used; for {', '.join(missing)} {_IN_ITS_PLACE}",
        remedy=one_line(findings[f"cgroup_{missing[0]}"].remedy, 500),
    )


def _detail(name: str, finding: Finding) -> str:
    return f"{name} ({finding.detail})" if finding.detail else name
