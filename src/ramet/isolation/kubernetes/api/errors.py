"""What the API of a cluster says instead of doing what it was asked, as errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ramet.core.errors import RametError, SandboxFailed, SpawnRefused

if TYPE_CHECKING:
    from lightkube import ApiError

_LONG = 600  #: of the API's words, so many letters are passed on


class Unreachable(RametError):
    """The API does not answer, or not now: it may later."""

    @classmethod
    def by(cls, error: BaseException) -> Unreachable:
        """What a connection has broken by, and where it was to lead, if the error says."""
        import httpx2

        server = ""
        with contextlib.suppress(RuntimeError):  # It was never about a request.
            if isinstance(error, httpx2.RequestError):
                server = f" at {error.request.url.copy_with(path='', query=None, userinfo=b'')}"
        return cls(f"the API of the cluster{server} does not answer: {said(error)}")


class Missing(RametError, LookupError):
    """What was asked for is not there."""


class Taken(RametError):
    """What was to be made is there already."""


class Forbidden(RametError):
    """The kernel may not do this in this namespace; in the API's words."""


class NotYet(RametError):
    """A container cannot be attached to, or not yet; in the API's words."""


class Stale(RametError):
    """What changed since then is not known any more: it has to be listed."""


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """What the client raises inside comes out as one of these, or as SpawnRefused for a quota, SandboxFailed."""
    import httpx2
    from lightkube import ApiError
    from lightkube.core.exceptions import ConfigError

    try:
        yield
    except ApiError as error:
        raise _refusal(error) from error
    except (
        httpx2.HTTPError,
        OSError,
        ConfigError,  # of a program that was to sign in, and could not
        ValueError,  # of an answer that is not the API's: a proxy's, or a server's that lets nobody in for now
        LookupError,
    ) as error:
        raise Unreachable.by(error) from error


def said(error: BaseException) -> str:
    """An error's words, or what it is if it has none."""
    return str(error) or type(error).__name__


def _refusal(error: ApiError) -> RametError:
    code, message = error.status.code, (error.status.message or str(error))[:_LONG]
    match code:
        case None:
            return Unreachable(f"the answer is not that of a cluster's API: {message}")
        case 404:
            return Missing(message)
        case 409 if error.status.reason == "Conflict" and error.request.method == "POST":
            return Unreachable(message)  # A quota changed while this was counted: nothing of that name is there.
        case 409:
            return Taken(message)
        case 410:
            return Stale(message)
        case 403 if "exceeded quota" in message or "LimitRanger" in message or " usage per " in message:
            return SpawnRefused("quota", message)
        case 401:
            return Forbidden(
                f"the cluster does not know who asks, or not any more: see the kubeconfig's user ({message})"
            )
        case 403:
            return Forbidden(message)
        case 429 | 500 | 502 | 503 | 504:
            return Unreachable(message)
        case _:
            return SandboxFailed(f"the cluster refuses it: {message}")
