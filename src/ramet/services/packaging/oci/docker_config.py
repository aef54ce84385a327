"""Logins that users of containers have already: Docker's configuration file, and credential helpers.

The file is read as Docker reads it: `credHelpers` names a helper for one registry, `credsStore` names one for all
registries, and `auths` contains logins.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from ramet.concurrency import processes
from ramet.concurrency.clock import Clock, SystemClock
from ramet.concurrency.pipes import Capture
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue, RametError
from ramet.services.packaging.oci.auth import Login

HELPER_S = 30.0  #: how long a helper may take
MAX_CONFIG = 1024 * 1024
_MAX_ANSWER = 64 * 1024
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HUB, _HUBS = "https://index.docker.io/v1/", ("docker.io", "index.docker.io", "registry-1.docker.io")
_NOT_FOUND = b"credentials not found in native keychain"
_IDENTITY = "<token>"  #: in place of a name: the secret is an identity token


class HelperFailed(RametError):
    """A credential helper that returned no login. Its output is not shown, because it may contain a secret."""

    def __init__(self, helper: str, registry: str, reason: str) -> None:
        self.helper, self.registry, self.reason = helper, registry, reason
        super().__init__(f"{helper} gave no login for {registry}: {reason}")


class _Auth(Struct):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""


class _Config(Struct, rename="camel"):
    auths: dict[str, _Auth] = {}
    cred_helpers: dict[str, str] = {}
    creds_store: str = ""


class _Answer(Struct, rename="pascal"):
    username: str
    secret: str


async def login_for(
    registry: str,
    environ: Mapping[str, str] = os.environ,
    *,
    clock: Clock | None = None,
    limit_s: float = HELPER_S,
) -> Login:
    """Return the login for a registry, by its host and port; an empty login if none is configured.

    The file is `config.json` in `$DOCKER_CONFIG`, else in `~/.docker`. Raises InvalidValue, which names the file, and
    HelperFailed; neither shows the content of the file.
    """
    file = _file(environ)
    config = await in_thread(lambda: _read(file), name="ramet-docker-config")
    host = _host(registry)
    auth_name = next((each for each in config.auths if _host(each) == host), "")
    helper_name = next((each for each in config.cred_helpers if _host(each) == host), "")
    if helper := config.cred_helpers.get(helper_name) or config.creds_store:
        if not _HELPER.fullmatch(helper):
            raise InvalidValue(f"credential helper in {file}", helper, "the NAME of a program docker-credential-NAME")
        server = helper_name or auth_name or (_HUB if host == _host(_HUB) else registry)
        answer = await _ask_helper(f"docker-credential-{helper}", server, environ, clock or SystemClock(), limit_s)
        if answer:
            return answer
    return _login(config.auths[auth_name], auth_name, file) if auth_name else Login()


def pull_secret(registry: str, login: Login) -> bytes:
    """Return the content of a Secret of type kubernetes.io/dockerconfigjson, so that nodes can pull from one registry.

    Raises InvalidValue for a login that nodes cannot use: only clients that request tokens themselves can use an
    identity token.
    """
    if not login.username:
        raise InvalidValue("login", "an identity token" if login else "none", "a name and a password, for nodes to use")
    auth = base64.b64encode(f"{login.username}:{login.password}".encode()).decode()
    entry = {"username": login.username, "password": login.password, "auth": auth}
    server = _HUB if _host(registry) == _host(_HUB) else registry
    return json.dumps({"auths": {server: entry}}, separators=(",", ":")).encode()


def _file(environ: Mapping[str, str]) -> Path:
    folder = environ.get("DOCKER_CONFIG")
    if folder:
        return Path(folder, "config.json")
    return Path(environ.get("HOME") or Path.home(), ".docker", "config.json")


def _read(file: Path) -> _Config:
    accepted = "Docker's configuration: JSON with auths, credHelpers and credsStore"
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_CONFIG + 1)
    except (FileNotFoundError, NotADirectoryError):
        return _Config()
    except OSError as problem:
        raise InvalidValue("docker config", str(file), f"{accepted}; {problem.strerror}") from None
    try:
        if len(data) <= MAX_CONFIG:
            return msgspec.json.decode(data, type=_Config)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        pass
    raise InvalidValue("docker config", str(file), f"{accepted}, at most {MAX_CONFIG} bytes")


def _host(key: str) -> str:
    """Return the host and port of a key of the file. The key may have a scheme and a path, as older keys do."""
    host = key.partition("://")[2] or key
    host = host.partition("/")[0].lower()
    return _HUBS[0] if host in _HUBS else host


def _login(auth: _Auth, key: str, file: Path) -> Login:
    username, password = auth.username, auth.password
    if auth.auth:
        try:
            username, colon, password = base64.b64decode(auth.auth, validate=True).decode().partition(":")
        except ValueError:
            colon = ""
        if not colon:
            raise InvalidValue("docker config", str(file), f"auths of {key!r} with name:password in base64")
    return Login("", "", auth.identitytoken) if auth.identitytoken else Login(username, password.rstrip("\0"))


async def _ask_helper(
    helper: str, server: str, environ: Mapping[str, str], clock: Clock, limit_s: float
) -> Login | None:
    """Return the login that a helper has for a server; None if it has none. Raises HelperFailed."""
    program = shutil.which(helper, path=environ.get("PATH", os.defpath))
    if program is None:
        raise HelperFailed(helper, server, "there is no such program on PATH")
    output, stderr = Capture(head=_MAX_ANSWER, stops=True), Capture(head=0)
    try:
        ended = await processes.run(
            [program, "get"],
            clock=clock,
            timeout_s=limit_s,
            cwd="/",
            env=dict(environ),
            stdout=output,
            stderr=stderr,
            stdin=server.encode(),
        )
    except OSError as problem:
        raise HelperFailed(helper, server, f"it could not be started: {problem.strerror}") from None
    if ended.reason == "timeout":
        raise HelperFailed(helper, server, f"not done within {limit_s:g} s")
    if ended.code and output.data().strip() == _NOT_FOUND:
        return None
    if ended.code or ended.reason == "enough":
        raise HelperFailed(
            helper, server, f"exit code {ended.code}" if ended.reason == "exit" else "its output is too large"
        )
    try:
        credentials = msgspec.json.decode(output.data(), type=_Answer)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise HelperFailed(helper, server, "its answer is not JSON with Username and Secret") from None
    if credentials.username == _IDENTITY:
        return Login(identity_token=credentials.secret)
    return Login(credentials.username, credentials.secret)
