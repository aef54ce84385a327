"""A function as the job of a sandbox: the message that starts it, and the value or the error that it ends with."""

from __future__ import annotations

import typing
from typing import Any

import msgspec

from ramet.core.errors import Aborted, InvalidValue, RametError
from ramet.core.outcome import ErrorInfo
from ramet.spawn.run import Run
from ramet.wire.error_codec import decode_error
from ramet.wire.guest_protocol.guest_to_host import Done
from ramet.wire.guest_protocol.host_to_guest import HostMessage, StartFunction
from ramet.wire.values import values


class FunctionJob:
    """A function to be called inside a sandbox."""

    def __init__(self, run: Run, prompt: str) -> None:
        self._run, self._prompt = run, prompt

    async def start(self) -> tuple[HostMessage, bytes]:
        """Return the first message, with the packed function and the late arguments."""
        run, capsule, grant = self._run, self._run.sandbox.capsule, self._run.grant
        assert capsule is not None, "a function in a sandbox is packed"
        assert grant is not None, "a run in a sandbox has a grant"
        late_args = run.request.late_args
        if run.agent.external is not None:
            late_bytes = _as_json((self._program_prompt(), run.turn.resumes))
        else:
            late_bytes = _as_json(late_args()) if late_args is not None else b""
        start = StartFunction(
            run=run.info.id,
            path=run.info.path,
            name=capsule.name,
            capsule_tag=capsule.tag,
            max_result_bytes=grant.max_output_bytes,
            late_size=len(late_bytes),
        )
        return start, capsule.data + late_bytes if late_bytes else capsule.data

    def _program_prompt(self) -> str:
        """Return the prompt of the turn; the first one begins with the instructions of the agent."""
        agent = self._run.agent
        first = (agent.primer, agent.instructions) if self._run.turns <= 1 else ()
        return "\n\n".join(filter(None, (*first, self._prompt)))

    def finish(self, done: Done, body: bytes) -> Any:
        """Return the value, converted to the type that the host itself knows.

        Raises the guest's error, ProtocolError, and OutputTooLarge if the value exceeds the limit.
        """
        if not done.ok:
            error = decode_error(
                done.error or ErrorInfo(type="Error", message="it failed without an error message"), done.fields
            )
            if isinstance(error, Aborted) and not self._run.context.abort.aborted:
                error = RametError(str(error))  # No one stopped it: its own claim does not make it a cancelled run.
            raise error
        max_bytes = self._run.grant.max_output_bytes if self._run.grant is not None else 0
        if len(body) > max_bytes:
            raise values.result_too_large(len(body), max_bytes)
        return values.decode(body, done.json_size, returns=_result_type(self._run))


def _as_json(late_args: tuple[Any, ...]) -> bytes:
    """Encode late arguments as JSON.

    Raises InvalidValue if they are not JSON data.
    """
    try:
        return msgspec.json.encode(late_args)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidValue("late_args", type(late_args).__name__, f"data that JSON can hold ({problem})") from None


def _result_type(run: Run) -> Any:
    """Return the type of the result, as the host's own code declares it."""
    if run.request.returns is not None or run.agent.function is None:
        return run.request.returns
    try:
        return typing.get_type_hints(run.agent.function).get("return")
    except Exception:  # an annotation that cannot be resolved here declares no type
        return None
