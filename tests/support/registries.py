"""A container registry on this machine, and skopeo as its client; both are packages of Debian."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.http import Answer, Request
from tests.support.tars import tar

needs_registry = pytest.mark.skipif(
    shutil.which("docker-registry") is None or shutil.which("skopeo") is None,
    reason="docker-registry and skopeo are not installed: Debian's packages of these names, see `make tools`",
)
USER, PASSWORD, IDENTITY = "ramet", "secret", "an-identity-token"
_HASH = "$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a"


class TokenServer:
    """A server that gives USER the tokens of a request, and everybody else only tokens to pull.

    `requested_scopes` has the scopes of each request.

    USER is known by PASSWORD, or by IDENTITY.
    """

    def __init__(self, folder: Path) -> None:
        self._key, self._certificate = folder / "token.key", folder / "token.pem"
        self.realm, self.requested_scopes, self.anybody = "", list[list[str]](), False
        wanted = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=tokens"
        command = ["openssl", *wanted.split(), "-keyout", str(self._key), "-out", str(self._certificate)]
        subprocess.run(command, check=True, capture_output=True, timeout=180)

    @property
    def config(self) -> dict[str, str]:
        """Return the settings with which a registry uses this server."""
        settings = {"realm": f"{self.realm}/token", "service": "here", "issuer": "tests"}
        return {**settings, "rootcertbundle": str(self._certificate)}

    async def answer(self, request: Request, answer: Answer) -> None:
        """Answer one request."""
        given = request.headers.get("authorization", "")
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(request.path).query) or {"scope": [], "service": []}
        if request.method == "POST":
            query = {name: [request.body[name]] for name in ("service", "scope")}
            known = (request.body["grant_type"], request.body["refresh_token"]) == ("refresh_token", IDENTITY)
        else:
            known = given == f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
        if query["service"] != ["here"] or not (known or (request.method == "GET" and not given and self.anybody)):
            return await answer.send(401, {"errors": ["who are you"]})
        scopes = [each for line in query["scope"] for each in line.split()]
        self.requested_scopes.append(scopes)
        if not known:
            scopes = [f"{each.rpartition(':')[0]}:pull" for each in scopes]
        token = self._token(scopes)
        await answer.send(200, {"access_token": token} if request.method == "POST" else {"token": token})

    def _token(self, scopes: list[str]) -> str:
        access = [dict(zip(("type", "name", "actions"), each.split(":"), strict=True)) for each in scopes]
        claims = {
            "iss": "tests", "sub": USER, "aud": "here", "nbf": 0, "exp": 2**33, "iat": 0, "jti": "1",
            "access": [{**each, "actions": each["actions"].split(",")} for each in access],
        }  # fmt: skip
        pem = self._certificate.read_text().splitlines()
        head = {"typ": "JWT", "alg": "RS256", "x5c": ["".join(pem[1:-1])]}
        signing_input = ".".join(_url64(json.dumps(each).encode()) for each in (head, claims))
        command = ["openssl", "dgst", "-sha256", "-sign", str(self._key)]
        signed = subprocess.run(command, input=signing_input.encode(), check=True, capture_output=True, timeout=180)
        return f"{signing_input}.{_url64(signed.stdout)}"


def _url64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@contextlib.asynccontextmanager
async def registry(folder: Path, *, password: bool = False, tokens: TokenServer | None = None) -> AsyncIterator[str]:
    """Run a new registry with its images in `folder`; yield its host and port. USER logs in by PASSWORD or a token."""
    (folder / "htpasswd").write_text(f"{USER}:{_HASH}\n")
    config = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "http": {"addr": "127.0.0.1:0"},
        "log": {"level": "info"},
        **({"auth": {"token": tokens.config}} if tokens else {}),
        **({"auth": {"htpasswd": {"realm": "here", "path": str(folder / "htpasswd")}}} if password else {}),
    }
    (folder / "config.yml").write_text(json.dumps(config))
    process = await asyncio.create_subprocess_exec(
        "docker-registry",
        "serve",
        folder / "config.yml",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    output = b""
    try:
        while (found := re.search(rb"listening on ([0-9.]+:[0-9]+)", output)) is None:
            line = await process.stdout.readline()
            assert line, f"the registry ended: {output.decode()}"
            output += line
        reading = asyncio.create_task(process.stdout.read())
        try:
            yield found[1].decode()
        finally:
            process.kill()
            await reading
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def skopeo(*args: str | Path) -> str:
    """Run skopeo, which must succeed, and return its output."""
    process = await asyncio.create_subprocess_exec(
        "skopeo", "--insecure-policy", *args, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


def layout(
    folder: Path, files: dict[str, bytes], *, env: tuple[str, ...] = ("PATH=/usr/bin",), architecture: str = "amd64"
) -> Path:
    """Make an image of one layer with these files, as a folder in the layout of OCI; its tag is "base"."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, media_type: str) -> dict[str, str | int]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(data)}

    inner = f"sha256:{hashlib.sha256(tar(files)).hexdigest()}"
    config = {
        "architecture": architecture, "os": "linux", "author": "somebody",
        "config": {"Env": list(env), "Cmd": ["sh"], "Labels": {"kept": "yes"}},
        "rootfs": {"type": "layers", "diff_ids": [inner]}, "history": [{"created_by": "tests"}],
    }  # fmt: skip
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [blob(tar(files, packed=True), "layer.v1.tar+gzip")],
    }
    named = {
        **blob(json.dumps(manifest).encode(), "manifest.v1+json"),
        "annotations": {"org.opencontainers.image.ref.name": "base"},
    }
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder
