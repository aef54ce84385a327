"""TLS for tests: a self-signed certificate, and ClientHellos, both real ones and ones that no client sends."""

from __future__ import annotations

import pathlib
import shutil
import ssl
import subprocess

import pytest


def make_certificate(folder: pathlib.Path) -> pathlib.Path:
    """Make a file with a key and a self-signed certificate for localhost, other.localhost and 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here, which makes the certificate of the TLS server")
    file = folder / "server.pem"
    key = folder / "key.pem"
    wanted = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost -addext"
    names = "subjectAltName=DNS:localhost,DNS:other.localhost,IP:127.0.0.1"
    command = ["openssl", *wanted.split(), names, "-keyout", str(key), "-out", str(file)]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
    file.write_text(key.read_text() + file.read_text())
    return file


def client_hello(name: str) -> bytes:
    """Return the first bytes that Python's own client sends."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def record(payload: bytes, *, kind: int = 22) -> bytes:
    """Return a record; 22 is a handshake."""
    return bytes([kind, 3, 1]) + len(payload).to_bytes(2, "big") + payload


def handshake(body: bytes) -> bytes:
    """Return a ClientHello message."""
    return b"\x01" + len(body).to_bytes(3, "big") + body


def hello_body(*extensions_: bytes, extensions: bool = True) -> bytes:
    """Return the body of a ClientHello: version, random, no session, one cipher suite, no compression, extensions."""
    joined = b"".join(extensions_)
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0"
    return body + (len(joined).to_bytes(2, "big") + joined if extensions else b"")


def server_name(*names: bytes, kind: int = 0) -> bytes:
    """Return the extension that names the server."""
    listed = b"".join(bytes([kind]) + len(name).to_bytes(2, "big") + name for name in names)
    data = len(listed).to_bytes(2, "big") + listed
    return b"\0\0" + len(data).to_bytes(2, "big") + data
