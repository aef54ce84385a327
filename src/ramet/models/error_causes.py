"""Analyse the causes of an exception of a provider's client: what failed, where, and whether a request was sent.

SDKs wrap exceptions of their HTTP library, which wrap exceptions of the operating system. The wrappers say "Connection
error."; the causes have the details. No package is imported for this: classes are recognised by package and name.

A request was never sent if the connection failed. This is assumed only if every cause kept by Python is a connection
error: a client that has sent a request elsewhere before has another cause among them, and that request may have been
received.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator, Mapping
from socket import gaierror
from typing import Final
from urllib.parse import urlsplit

#: Maximum number of exceptions considered for one failure; ordinary chains are shorter.
MAX_CAUSES: Final = 50
_MAX_TEXT: Final = 300

_HTTPX: Final = frozenset({"ConnectError", "ConnectTimeout", "InvalidURL", "PoolTimeout", "ProxyError"})
_UNSUPPORTED: Final = frozenset({"UnsupportedProtocol"})
#: Classes that mean "no connection, or no request to send", by package.
_UNSENT_CLASSES: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("httpx", "httpx2", "httpcore", "httpcore2"), _HTTPX | _UNSUPPORTED),
    "h11": frozenset({"LocalProtocolError"}),
    "aiohttp": frozenset({"ClientConnectorError", "ConnectionTimeoutError", "InvalidURL"}),
    "botocore": frozenset({"ConnectTimeoutError", "EndpointConnectionError", "NoCredentialsError"}),
    "requests": frozenset({"ConnectTimeout", "InvalidSchema", "InvalidURL", "MissingSchema"}),
    "urllib3": frozenset({"ConnectTimeoutError", "NameResolutionError", "NewConnectionError"}),
}
#: Those of them that concern the request or its address: no retry helps.
_NO_REQUEST: Final = frozenset({"InvalidURL", "InvalidSchema", "LocalProtocolError", "MissingSchema"}) | _UNSUPPORTED
#: Errors of a program, not of a connection.
_PROGRAM_ERRORS: Final = (AssertionError, AttributeError, LookupError, NameError, NotImplementedError, TypeError)

_TIMEOUTS: Final[Mapping[str, str]] = {
    "ConnectTimeout": "no connection in time",
    "ConnectTimeoutError": "no connection in time",
    "PoolTimeout": "no connection of the client was free in time",
    "ReadTimeout": "no answer in time",
    "ReadTimeoutError": "no answer in time",
    "WriteTimeout": "the request could not be written in time",
}
#: Texts of SDKs without information; only a cause says more.
_EMPTY_MESSAGES: Final = frozenset({"", "Connection error.", "Request timed out.", "All connection attempts failed"})


def was_never_sent(error: BaseException) -> bool:
    """Return whether no provider can have received the request, as far as is known of the failure."""
    return _is_connect_failure(error, set())


def is_malformed(error: BaseException) -> bool:
    """Return whether the request or its address is invalid: a forbidden header, an address without a protocol."""
    is_request_error = any(not _NO_REQUEST.isdisjoint(_unsent_class_names(each)) for each in causes(error))
    return is_request_error and was_never_sent(error)


def is_program_error(error: BaseException) -> bool:
    """Return whether the root cause is an error of a program's own code, however it was wrapped."""
    for _ in range(MAX_CAUSES):
        if error.__cause__ is None:
            break
        error = error.__cause__
    return isinstance(error, _PROGRAM_ERRORS)


def description(error: BaseException) -> str | None:
    """Return what failed in the connection, and the host, as in "Connection refused 127.0.0.1:9".

    None if the causes say no more than `error` itself. The text never has request data: headers contain keys.
    """
    chain = list(causes(error))
    text = next((text for each in reversed(chain) if (text := _text(each))), None)
    host = next((host for each in reversed(chain) if (host := _host(each))), None)
    if text is None and host is None:
        return None
    message = " ".join(str(error).split())
    quotes = any(type(each).__name__ == "LocalProtocolError" for each in chain)
    own_text = "" if quotes or message in _EMPTY_MESSAGES or (text and text in message) else message[:_MAX_TEXT]
    cause_text = " ".join(part for part in (text, host if host is None or host not in own_text else None) if part)
    if not own_text:
        return cause_text
    return f"{own_text} ({cause_text})" if cause_text else own_text


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and all its known causes, each once, the nearest first."""
    seen_ids: set[int] = set()
    pending = [error]
    while pending and len(seen_ids) < MAX_CAUSES:
        each = pending.pop(0)
        if id(each) not in seen_ids:
            seen_ids.add(id(each))
            yield each
            pending += _direct_causes(each)


def _direct_causes(error: BaseException) -> list[BaseException]:
    direct: list[BaseException] = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []
    direct += [each for each in (error.__cause__, error.__context__) if each is not None]
    return direct


def _is_connect_failure(error: BaseException, seen_ids: set[int]) -> bool:
    """Return whether each chain of causes leads to a connection error, and below that to nothing else."""
    if id(error) in seen_ids or len(seen_ids) >= MAX_CAUSES:
        return len(seen_ids) < MAX_CAUSES
    seen_ids.add(id(error))
    direct = _direct_causes(error)
    if _unsent_class_names(error):
        return all(_is_connect_detail(each, seen_ids) for each in direct)
    return bool(direct) and all(_is_connect_failure(each, seen_ids) for each in direct)


def _is_connect_detail(error: BaseException, seen_ids: set[int]) -> bool:
    if id(error) in seen_ids or len(seen_ids) >= MAX_CAUSES:
        return len(seen_ids) < MAX_CAUSES
    seen_ids.add(id(error))
    is_os_error = isinstance(error, OSError | EOFError | asyncio.CancelledError | BaseExceptionGroup)
    is_builtin = _package(type(error)) in ("builtins", "socket", "ssl", "asyncio") and is_os_error
    if not (is_builtin or _package(type(error)) in ("anyio", "trio") or _unsent_class_names(error)):
        return False
    return all(_is_connect_detail(each, seen_ids) for each in _direct_causes(error))


def _unsent_class_names(error: BaseException) -> frozenset[str]:
    """Return the names of the classes of `error` that mean that nothing was sent."""
    if isinstance(error, ConnectionRefusedError | gaierror | ssl.SSLCertVerificationError):
        return frozenset({type(error).__name__})
    no_names = frozenset[str]()
    names = {
        cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _UNSENT_CLASSES.get(_package(cls), no_names)
    }
    return frozenset(names)


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _text(error: BaseException) -> str | None:
    """Return the text of this one exception, if it concerns the connection."""
    name = type(error).__name__
    if name == "LocalProtocolError" and _package(type(error)) == "h11":  # Its text quotes the header.
        return "a header of the request is not allowed (does the key contain a space or a newline?)"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS failed: the certificate is not trusted ({error.verify_message})"[:_MAX_TEXT]
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or 'no reason given').replace('_', ' ').lower()}"
    if isinstance(error, gaierror):
        return str(error.strerror)[:_MAX_TEXT]
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    if name in _TIMEOUTS:
        return _TIMEOUTS[name]
    if name in ("RemoteProtocolError", *_UNSUPPORTED):
        return " ".join(str(error).split())[:_MAX_TEXT].rstrip(".") or None
    if name == "BrokenResourceError":
        return "the connection was lost"
    return None


def _host(error: BaseException) -> str | None:
    """Return the host and port of this exception's request."""
    request = getattr(error, "_request", None) or getattr(error, "__dict__", {}).get("request")
    url = getattr(request, "url", None)
    if url is None:
        return None
    try:
        parts = urlsplit(str(url))
        host, port = parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None
    if not host or not host.isprintable():
        return None
    url_host = f"[{host}]" if ":" in host else host
    return (url_host if port is None else f"{url_host}:{port}")[:_MAX_TEXT]
