"""The errors of a cluster's API."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ramet.core.errors import RametError, SandboxFailed, SpawnRefused

if TYPE_CHECKING:
    from lightkube import ApiError

_LONG = 600  #: the number of characters of the API's message that are passed on


class Unreachable(RametError):
    """The API does not answer, or not now. A retry may succeed."""

    @classmethod
    def by(cls, error: BaseException) -> Unreachable:
        """Create the error for a broken connection, with the server's address if the cause has it."""
        import httpx2

        server = ""
        with contextlib.suppress(RuntimeError):  # The error belongs to no request.
            if isinstance(error, httpx2.RequestError):
                server = f" at {error.request.url.copy_with(path='', query=None, userinfo=b'')}"
        return cls(f"the API of the cluster{server} does not answer: {message_of(error)}")


class Missing(RametError, LookupError):
    """The requested object does not exist."""


class ApiConflict(RametError):
    """The object to be created already exists, or has changed since it was read."""


class Forbidden(RametError):
    """The kernel may not do this in this namespace. The message is the API's."""


class NotYet(RametError):
    """A container cannot be attached to, or not yet. The message is the API's."""


class Stale(RametError):
    """The changes since the given version are no longer known. The objects must be listed again."""


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Translate the client's errors into the errors of this module, SpawnRefused for a quota, or SandboxFailed."""
    import httpx2
    from lightkube import ApiError
    from lightkube.core.exceptions import ConfigError, NotReadyError

    try:
        yield
    except ApiError as error:
        raise _refusal(error) from error
    except (
        httpx2.HTTPError,
        OSError,
        ConfigError,  # of a login program that failed
        NotReadyError,  # of a list without metadata
        ValueError,  # of an answer that is not the API's: from a proxy, or from a server that accepts no one now
        LookupError,
    ) as error:
        raise Unreachable.by(error) from error


def message_of(error: BaseException) -> str:
    """Return the message of an error, or the name of its class if it has no message."""
    return str(error) or type(error).__name__


def _refusal(error: ApiError) -> RametError:
    code, message = error.status.code, (error.status.message or str(error))[:_LONG]
    match code:
        case None:
            return Unreachable(f"the answer does not come from the API of a cluster: {message}")
        case 404:
            return Missing(message)
        case 409 if error.status.reason == "Conflict" and error.request.method == "POST":
            return Unreachable(message)  # A quota changed while the request was counted: no object of that name exists.
        case 409:
            return ApiConflict(message)
        case 410:
            return Stale(message)
        case 403 if "exceeded quota" in message or "LimitRanger" in message or " usage per " in message:
            return SpawnRefused("quota", message)
        case 401:
            return Forbidden(f"the cluster does not accept the credentials: see the kubeconfig's user ({message})")
        case 403:
            return Forbidden(message)
        case 429 | 500 | 502 | 503 | 504:
            return Unreachable(message)
        case _:
            return SandboxFailed(f"the cluster refuses the request: {message}")
