"""Errors that only the services raise: each is a special case of an error of `ramet.core.errors`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ramet.core.errors import Aborted, Gone, InvalidValue, NotYours, RametError


class Undecodable(InvalidValue):
    """Bytes that are not JSON, where JSON is expected."""


class BodyTooLarge(InvalidValue):
    """A body above the size limit; it was not processed."""

    def __init__(self, field: str, *, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(field, f"{size} bytes", f"at most {limit} bytes")


class UnknownKey(NotYours):
    """A key that opens nothing here: it is wrong, revoked or expired, or its agent or team was removed."""

    def __init__(self) -> None:
        super().__init__("key", "")
        self.args = ("this key is not valid: it is wrong, revoked or expired, or its team or agent was removed",)


class Missed(Gone):
    """Chunks of a turn that are not kept any more.

    `first` is the oldest kept chunk, None if no chunk of this turn is kept.
    """

    def __init__(self, turn: str, *, after: int, first: int | None) -> None:
        self.turn, self.after, self.first = turn, after, first
        available = "nothing of it is kept any more" if first is None else f"the oldest that is kept is number {first}"
        super().__init__(f"turn {turn!r} cannot be read from number {after + 1} on: {available}")


class Withdrawn(Aborted):
    """A turn that was never begun, because its key has lost the right to turns."""

    def __init__(self) -> None:
        super().__init__(
            "the turn was withdrawn before it began: the key that requested it has no right to turns any more"
        )


class TakenOver(RametError):
    """A team or an agent that another kernel has by now: nothing was done here, and the request can be repeated."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name[:200]
        super().__init__(
            f"{kind} {self.name!r} is owned by another kernel now: nothing was done here, repeat the request"
        )


class ValuesMissing(RametError):
    """An agent that waits for values which are not recorded. `missing` has their names by field."""

    def __init__(self, path: str, missing: Mapping[str, Sequence[str]]) -> None:
        self.path, self.missing = path, {field: list(names) for field, names in missing.items() if names}
        shown = "; ".join(f"{field}: {', '.join(names)}" for field, names in self.missing.items())
        super().__init__(f"agent {path!r} waits for values that are not recorded ({shown}); supply them")


class KeyReused(InvalidValue):
    """An `Idempotency-Key` of another request: nothing was done."""

    def __init__(self, value: str) -> None:
        super().__init__(
            "Idempotency-Key", value[:80], "the same query and body as in its first request, or another key"
        )


class RequestInProgress(RametError):
    """A request with the same `Idempotency-Key` that is being executed: repeat it later to get its answer."""

    def __init__(self) -> None:
        super().__init__("a request with this Idempotency-Key is being executed; repeat the request to get its answer")


class OutcomeUnknown(Gone):
    """A request with an `Idempotency-Key` whose server was killed during it: it is not executed a second time."""

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(
            "the first request with this Idempotency-Key was started by a server that was killed, so it may have "
            f"been executed or not; look at {where}, and use another key"
        )


class InUse(RametError):
    """An object that cannot be deleted because it has users.

    `users` are images by their ids, and agents by their paths.
    """

    def __init__(self, kind: str, name: str, users: Sequence[str]) -> None:
        self.kind, self.name, self.users = kind, name[:200], tuple(users)
        shown = ", ".join(self.users[:5]) + (", …" if len(self.users) > 5 else "")
        super().__init__(f"{kind} {self.name!r} is needed by {shown}")
