"""Messages of the root of a tree to other sessions of the same user, by the names that its owner gave them."""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from ramet.core.errors import InvalidValue, Unknown
from ramet.core.ids import checked_name
from ramet.core.policy.session_access import (
    MAX_SENDER,
    MAX_SESSIONS,
    SESSION_PREFIX,
    SessionAddress,
    SessionMessage,
    check_message_text,
)
from ramet.spawn.run import Run

NO_SESSIONS: Final[Mapping[str, Any]] = MappingProxyType({})
#: Passes a message to the kernel of a folder, and returns what happened to it. Raises MailRefused.
PassMessage = Callable[[pathlib.Path, str, SessionMessage], Awaitable[str]]


class OtherSessions:
    """The sessions that the root of one tree may write to."""

    def __init__(self, addresses: Mapping[str, SessionAddress], own_id: str | None, pass_message: PassMessage) -> None:
        self._addresses, self._own_id, self._pass_message = addresses, own_id, pass_message

    async def send(self, run: Run, to: str, text: str) -> str:
        """Send a message of the root, and return what happened to it. Raises Unknown, InvalidValue, MailRefused.

        The same text to the same session in one turn is one message: a call that a kill has cut can be repeated.
        """
        address = self._addresses.get(to.removeprefix(SESSION_PREFIX))
        if address is None:
            raise Unknown("session", to, tuple(f"{SESSION_PREFIX}{name}" for name in self._addresses))
        check_message_text(text)
        content = f"{run.info.id}\0{run.turns}\0{to}\0{text}"
        message = SessionMessage(
            session=address.session,
            sender=self._own_id or run.info.id,
            id=hashlib.sha256(content.encode()).hexdigest()[:16],
            text=text,
        )
        await run.context.wait_persisted()  # The call is recorded before it has an effect.
        return f"{to}: {await self._pass_message(pathlib.Path(address.folder), to, message)}."


def checked_sessions(sessions: object) -> dict[str, SessionAddress]:
    """Return addresses by their names; a path alone is the address of the only session there. Raises InvalidValue."""
    accepted = f"a mapping of at most {MAX_SESSIONS} names to folders or ramet.SessionAddress"
    if not isinstance(sessions, Mapping) or len(sessions) > MAX_SESSIONS:
        raise InvalidValue("other_sessions", sessions, accepted)
    return {
        checked_name("other_sessions", name): _checked_address(name, value, accepted)
        for name, value in sessions.items()
    }


def _checked_address(name: str, value: Any, accepted: str) -> SessionAddress:
    address = SessionAddress(folder=os.fspath(value)) if isinstance(value, str | os.PathLike) else value
    is_address = isinstance(address, SessionAddress)
    if not is_address or not isinstance(address.folder, str) or not isinstance(address.session, str):
        raise InvalidValue(f"other_sessions.{name}", value, accepted)
    if not address.folder or "\0" in address.folder or len(address.session) > MAX_SENDER:
        raise InvalidValue(f"other_sessions.{name}", value, accepted)
    return SessionAddress(folder=str(pathlib.Path(address.folder).absolute()), session=address.session)
