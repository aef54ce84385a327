"""Checks of the limits of a grant: usage below a limit works, usage above fails, and other sandboxes are unaffected."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from ramet.core.policy.reservation import Reservation
from ramet.isolation.contract import ReservingBackend
from ramet.testing.conformance.checks import NotHere, checks_of, expect
from ramet.testing.conformance.isolation.harness import (
    BackendFixture,
    Check,
    Ended,
    GuestSession,
    Refused,
    eventually,
    time_limit,
)

_MEMORY_MB = 96
_SPIN_S = 3.0  #: longer than the time until an idle sandbox is looked at, where there is no control group
_SLACK_MB = 8  #: additional memory of a process, and the error of counting in pieces


async def memory(fixture: BackendFixture) -> None:
    """Check that more memory than granted is refused, or ends the sandbox with `oom`."""
    async with fixture.start_guest_if_granted("memory_mb", _MEMORY_MB) as guest:
        await guest.ask("allocate", mb=_MEMORY_MB // 3)
        await _check_stopped(guest, "allocate", mb=4 * _MEMORY_MB)


async def memory_of_all_processes(fixture: BackendFixture) -> None:
    """Check that the memory limit applies to the sandbox, not to each process."""
    each = _MEMORY_MB // 2
    at_most = (_MEMORY_MB + _SLACK_MB) // each
    async with fixture.start_guest_if_granted("memory_mb", _MEMORY_MB) as guest:
        try:
            living = await guest.ask("allocate_in_children", count=6, mb=each, most=at_most)
        except Ended:
            await _check_oom(guest)
        except Refused:
            pass
        else:
            expect(living <= at_most, f"{living} processes of {each} MiB live under {_MEMORY_MB}")


async def memory_of_a_reservation(fixture: BackendFixture) -> None:
    """Check that sandboxes of one reservation share its memory: memory that one holds is not available to another.

    A sandbox outside the reservation is unaffected.
    """
    if "memory_mb" not in fixture.probe.bounded_resources:
        raise NotHere(f"{fixture.backend.name} has no shared memory limit here")
    expect(isinstance(fixture.backend, ReservingBackend), "a backend with reservations can disband them")
    shared = Reservation(name="conformance", memory_mb=_MEMORY_MB)
    each = _MEMORY_MB * 2 // 3
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(fixture.start_guest_if_granted("reservation", shared)) for _ in range(2)
        ]
        outside_guest = await stack.enter_async_context(fixture.start_guest())
        for guest in (outside_guest, one):
            await guest.ask("allocate", mb=each)
        try:
            await two.ask("allocate", mb=each)
        except (Ended, Refused):
            pass
        exits = [asyncio.ensure_future(guest.sandbox.wait()) for guest in (one, two)]
        try:
            promise = f"two sandboxes that share {_MEMORY_MB} MiB cannot have {each} MiB each"
            await eventually(lambda: any(end.done() for end in exits), promise)
            expect(
                [end.result().reason for end in exits if end.done()] == ["oom"], "one of them ends, with the reason oom"
            )
        finally:
            for end in exits:
                end.cancel()
        expect(await outside_guest.ask("process_info"), "a sandbox outside the reservation lives")
    assert isinstance(fixture.backend, ReservingBackend), "as above"
    for _ in range(2):
        await fixture.backend.disband("conformance")
    async with fixture.start_guest_if_granted("reservation", shared) as guest_again:
        expect(await guest_again.ask("process_info"), "a disbanded reservation can be used again")
    await fixture.backend.disband("conformance")


async def shared_memory(fixture: BackendFixture) -> None:
    """Check that shared memory counts, too, whether it is mapped or only behind a descriptor."""
    for kind in ("mapping", "descriptor"):
        async with fixture.start_guest_if_granted("memory_mb", _MEMORY_MB) as guest:
            await _check_stopped(guest, "share", kind=kind, mb=4 * _MEMORY_MB)


async def processes(fixture: BackendFixture) -> None:
    """Check that a sandbox starts no more processes and threads than granted; another sandbox is unaffected."""
    async with fixture.start_guest_if_granted("pids", 12) as guest, fixture.start_guest() as other:
        expect(await guest.ask("fork_until", count=4) == 4, "below the limit processes can be started")
        for request in ("fork_until", "start_threads_until"):
            started = await guest.ask(request, count=40)
            expect(4 <= started < 12, f"{request}: {started} of 40 were started under a limit of 12")
        expect(await other.ask("fork_until", count=10) == 10, "the limit of one sandbox does not limit another")


async def processor(fixture: BackendFixture) -> None:
    """Check that continuous work in several processes gets the granted processor time, over a while."""
    if fixture.probe.mechanisms.get("cgroup_cpu") is False:
        raise NotHere("without cgroups processor time is shared, not limited")
    async with fixture.start_guest_if_granted("cpu_cores", 0.2) as guest:
        used = await guest.ask("spin", seconds=_SPIN_S, processes=2)
        expect(used <= 0.4, f"{used:.2f} processors were used under a limit of 0.2")


async def temporary_files(fixture: BackendFixture) -> None:
    """Check that /tmp and /dev/shm each hold the granted size, if they are writable.

    Beyond that size the folder is full, or the sandbox ends.
    """
    for path in ("/tmp", "/dev/shm"):
        async with fixture.start_guest_if_granted("tmpfs_size_mb", 4) as guest:
            try:
                written = await guest.ask("fill", path=path, mb=32)
            except Ended:
                written = 32
            if written > 4.5:
                async with time_limit():
                    ended = await guest.sandbox.wait()
                expect(
                    ended.reason == "workspace",
                    f"{written} MiB were written in {path} under a limit of 4, and it ended by {ended}",
                )
            elif fixture.has_namespaces:
                expect(written >= 2, f"{path} holds the granted size, not {written} MiB")


async def workspace(fixture: BackendFixture) -> None:
    """Check that the workspace holds the granted size; beyond that it is full, or the sandbox ends with `workspace`."""
    async with fixture.start_guest_if_granted("workspace_size_mb", 8) as guest:
        expect(await guest.ask("fill", path=".", mb=4) == 4, "below the limit files can be written")
        try:
            written = await guest.ask("fill", path=".", mb=64)
        except Ended:
            ended = await guest.wait_ended()
            expect(ended.reason == "workspace", f"a full workspace is reported as the reason, not {ended}")
            return
        if written <= 8:
            return
        async with time_limit():
            ended = await guest.sandbox.wait()
        expect(ended.reason == "workspace", f"{written} MiB were written under a limit of 8, and it ended by {ended}")


async def descriptors(fixture: BackendFixture) -> None:
    """Check that descriptors run out inside before they do on the host."""
    async with fixture.start_guest() as guest:
        opened = await guest.ask("open_until", count=20_000)
        expect(32 <= opened < 20_000, f"{opened} of 20,000 descriptors were opened")


async def a_limit_affects_one_sandbox(fixture: BackendFixture) -> None:
    """Check that a sandbox that is killed for memory affects no other sandbox."""
    async with fixture.start_guest() as other, fixture.start_guest_if_granted("memory_mb", _MEMORY_MB) as guest:
        await _check_stopped(guest, "allocate", mb=4 * _MEMORY_MB)
        await guest.sandbox.kill(0)
        expect(await other.ask("process_info"), "the other sandbox lives")


async def _check_stopped(guest: GuestSession, request: str, **given: object) -> None:
    """Raise Violation unless the guest is refused that memory, or ends because of it, now or at the next look."""
    try:
        await guest.ask(request, **given)
    except Ended:
        pass
    except Refused as refusal:
        expect(
            str(refusal) in {"MemoryError", "ENOMEM", "EPERM", "ENOSPC", "EFBIG"},
            f"{request} is refused because of memory, not by {refusal}",
        )
        return
    await _check_oom(guest)


async def _check_oom(guest: GuestSession) -> None:
    task = asyncio.ensure_future(guest.sandbox.wait())
    try:
        await eventually(task.done, "a sandbox with more memory than granted ends")
        expect(task.result().reason == "oom", f"the reason of that end is oom, not {task.result()}")
    finally:
        task.cancel()


CHECKS: tuple[Check, ...] = checks_of(__name__)
