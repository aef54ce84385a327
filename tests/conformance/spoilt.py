"""Backends that break one promise each, which the suite must notice. Each stands on `local` and cleans up."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ramet.core.policy.policy import Isolation
from ramet.isolation.contract import Backend, Exit, Metrics, Ran, Sandbox, SandboxSpec
from ramet.isolation.local import LocalBackend


class Whole:
    """Backend that passes every call on unchanged. Each class below changes one thing."""

    def __init__(self, *, runs: pathlib.Path) -> None:
        self.runs = runs
        self.real: Backend = LocalBackend(runs=runs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def start(self, spec: SandboxSpec) -> Sandbox:
        return await self.real.start(spec)


class Changed:
    """Sandbox that passes every call on, except for the attributes set on it."""

    def __init__(self, real: Sandbox, **changes: object) -> None:
        self.real = real
        for name, change in changes.items():
            setattr(self, name, change)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Limitless(Whole):
    """Backend that ignores limits."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        wide = {"memory_mb": 2048, "pids": 500, "cpu_cores": 4.0, "tmpfs_size_mb": 512, "workspace_size_mb": 512}
        return await self.real.start(replace(spec, grant=msgspec.structs.replace(spec.grant, **wide)))


class Apart(Whole):
    """Backend that ignores a shared reservation."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        return await self.real.start(replace(spec, grant=msgspec.structs.replace(spec.grant, reservation=None)))


class Forgetful(Whole):
    """Backend that ignores the working directory, secrets and writable mounts."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        grant = msgspec.structs.replace(spec.grant, secrets={}, writable_mounts=())
        return await self.real.start(replace(spec, cwd=None, grant=grant))


class Generous(Whole):
    """Backend that adds a variable to the environment."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        return await self.real.start(replace(spec, env={**spec.env, "HOST": "name"}))


class Open(Whole):
    """Backend that shows each sandbox the workspace of the one before."""

    def __init__(self, *, runs: pathlib.Path) -> None:
        super().__init__(runs=runs)
        self.before: pathlib.Path | None = None

    async def start(self, spec: SandboxSpec) -> Sandbox:
        shown, self.before = self.before, spec.workspace
        return await self.real.start(replace(spec, import_dir=shown))


class Lowering(Whole):
    """Backend that grants less isolation than was asked, without an error."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        return await self.real.start(replace(spec, grant=msgspec.structs.replace(spec.grant, isolation=Isolation.L0)))


class Understating(Whole):
    """Backend that reports too low a level."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        return Changed(await self.real.start(spec), level=Isolation.L0)


class Miscounting(Whole):
    """Backend that reports another exit status."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        real = await self.real.start(spec)

        async def wait() -> Exit:
            ended = await real.wait()
            return ended._replace(code=ended.code + 1)

        return Changed(real, wait=wait)


class Deaf(Whole):
    """Backend that delivers no signals."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        return Changed(await self.real.start(spec), signal=lambda number: None)


class Hasty(Whole):
    """Backend that kills without waiting for the end."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        real = await self.real.start(spec)

        async def kill(grace_s: float = 0) -> Exit:
            real.signal(signal.SIGTERM)
            return Exit(-signal.SIGKILL, "signalled")

        return Changed(real, kill=kill)


class Brutal(Whole):
    """Backend that kills without asking first."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        real = await self.real.start(spec)

        async def kill(grace_s: float = 0) -> Exit:
            return await real.kill(0)

        return Changed(real, kill=kill)


class Untidy(Whole):
    """Backend that releases nothing until it is closed."""

    def __init__(self, *, runs: pathlib.Path) -> None:
        super().__init__(runs=runs)
        self.left: list[Sandbox] = []

    async def start(self, spec: SandboxSpec) -> Sandbox:
        real = await self.real.start(spec)
        self.left.append(real)

        async def clean_up() -> None:
            pass

        return Changed(real, clean_up=clean_up)

    async def close(self) -> None:
        for each in self.left:
            await each.clean_up()
        await self.real.close()


class Leaking(Whole):
    """Backend that keeps two descriptors of each sandbox until it is closed."""

    def __init__(self, *, runs: pathlib.Path) -> None:
        super().__init__(runs=runs)
        self.fds: list[int] = []

    async def start(self, spec: SandboxSpec) -> Sandbox:
        self.fds += os.pipe()
        return await self.real.start(spec)

    async def close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())
        await self.real.close()


class Constant(Whole):
    """Backend that reports constant usage."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        async def metrics() -> Metrics:
            return Metrics(1.0, 10.0, 1, 0.0)

        return Changed(await self.real.start(spec), metrics=metrics)


class Silent(Whole):
    """Backend that loses what is printed."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        real = await self.real.start(spec)
        return Changed(real, stdout=real.stderr)


class Blocking(Whole):
    """Backend whose channel blocks."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await self.real.start(spec)
        sandbox.channel.setblocking(True)
        return sandbox


class Undescribed(Whole):
    """Backend whose description changes on its way through JSON."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        def describe() -> Mapping[str, Any]:
            return {"spec": (1, 2)}

        return Changed(await self.real.start(spec), describe=describe)


class Outside(Whole):
    """Backend that runs commands on the host."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        async def run_command(argv: Sequence[str], *, timeout_s: float, max_bytes: int) -> Ran:
            ran = await asyncio.create_subprocess_exec(
                *argv,
                cwd=spec.workspace,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(timeout_s):
                    out, err = await ran.communicate()
            except TimeoutError:
                os.killpg(ran.pid, signal.SIGKILL)
                await ran.wait()
                raise
            return Ran(ran.returncode or 0, out[:max_bytes], err[:max_bytes])

        return Changed(await self.real.start(spec), run_command=run_command)


class Lingering(Whole):
    """Backend that closes only when it is asked for the fourth time."""

    asked = 0

    async def close(self) -> None:
        self.asked += 1
        if self.asked > 3:
            await self.real.close()


class Greedy(Whole):
    """Backend that reports a living sandbox as reaped."""

    async def reap(self) -> Sequence[str]:
        return ["everything"]
