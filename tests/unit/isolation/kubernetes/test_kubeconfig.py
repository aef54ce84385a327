"""Tests of kubeconfig files: an unusable file is refused in one line, before any request."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from ramet.core.errors import InvalidValue
from ramet.isolation.kubernetes.api.errors import Unreachable
from ramet.isolation.kubernetes.api.objects import Objects


def write_kubeconfig(folder: Path, *, server: str = "https://127.0.0.1:1", ca: str = "", **user: Any) -> Path:
    """Write a file with a cluster and a user."""
    cluster = {"server": server} | ({"certificate-authority": ca} if ca else {})
    file = folder / "config"
    file.write_text(
        yaml.safe_dump(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "it", "user": "me"}}],
                "clusters": [{"name": "it", "cluster": cluster}],
                "users": [{"name": "me", "user": user}],
            }
        )
    )
    return file


BROKEN_FILES = {
    "empty": b"",
    "text": b"hello\n",
    "list": b"- a\n",
    "no YAML": b"a: [\n",
    "no text": b"\xff\xfe\x00",
    "no contexts": b"current-context: a\nclusters: []\n",
    "other shapes": b"current-context: a\ncontexts: [1]\nclusters: {}\nusers: 7\n",
}


@pytest.mark.parametrize("content", BROKEN_FILES.values(), ids=BROKEN_FILES.keys())
async def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: Path, content: bytes) -> None:
    """The error names the setting."""
    (tmp_path / "config").write_bytes(content)

    with pytest.raises(InvalidValue, match="expected a file as kubectl reads it") as refusal:
        Objects(tmp_path / "config", "default")

    assert (refusal.value.field, refusal.value.value) == ("kubeconfig", str(tmp_path / "config"))
    assert "\n" not in str(refusal.value)


async def test_invalid_files_and_servers_of_a_kubeconfig_are_refused(tmp_path: Path) -> None:
    """The cases are an invalid certificate, a missing one, and a server that is no URL."""
    (tmp_path / "ca.pem").write_text("nonsense")

    for fields, reason in (
        ({"ca": str(tmp_path / "ca.pem")}, "SSLError"),
        ({"client-certificate": "/nowhere/crt", "client-key": "/nowhere/key"}, "No such file"),
        ({"server": "cluster.example"}, "not a URL"),
    ):
        with pytest.raises(InvalidValue, match=reason):
            Objects(write_kubeconfig(tmp_path, **fields), "default")


async def test_an_unreachable_server_or_sign_in_program_is_named(tmp_path: Path) -> None:
    """The error has the server's URL, or the failed program."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        server = f"https://127.0.0.1:{nobody.getsockname()[1]}"
        signs_in = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "false"}
        for user, message in (
            ({"token": "t"}, f"cluster at {server} does not answer"),
            ({"exec": signs_in}, "Exec false"),
        ):
            objects = Objects(write_kubeconfig(tmp_path, server=server, **user), "default")
            try:
                with pytest.raises(Unreachable, match=message):
                    await objects.may("get", "pods", "default")
            finally:
                await objects.close()
