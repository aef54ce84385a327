"""Logins that users of containers have already: the `auths` of Docker's configuration file.

Credential helpers are not run. A registry whose login only a helper has is an error that says what to do.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue, RametError
from ramet.services.packaging.oci.auth import NOBODY, Login

MAX_CONFIG = 1024 * 1024
_HUB, _HUBS = "https://index.docker.io/v1/", ("docker.io", "index.docker.io", "registry-1.docker.io")
_REMEDY = (
    "ramet runs no credential helpers; set registry_username and registry_password, or give the registry a login in "
    "auths: `docker login {registry}` writes one where config.json has neither credsStore nor credHelpers"
)


class HelperFailed(RametError):
    """A login that only a credential helper has, which ramet does not run. `reason` says what to do."""

    def __init__(self, helper: str, registry: str, reason: str) -> None:
        self.helper, self.registry, self.reason = helper, registry, reason
        super().__init__(f"{helper[:100]!r} gave no login for {registry}: {reason}")


class _Auth(Struct):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""


class _Config(Struct, rename="camel"):
    auths: dict[str, _Auth] = {}
    cred_helpers: dict[str, str] = {}
    creds_store: str = ""


async def login_for(registry: str, environ: Mapping[str, str] = os.environ) -> Login:
    """Return the login for a registry, by its host and port; an empty login if none is configured.

    The file is `config.json` in `$DOCKER_CONFIG`, else in `~/.docker`. Raises InvalidValue, which names the file, and
    HelperFailed; neither shows a login.
    """
    file = _file(environ)
    config = await in_thread(lambda: _read(file), name="ramet-docker-config")
    host = _host(registry)
    key = next((each for each in config.auths if _host(each) == host), None)
    if key is not None and (login := _login(config.auths[key], key, file)):
        return login
    # With a credsStore, `docker login` writes an entry without a login for each registry that it logged in to.
    helpers = [name for each, name in config.cred_helpers.items() if _host(each) == host]
    if helper := next(iter(helpers), config.creds_store if key is not None else ""):
        raise HelperFailed(f"docker-credential-{helper}", registry, _REMEDY.format(registry=registry))
    return NOBODY


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
    accepted = "Docker's configuration: JSON with auths"
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
