"""Logins of registries as Docker stores them in its file. No error shows a secret."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.services.packaging.oci.auth import NOBODY, Login
from ramet.services.packaging.oci.docker_config import HelperFailed, login_for, pull_secret

SECRET = "pa:ss word"
AUTH = base64.b64encode(f"me:{SECRET}".encode()).decode()
HOST = "registry.example.org:5000"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has a helper named "tests", which must not be run, and no configuration yet."""
    helper = tmp_path / "bin" / "docker-credential-tests"
    helper.parent.mkdir()
    helper.write_text('#!/bin/sh\necho >"$0.asked"\n')
    helper.chmod(0o755)
    return {"HOME": str(tmp_path), "PATH": f"{helper.parent}:{os.environ['PATH']}"}


def configure(environ: dict[str, str], config: Any) -> Path:
    """Write the file as Docker writes it."""
    folder = Path(environ.get("DOCKER_CONFIG") or Path(environ["HOME"], ".docker"))
    folder.mkdir(exist_ok=True)
    file = folder / "config.json"
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    return file


@pytest.mark.parametrize("key", [HOST, f"https://{HOST}", f"https://{HOST}/v1/", HOST.upper()])
async def test_a_login_is_found_by_host_and_port(environ: dict[str, str], key: str) -> None:
    """The form of the key makes no difference; another port is another registry."""
    configure(environ, {"auths": {"other.example.org": {}, key: {"auth": AUTH}}, "HttpHeaders": {}})

    assert await login_for(HOST, environ) == Login("me", SECRET)
    assert await login_for("registry.example.org", environ) == NOBODY


async def test_a_file_may_hold_a_name_and_a_password_or_an_identity(environ: dict[str, str]) -> None:
    """An identity token replaces name and password."""
    auths = {"a": {"username": "me", "password": "x"}, "b": {"auth": AUTH, "identitytoken": "t"}, "c": {}}
    configure(environ, {"auths": auths})

    assert [await login_for(each, environ) for each in "abc"] == [Login("me", "x"), Login("", "", "t"), NOBODY]


@pytest.mark.parametrize("host", ["docker.io", "index.docker.io", "registry-1.docker.io"])
async def test_dockers_own_registry_has_several_names(environ: dict[str, str], host: str) -> None:
    """The names share one key."""
    configure(environ, {"auths": {"https://index.docker.io/v1/": {"auth": AUTH}}})

    assert await login_for(host, environ) == Login("me", SECRET)


async def test_DOCKER_CONFIG_names_the_folder_of_the_file(environ: dict[str, str], tmp_path: Path) -> None:
    """The variable overrides the home folder; without a login the result is NOBODY."""
    assert await login_for(HOST, environ) == NOBODY
    configure(environ, {"auths": {HOST: {"auth": base64.b64encode(b"home:x").decode()}}})
    environ["DOCKER_CONFIG"] = str(tmp_path / "elsewhere")
    assert await login_for(HOST, environ) == NOBODY
    configure(environ, {"auths": {HOST: {"auth": AUTH}}})

    assert await login_for(HOST, environ) == Login("me", SECRET)


@pytest.mark.parametrize(
    "config",
    [{"credsStore": "tests", "auths": {f"https://{HOST}": {}}}, {"credHelpers": {f"https://{HOST}/v1/": "tests"}}],
)
async def test_a_login_that_only_a_helper_has_is_refused(
    environ: dict[str, str], tmp_path: Path, config: dict[str, Any]
) -> None:
    """The error names the helper, which is not run, and says what to do."""
    configure(environ, config)

    with pytest.raises(
        HelperFailed, match=rf"gave no login for {HOST}: .*registry_username.*`docker login {HOST}`"
    ) as error:
        await login_for(HOST, environ)

    assert (error.value.helper, error.value.registry) == ("docker-credential-tests", HOST)
    assert not (tmp_path / "bin" / "docker-credential-tests.asked").exists()


async def test_a_helper_does_not_matter_where_the_file_has_a_login(environ: dict[str, str], tmp_path: Path) -> None:
    """Nor for a registry that the user did not log in to, such as one of public images."""
    helpers = {HOST: "tests", "helped.example.org": "tests"}
    configure(environ, {"credsStore": "tests", "credHelpers": helpers, "auths": {HOST: {"auth": AUTH}}})

    assert await login_for(HOST, environ) == Login("me", SECRET)
    assert await login_for("unknown.example.org", environ) == NOBODY
    assert not (tmp_path / "bin" / "docker-credential-tests.asked").exists()


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        '{"auths": {"registry.example.org:5000": {"auth": "pa:ss word"}}}',
        '{"auths": {"registry.example.org:5000": {"auth": "bm9jb2xvbg=="}}}',
        '{"auths": {"registry.example.org:5000": {"auth": ["pa:ss word"]}}}',
        '{"auths": "pa:ss word"}',
        " " * 1024 * 1024 + "{}",
    ],
    ids=range(7),
)
async def test_an_invalid_file_is_named_and_not_quoted(environ: dict[str, str], config: str) -> None:
    """The file's content may be the secret."""
    file = configure(environ, config)

    with pytest.raises(InvalidValue) as refusal:
        await login_for(HOST, environ)

    assert str(file) in str(refusal.value)
    assert SECRET not in str(refusal.value)


def test_nodes_pull_with_a_name_and_a_password() -> None:
    """A pull secret of a cluster holds both; an identity token or no login is refused."""
    config = json.loads(pull_secret(HOST, Login("me", SECRET)))
    hub = json.loads(pull_secret("registry-1.docker.io", Login("me", SECRET)))

    assert config == {"auths": {HOST: {"username": "me", "password": SECRET, "auth": AUTH}}}
    assert [*hub["auths"]] == ["https://index.docker.io/v1/"]
    for login in (NOBODY, Login(identity_token="secret identity")):
        with pytest.raises(InvalidValue) as refusal:
            pull_secret(HOST, login)
        assert "secret identity" not in str(refusal.value)


def test_a_login_is_never_shown() -> None:
    """The password appears neither in `repr` nor in `str`."""
    assert SECRET not in f"{Login('me', SECRET)!r} {Login('me', SECRET)} {[Login('me', SECRET, 'x')]}"
