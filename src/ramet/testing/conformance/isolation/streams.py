"""Checks of input and output: the channel, the printed output, and the initial state of a process."""

from __future__ import annotations

import asyncio
import os
import socket

from ramet.isolation.contract import BASE_ENV
from ramet.testing.conformance.isolation.harness import CANARY, BackendFixture, Check, eventually, holds, patience

_LARGE = 8 * 1024 * 1024
_PRINTED = 1024 * 1024


async def a_channel_is_a_connected_stream(site: BackendFixture) -> None:
    """Check that the channel is non-blocking on the host, passes large messages whole, and belongs to one sandbox."""
    async with site.visit() as one, site.visit() as other:
        channel = one.sandbox.channel
        holds(channel.type == socket.SOCK_STREAM, "a channel is a stream")
        holds(not channel.getblocking(), "the host's end does not block")
        channel.getpeername()
        holds(not os.get_inheritable(channel.fileno()), "the host's end is not inherited")
        body = os.urandom(_LARGE)
        (_, back), (size, _) = await asyncio.gather(one.ask_with(body, "echo"), other.ask_with(b"x", "echo"))
        holds(back == body and size == 1, "bytes arrive as they were sent, each in its own channel")


async def a_channel_ends_with_its_guest(site: BackendFixture) -> None:
    """Check that the channel ends with its guest, however the guest ends."""
    for told in ({"deed": "leave", "code": 0}, {"deed": "end_by", "number": 9}):
        async with site.visit() as visit:
            await visit.tell(**told)  # type: ignore[arg-type]  # a deed and its arguments
            await visit.closed()
            await visit.ended()


async def output_is_read_to_its_end(site: BackendFixture) -> None:
    """Check that both streams separately carry all output of the guest and its programs, past the sandbox's end."""
    async with site.visit() as visit:
        reading = asyncio.ensure_future(visit.output())
        await visit.ask("say", stream=1, text="o", times=_PRINTED)
        await visit.ask("say", stream=2, text="e", times=_PRINTED)
        await visit.ask("say_by_program", text="program")
        await visit.tell("leave", code=0)
        await visit.ended()
        out, err = await reading
        holds(out == b"o" * _PRINTED + b"program\n", f"stdout is what was printed there ({len(out)} bytes)")
        holds(err == b"e" * _PRINTED + b"program\n", f"stderr is what was printed there ({len(err)} bytes)")


async def output_outlives_a_process(site: BackendFixture) -> None:
    """Check that output printed before a violent end can be read after it."""
    async with site.visit() as visit:
        await visit.ask("say", stream=1, text="last words", times=1)
        await visit.sandbox.kill(0)
        holds((await visit.output())[0] == b"last words", "what was printed is not lost")


async def unread_output_does_not_block_termination(site: BackendFixture) -> None:
    """Check that unread output stalls a guest that prints without end, but not its killing."""
    async with site.visit() as visit:
        await visit.tell("say", stream=1, text="flood", times=_LARGE)
        async with patience():
            await visit.sandbox.kill(0.1)


async def the_environment_has_only_the_given_variables(site: BackendFixture) -> None:
    """Check that the environment has the given variables and the backend's own, and none of the host's."""
    holds(os.environ.get(CANARY), "a control: the host's environment has a canary")
    for env in ({}, {"ONE": "1", "EMPTY": "", "LINES": "a\nb=ü"}):
        async with site.visit(env=env) as visit:
            seen = (await visit.ask("who"))["env"]
            holds(env.items() <= seen.items(), f"the environment has {env}, not {seen}")
            holds(seen.keys() - env.keys() <= {*BASE_ENV}, f"the environment has nothing but {env}, not {seen}")
            readable = await visit.ask("environments")
            holds(os.environ[CANARY] not in readable, "no process inside shows the host's environment")


async def standard_input_is_empty(site: BackendFixture) -> None:
    """Check that standard input is at its end from the start."""
    async with site.visit() as visit:
        holds(await visit.ask("from_stdin") == "", "there is nothing to be read on stdin")


async def nothing_else_is_inherited(site: BackendFixture) -> None:
    """Check that a guest inherits no socket except the channel, and no folder, and that programs inherit neither."""
    read, write = os.pipe()
    try:
        os.set_inheritable(read, True)
        async with site.visit() as visit:
            found = await visit.ask("descriptors", up_to=256)
            holds(sum(each["is_socket"] for each in found) == 1, f"the channel is the only socket inside: {found}")
            holds(not any(each["is_folder"] for each in found), f"no folder is open inside: {found}")
            holds(not any(each["is_inherited"] for each in found), f"programs inherit nothing: {found}")
    finally:
        os.close(read)
        os.close(write)


async def a_guest_works_in_its_workspace(site: BackendFixture) -> None:
    """Check that the workspace is the working directory, writable, the same on both sides, and the backend owner's."""
    spec = site.spec()
    (spec.workspace / "from-host").write_text("host")
    (spec.workspace / "from-host").chmod(0o644)
    async with site.visit(spec) as visit:
        holds(await visit.ask("read", path="from-host") == "host", "what the host put there is there")
        await visit.ask("write", path="from-guest", text="guest")
        await visit.ask("say_by_program", text="")
        made = await visit.seen("from-guest")
        holds(made.read_text() == "guest", "what the guest makes is there at once")
        if site.backend.owner is not None:
            holds((made.stat().st_uid, made.stat().st_gid) == site.backend.owner, "it belongs to the backend's owner")
        if site.is_apart and not site.probe.remote:
            holds(made.stat().st_uid != 0, "a sandbox is nobody's root on the host")


async def an_image_is_imported_in_advance(site: BackendFixture) -> None:
    """Check that `bare` and `llm` both start, and that only the second has langchain-core from the start."""
    async with site.visit(image="bare") as bare, site.visit(image="llm") as llm:
        holds(await llm.ask("has_imported", module="langchain_core.messages"), "`llm` has langchain-core")
        holds(not await bare.ask("has_imported", module="langchain_core.messages"), "`bare` has not")


async def locks_are_seen_from_outside(site: BackendFixture) -> None:
    """Check this suite itself: the host sees a lock exactly while a process inside holds it."""
    async with site.visit() as visit:
        await visit.ask("write", path="held", text="")
        holds(not await visit.holding("held"), "nobody holds it")
        await visit.ask("hold", path="held")
        holds(await visit.holding("held"), "somebody does")
        await visit.tell("leave", code=0)
        await visit.ended()
        await eventually(lambda: visit.free("held"), "and does no more")


CHECKS: tuple[Check, ...] = (
    a_channel_is_a_connected_stream,
    a_channel_ends_with_its_guest,
    output_is_read_to_its_end,
    output_outlives_a_process,
    unread_output_does_not_block_termination,
    the_environment_has_only_the_given_variables,
    standard_input_is_empty,
    nothing_else_is_inherited,
    a_guest_works_in_its_workspace,
    an_image_is_imported_in_advance,
    locks_are_seen_from_outside,
)
