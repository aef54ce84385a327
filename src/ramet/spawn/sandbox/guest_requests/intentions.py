"""The requests of a function's code, as calls that a safety gate votes on: spawns, tasks, mail."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ramet.core.errors import Denied
from ramet.core.ids import CallId, StepId
from ramet.core.policy.policy import Policy, to_public_dict
from ramet.core.recipe import MAX_BYTES
from ramet.spawn.run import Run
from ramet.wire.guest_protocol import guest_to_host
from ramet.wire.guest_protocol.guest_to_host import Request
from ramet.wire.values.json_object import json_object

MAX_ARGUMENTS = 1024 * 1024  #: bytes of a task's arguments
_HIDDEN_FIELDS = frozenset({"id", "capsule_tag", "heavy", "call_id"})


class IntendedCall(NamedTuple):
    """A request as a call: the tool name that rules use for it, and its arguments."""

    tool: str
    args: dict[str, Any]


class IntentionGate:
    """The gate for the requests of one sandboxed function; each request is an intention of its own."""

    def __init__(self, run: Run, step: StepId) -> None:
        self._run, self._step = run, step
        self._count = 0

    async def pass_gate(self, request: Request, body: bytes) -> None:
        """Have a request voted on, if its run has a gate and the request reaches other runs.

        Raises Denied if the gate denies it.
        """
        safety = self._run.context.safety
        if safety is None or (call := intended_call(request, body)) is None:
            return
        self._count += 1
        call_id = CallId(f"{self._step}.{self._count}")
        decision = await safety(self._run.context, call_id=call_id, tool=call.tool, args=call.args)
        if not decision.is_committed:
            raise Denied(call.tool, f"the safety gate: {decision.reason or 'denied without a reason'}")


def intended_call(request: Request, body: bytes) -> IntendedCall | None:
    """Return a request as a call, or None for a request that reaches only the run itself and runs below it.

    Raises InvalidValue or ProtocolError for an invalid body.
    """
    match request:
        case guest_to_host.Spawn():
            return IntendedCall("spawn_sub_agent", _shown_fields(request))
        case guest_to_host.PerformTask():
            return IntendedCall(
                "perform_task",
                {**_shown_fields(request), "args": json_object(body, "arguments", max_bytes=MAX_ARGUMENTS)},
            )
        case guest_to_host.CreateAgent():
            return IntendedCall("create_agent", json_object(body, "recipe", max_bytes=MAX_BYTES))
        case guest_to_host.Send():
            return IntendedCall("send_message", _shown_fields(request))
    return None


def _shown_fields(request: Request) -> dict[str, Any]:
    """Return the fields that the request sets, without internal ones."""
    fields = {
        name: value for name, value in msgspec.structs.asdict(request).items() if name not in _HIDDEN_FIELDS and value
    }
    return {name: to_public_dict(value) if isinstance(value, Policy) else value for name, value in fields.items()}
