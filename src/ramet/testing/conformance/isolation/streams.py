"""Checks of input and output: the channel, the printed output, and the initial state of a process."""

from __future__ import annotations

import asyncio
import os
import socket

from ramet.isolation.contract import BASE_ENV
from ramet.testing.conformance.checks import checks_of, expect
from ramet.testing.conformance.isolation.harness import CANARY, BackendFixture, Check, eventually, time_limit

_LARGE = 8 * 1024 * 1024
_PRINTED = 1024 * 1024


async def a_channel_is_a_connected_stream(fixture: BackendFixture) -> None:
    """Check that the channel is non-blocking on the host, passes large messages whole, and belongs to one sandbox."""
    async with fixture.start_guest() as one, fixture.start_guest() as other:
        channel = one.sandbox.channel
        expect(channel.type == socket.SOCK_STREAM, "a channel is a stream")
        expect(not channel.getblocking(), "the host's end does not block")
        channel.getpeername()
        expect(not os.get_inheritable(channel.fileno()), "the host's end is not inherited")
        body = os.urandom(_LARGE)
        (_, echo), (size, _) = await asyncio.gather(one.ask_with(body, "echo"), other.ask_with(b"x", "echo"))
        expect(echo == body and size == 1, "bytes arrive as they were sent, each in its own channel")


async def a_channel_ends_with_its_guest(fixture: BackendFixture) -> None:
    """Check that the channel ends with its guest, however the guest ends."""
    for request in ({"request": "leave", "code": 0}, {"request": "end_by", "number": 9}):
        async with fixture.start_guest() as guest:
            await guest.send(**request)  # type: ignore[arg-type]  # a request and its arguments
            await guest.wait_closed()
            await guest.wait_ended()


async def output_is_read_to_its_end(fixture: BackendFixture) -> None:
    """Check that both streams separately carry all output of the guest and its programs, past the sandbox's end."""
    async with fixture.start_guest() as guest:
        reading = asyncio.ensure_future(guest.output())
        await guest.ask("say", stream=1, text="o", times=_PRINTED)
        await guest.ask("say", stream=2, text="e", times=_PRINTED)
        await guest.ask("say_by_program", text="program")
        await guest.send("leave", code=0)
        await guest.wait_ended()
        out, err = await reading
        expect(
            out == b"o" * _PRINTED + b"program\n", f"stdout has everything that was printed there ({len(out)} bytes)"
        )
        expect(
            err == b"e" * _PRINTED + b"program\n", f"stderr has everything that was printed there ({len(err)} bytes)"
        )


async def output_outlives_a_process(fixture: BackendFixture) -> None:
    """Check that output printed before a violent end can be read after it."""
    async with fixture.start_guest() as guest:
        await guest.ask("say", stream=1, text="last words", times=1)
        await guest.sandbox.kill(0)
        expect((await guest.output())[0] == b"last words", "output before the end is not lost")


async def unread_output_does_not_block_termination(fixture: BackendFixture) -> None:
    """Check that unread output stalls a guest that prints without end, but not its killing."""
    async with fixture.start_guest() as guest:
        await guest.send("say", stream=1, text="flood", times=_LARGE)
        async with time_limit():
            await guest.sandbox.kill(0.1)


async def the_environment_has_only_the_given_variables(fixture: BackendFixture) -> None:
    """Check that the environment has the given variables and the backend's own, and none of the host's."""
    expect(os.environ.get(CANARY), "control: the environment of the host has a canary")
    for env in ({}, {"ONE": "1", "EMPTY": "", "LINES": "a\nb=ü"}):
        async with fixture.start_guest(env=env) as guest:
            environment = (await guest.ask("process_info"))["env"]
            expect(env.items() <= environment.items(), f"the environment contains {env}: {environment}")
            expect(
                environment.keys() - env.keys() <= {*BASE_ENV},
                f"the environment contains only {env} and variables of the backend: {environment}",
            )
            readable = await guest.ask("environments")
            expect(os.environ[CANARY] not in readable, "no process inside shows the host's environment")


async def standard_input_is_empty(fixture: BackendFixture) -> None:
    """Check that standard input is at its end from the start."""
    async with fixture.start_guest() as guest:
        expect(await guest.ask("from_stdin") == "", "stdin is empty")


async def nothing_else_is_inherited(fixture: BackendFixture) -> None:
    """Check that a guest inherits no socket except the channel, and no folder, and that programs inherit neither."""
    read, write = os.pipe()
    try:
        os.set_inheritable(read, True)
        async with fixture.start_guest() as guest:
            descriptors = await guest.ask("descriptors", up_to=256)
            expect(
                sum(each["is_socket"] for each in descriptors) == 1,
                f"the channel is the only socket inside: {descriptors}",
            )
            expect(not any(each["is_folder"] for each in descriptors), f"no folder is open inside: {descriptors}")
            expect(not any(each["is_inherited"] for each in descriptors), f"programs inherit nothing: {descriptors}")
    finally:
        os.close(read)
        os.close(write)


async def a_guest_works_in_its_workspace(fixture: BackendFixture) -> None:
    """Check that the workspace is the working directory, writable, the same on both sides, and the backend owner's."""
    spec = fixture.spec()
    (spec.workspace / "from-host").write_text("host")
    (spec.workspace / "from-host").chmod(0o644)
    async with fixture.start_guest(spec) as guest:
        expect(await guest.ask("read", path="from-host") == "host", "a file of the host is visible in the workspace")
        await guest.ask("write", path="from-guest", text="guest")
        await guest.ask("say_by_program", text="")
        file = await guest.synced_path("from-guest")
        expect(file.read_text() == "guest", "a file of the guest is visible to the host at once")
        if fixture.backend.owner is not None:
            expect(
                (file.stat().st_uid, file.stat().st_gid) == fixture.backend.owner,
                "the file belongs to the owner of the backend",
            )
        if fixture.has_namespaces and not fixture.probe.remote:
            expect(file.stat().st_uid != 0, "a sandbox does not run as root of the host")


async def an_image_is_imported_in_advance(fixture: BackendFixture) -> None:
    """Check that `bare` and `llm` both start, and that only the second has langchain-core from the start."""
    async with fixture.start_guest(image="bare") as bare, fixture.start_guest(image="llm") as llm:
        expect(await llm.ask("has_imported", module="langchain_core.messages"), "`llm` has langchain-core")
        expect(
            not await bare.ask("has_imported", module="langchain_core.messages"), "`bare` does not have langchain-core"
        )


async def locks_are_seen_from_outside(fixture: BackendFixture) -> None:
    """Check this suite itself: the host sees a lock exactly while a process inside holds it."""
    async with fixture.start_guest() as guest:
        await guest.ask("write", path="held", text="")
        expect(not await guest.is_locked("held"), "no process holds the lock")
        await guest.ask("hold", path="held")
        expect(await guest.is_locked("held"), "a process holds the lock")
        await guest.send("leave", code=0)
        await guest.wait_ended()
        await eventually(lambda: guest.is_unlocked("held"), "the lock is released with the guest")


CHECKS: tuple[Check, ...] = checks_of(__name__)
