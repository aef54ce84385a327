"""Checks of sandboxes that can be frozen: they do nothing, can be ended, and go on later."""

from __future__ import annotations

import asyncio
import signal

from ramet.core.errors import Gone
from ramet.isolation.contract import FreezableSandbox
from ramet.testing.conformance.checks import NotHere, checks_of, expect, raises
from ramet.testing.conformance.isolation.harness import BackendFixture, Check, GuestSession, time_limit

_GRACE_S = 3600.0  #: of a kill that must not wait for it


async def a_frozen_sandbox_does_nothing_until_it_is_thawed(fixture: BackendFixture) -> None:
    """Check that a frozen guest answers nothing, while another one answers, and that it answers once it is thawed."""
    async with fixture.start_guest() as guest, fixture.start_guest() as other:
        await guest.ask("process_info")
        for _ in range(2):
            sandbox = await _freeze(guest)
            request = asyncio.ensure_future(guest.ask("process_info"))
            try:
                for _ in range(20):
                    await other.ask("process_info")
                expect(not request.done(), "a frozen sandbox answers nothing")
                expect(await sandbox.freeze(), "a frozen sandbox may be frozen again")
                async with time_limit():
                    await sandbox.thaw()
                    await sandbox.thaw()
                    expect(bool(await request), "a thawed sandbox answers what it was asked while it was frozen")
            finally:
                request.cancel()


async def a_frozen_sandbox_is_killed_without_its_grace(fixture: BackendFixture) -> None:
    """Check that a frozen guest is killed at once; it could not handle SIGTERM."""
    async with fixture.start_guest() as guest:
        await guest.ask("ignore", numbers=[signal.SIGTERM])
        sandbox = await _freeze(guest)
        async with time_limit():
            ended = await sandbox.kill(_GRACE_S)
        expect((ended.code, ended.reason) == (-signal.SIGKILL, "signalled"), f"a frozen guest is killed, not {ended}")
        await raises(Gone, sandbox.freeze(), "a sandbox that has ended cannot be frozen")
        await sandbox.thaw()


async def a_command_waits_for_a_frozen_sandbox(fixture: BackendFixture) -> None:
    """Check that a command begins once its sandbox is thawed."""
    async with fixture.start_guest() as guest, fixture.start_guest() as other:
        sandbox = await _freeze(guest)
        command = asyncio.ensure_future(sandbox.run_command(["echo", "here"], timeout_s=3600, max_bytes=100))
        try:
            for _ in range(5):
                await other.sandbox.run_command(["true"], timeout_s=60, max_bytes=100)
            expect(not command.done(), "a command waits while its sandbox is frozen")
            async with time_limit():
                await sandbox.thaw()
                expect((await command).stdout == b"here\n", "a command runs once its sandbox is thawed")
        finally:
            command.cancel()
            await asyncio.wait({command})


async def a_frozen_sandbox_can_be_cleaned_up(fixture: BackendFixture) -> None:
    """Check that nothing of a frozen sandbox is left; `run` looks at the host afterwards."""
    async with fixture.start_guest() as guest:
        await _freeze(guest)


async def _freeze(guest: GuestSession) -> FreezableSandbox:
    """Freeze a guest. Raises NotHere if its backend cannot."""
    sandbox = guest.sandbox
    async with time_limit():
        if not isinstance(sandbox, FreezableSandbox) or not await sandbox.freeze():
            raise NotHere("sandboxes of this backend cannot be frozen")
    return sandbox


CHECKS: tuple[Check, ...] = checks_of(__name__)
