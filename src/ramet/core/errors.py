"""Every error a caller can act on, in one tree. Each names the field, the value, and what would be accepted."""

from __future__ import annotations


class RametError(Exception):
    """The root of everything ramet refuses or reports. Messages are bounded: names in them may be a model's words."""


class Bug(RametError):
    """Ours, not the caller's: a state that should not have been possible."""


class InvalidValue(RametError, ValueError):
    """A value that cannot be accepted: says which field, what came, and what would have been taken."""

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field, self.value, self.accepted = field, value, accepted
        try:
            shown = repr(value)
        except Exception:  # a hostile __repr__, nesting without end, an integer of more digits than Python prints
            shown = f"a value of type {type(value).__name__}"
        if len(shown) > 120:
            shown = f"{shown[:100]}… ({len(shown)} characters)"
        super().__init__(f"{_short(field)}: {shown} is not accepted; expected {accepted}")


class Unknown(RametError, LookupError):
    """A name that stands for nothing here: says what kind of thing, which name, and which names exist."""

    def __init__(self, kind: str, name: str, known: tuple[str, ...] = ()) -> None:
        self.kind, self.name, self.known = kind, _short(name), known
        super().__init__(
            f"unknown {kind} {self.name!r}; " + (f"known: {_listed(known)}" if known else "there are none")
        )


class MissingExtra(RametError, ImportError):
    """A package that this feature needs is not installed; the message holds the line that installs it."""

    def __init__(self, feature: str, extra: str) -> None:
        self.feature, self.extra = feature, extra
        super().__init__(f"{feature} needs an extra package; install it with: pip install 'ramet[{extra}]'")


class BudgetExceeded(RametError):
    """A reservation that does not fit. `scope` is the path of the run whose limit fired."""

    def __init__(self, resource: str, *, asked: float, left: float, scope: str) -> None:
        self.resource, self.asked, self.left, self.scope = resource, asked, left, scope
        super().__init__(f"budget of {scope}: {resource} asked {asked:.12g}, left {left:.12g}")


class SpawnRefused(RametError):
    """A child that was not born. `limit` names what stood against it, `free` what is left of it now."""

    def __init__(self, limit: str, reason: str, *, free: float | None = None) -> None:
        self.limit, self.reason, self.free = limit, reason, free
        super().__init__(f"spawn refused ({limit}): {reason}" + ("" if free is None else f"; free now: {free:.12g}"))


class MailRefused(RametError):
    """Mail that was not accepted; the sender is told why and may act on it."""

    def __init__(self, to: str, reason: str) -> None:
        self.to, self.reason = _short(to), reason
        super().__init__(f"mail to {self.to!r} refused: {reason}")


class Denied(RametError):
    """A gate (hook, approval, permission) said no, or could not answer, which means no."""

    def __init__(self, what: str, reason: str) -> None:
        self.what, self.reason = what, reason
        super().__init__(f"{what} denied: {reason}")


class Aborted(RametError):
    """Work that was stopped. `reason` is the word of whoever stopped it."""

    def __init__(self, reason: str = "aborted") -> None:
        self.reason = reason
        super().__init__(reason)


class ModelFailed(RametError):
    """A provider did not answer. Never an agent's finding. `retryable` says whether asking again may help.

    `retry_after_s` is what the provider asked us to wait, if it said so.
    """

    def __init__(
        self,
        model: str,
        reason: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        self.model, self.reason, self.status = model, reason, status
        self.retryable, self.retry_after_s = retryable, retry_after_s
        super().__init__(f"{model}: {reason}" + (f" (HTTP {status})" if status else ""))


class OutputInvalid(RametError):
    """A final answer that does not fit the agreed schema, after the retries that were allowed."""

    def __init__(self, problem: str, *, tries: int) -> None:
        self.problem, self.tries = problem, tries
        super().__init__(f"the final answer does not fit its schema after {tries} tries: {problem}")


class NoToolsLeft(RametError):
    """An agent whose tool list resolved to nothing. `entries` are the names that matched no tool."""

    def __init__(self, agent: str, entries: tuple[str, ...]) -> None:
        self.agent, self.entries = agent, entries
        super().__init__(f"agent {agent!r}: none of its tools exist here or all are denied: {_listed(entries)}")


class BusyError(RametError):
    """A second turn was asked of a run that is still in one."""


def _short(name: str) -> str:
    return name[:200]


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(_short, names[:20])) + (", …" if len(names) > 20 else "")
