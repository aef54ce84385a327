"""The program of a pod that dials its kernel, or any kernel that invites it on standard input.

Its sandboxes continue from one line to the next. The program ends with an error after `patience_s` without a kernel.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.isolation.kubernetes import pod_args
from ramet.isolation.kubernetes.entrypoint import warmup

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ramet.isolation.remote.node_agent import NodeAgent
    from ramet.isolation.transport.join_token import JoinToken
    from ramet.isolation.transport.reinvite import TokenStream


def main() -> None:
    """Run the program.

    Arguments: the Secret's folder, the patience in seconds, and those of `ramet.isolation.kubernetes.pod_args`.
    """
    secret, patience, *args = sys.argv[1:]
    pod = pod_args.read(args)
    pod_args.limit_processes(pod)
    warmup_thread = warmup.start_warmup(pod)
    import asyncio

    from ramet.isolation.transport import join_token

    token = join_token.read(Path(secret), pod=os.environ["RAMET_POD_UID"])
    asyncio.run(run(token, _move_descriptor(0), float(patience), pod, warmup_thread))


def _move_descriptor(descriptor: int) -> int:
    """Return a duplicate of a descriptor, and point the original to /dev/null; return -1 if it is closed.

    Other programs do not inherit the duplicate.
    """
    try:
        copy = os.dup(descriptor)
    except OSError:
        return -1
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, descriptor)
    os.close(null)
    return copy


async def run(
    token: JoinToken, source: int, patience_s: float, pod: pod_args.PodArgs, warmup_thread: threading.Thread
) -> None:
    """Serve successive kernels, once `warmup_thread` has ended, until one ends the pod. Raises Gone."""
    import asyncio

    from ramet.concurrency.threads import in_thread
    from ramet.isolation.remote.node_agent import open_node_agent
    from ramet.isolation.transport.reinvite import TokenStream

    next_token: JoinToken | None = token
    async with (
        TokenStream(source, pod=token.pod) as invitations,
        open_node_agent(pod.runs, pod.places, pod=not pod.is_shared) as node_agent,
    ):
        probing = asyncio.ensure_future(in_thread(warmup_thread.join, name="ramet-probe"))
        while next_token is not None:
            next_token = await _follow(next_token, invitations, node_agent, probing, patience_s)


async def _follow(
    token: JoinToken, invitations: TokenStream, node_agent: NodeAgent, probing: Awaitable[None], patience_s: float
) -> JoinToken | None:
    """Serve one kernel; return the token of the next one, or None if this kernel has ended the pod. Raises Gone."""
    import asyncio

    from ramet.core.errors import Gone
    from ramet.isolation.transport.dialer import open_dialer
    from ramet.isolation.transport.resuming import LineTimeouts

    async with open_dialer(token, patience=LineTimeouts(give_up_s=patience_s)) as line:
        await probing
        serving = asyncio.ensure_future(node_agent.serve(line))
        next_invitation = asyncio.ensure_future(invitations.wait_other(token))
        try:
            await asyncio.wait((serving, next_invitation), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                line.give_up()
            if await serving:
                return None
            # A living kernel that lost the pod to another one ends the line. The other one's token may still arrive.
            await asyncio.wait((next_invitation,), timeout=patience_s if line.is_disconnected else 0)
            if next_invitation.done():
                return next_invitation.result()
            address = token.url.removeprefix("wss://").partition("/")[0]
            if not line.connections:
                raise Gone(f"no kernel answered for {patience_s:g} s at {address}, the address in pods.dial")
            raise Gone(f"the kernel did not answer for {patience_s:g} s at {address}, or has released the pod")
        finally:
            for task in (serving, next_invitation):
                task.cancel()
            await asyncio.gather(serving, next_invitation, return_exceptions=True)
