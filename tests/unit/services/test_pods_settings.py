"""Settings of pods: the listener that pods dial, and the shared place of a store's kernels."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from ramet.core.errors import InvalidValue, SandboxFailed
from ramet.isolation.transport import certificates, join_token
from ramet.services.config.kubernetes import KernelIdentities, images_of, listener_of, pods_of
from ramet.services.config.load import Config, examine, load
from ramet.services.config.settings import TcpAddress
from ramet.store.postgres import PostgresStore
from tests.support.free_ports import free_port
from tests.support.postgres import Server, postgres
from tests.support.postgres_stores import schema
from tests.support.registries import PASSWORD, USER, needs_registry, registry

__all__ = ["postgres", "schema"]  # fixtures are used by their names


def load_text(folder: Path, text: str) -> Config:
    """Load settings from a file in this folder, which is the working directory too."""
    (folder / "ramet.yaml").write_text(f"backend: kubernetes\nbase_image: ramet\nworking_dir: .\n{text}")
    return load(folder / "ramet.yaml", {}, {})


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("base_image: python\nregistry_url: http://a b", "registry_url"),
        ("base_image: python\nregistry_url: https://registry.example/Team", "registry_url"),
        ("registry_url: registry.example\nbase_image: Not a name", "base_image"),
    ],
    ids=["no URL", "no repository", "no image"],
)
def test_an_invalid_image_setting_is_refused_by_its_name(tmp_path: Path, text: str, field: str) -> None:
    """The error comes before any registry is asked."""
    (tmp_path / "ramet.yaml").write_text(f"backend: kubernetes\n{text}\n")

    with pytest.raises(InvalidValue) as refusal:
        images_of(load(tmp_path / "ramet.yaml", {}, {}), {})

    assert refusal.value.field == field


@needs_registry
async def test_an_unavailable_base_image_is_reported_by_its_settings(tmp_path: Path) -> None:
    """A missing image is a wrong setting; a registry that refuses or is silent may recover."""
    async with registry(tmp_path, password=True) as host:
        for registry_url, base_image, login, kind, message in (
            (host, "nothing:1", True, InvalidValue, "base_image: 'nothing:1' is not accepted"),
            (host, "nothing:1", False, SandboxFailed, f"registry_url {host}: .*HTTP 401.*registry_password"),
            ("127.0.0.1:1", "base:1", True, SandboxFailed, "registry_url 127.0.0.1:1: .* failed"),
        ):
            text = f"registry_url: {registry_url}\nregistry_username: {USER if login else 'nobody'}\n"
            (tmp_path / "ramet.yaml").write_text(
                f"backend: kubernetes\nbase_image: {base_image}\nworking_dir: .\n{text}registry_password: env:IT\n"
            )
            config = load(tmp_path / "ramet.yaml", {}, {})
            backend = pods_of(config, images_of(config, {"IT": PASSWORD}))
            with pytest.raises(kind, match=message):
                await backend.probe()
            await backend.close()


def test_settings_of_pods_are_read(tmp_path: Path) -> None:
    """Relative paths begin at the file's folder."""
    config = load_text(tmp_path, "pods: {dial: '[fd00::7]:8471', listen: '[::]:9000', ca: ca.pem, pull_secret: hub}\n")
    shared = load_text(tmp_path, "pods: {per: team, warm: 3}\n")

    assert (config.pods.dial, config.pods.listen) == (TcpAddress("fd00::7", 8471), TcpAddress("::", 9000))
    assert (config.pods.ca, config.pods.pull_secret) == (tmp_path / "ca.pem", "hub")
    assert (config.pods.per, shared.pods.per) == ("run", "team")
    assert (config.pods.warm, shared.pods.warm) == (0, 3)


@pytest.mark.parametrize("dial", ["kernel.example:8471", "0.0.0.0:8471", "10.0.0.1:0", "/run/door", "10.0.0.1"])
def test_pods_dial_an_address_with_a_port(tmp_path: Path, dial: str) -> None:
    """The network of pods may not resolve names."""
    (tmp_path / "ramet.yaml").write_text(f"pods: {{dial: '{dial}'}}\n")

    (problem,) = examine(tmp_path / "ramet.yaml", {}, {}).problems

    assert problem.field == "pods.dial"


def test_a_pod_serves_either_a_run_or_a_team(tmp_path: Path) -> None:
    (tmp_path / "ramet.yaml").write_text("pods: {per: tree}\n")

    (problem,) = examine(tmp_path / "ramet.yaml", {}, {}).problems

    assert (problem.field, problem.accepted.partition(" (")[0]) == ("pods.per", "run or team")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("pods: {listen: '0.0.0.0:8471'}", "pods.listen"),
        ("pods: {key: key.pem}", "pods.key"),
        ("pods: {dial: '10.0.0.1:8471', key: key.pem}", "pods.certificate"),
    ],
    ids=["listen", "key", "a key alone"],
)
def test_a_pod_setting_without_its_partner_is_refused(tmp_path: Path, text: str, field: str) -> None:
    """The setting alone would have no effect."""
    with pytest.raises(InvalidValue) as refusal:
        pods_of(load_text(tmp_path, text))

    assert refusal.value.field == field


async def test_the_listener_keeps_its_certificate_authority(tmp_path: Path) -> None:
    """A client that trusts the pod's authority reaches the kernel; a restarted kernel has the same authority.

    So has the kernel of a folder in which an older version named the authority's folder.
    """
    port, results = free_port(), list[Any]()
    folder, older = tmp_path / ".ramet" / "pod-listener", tmp_path / ".ramet" / "door"
    for number in range(3):
        if number == 2:
            folder.rename(older)
        listener = listener_of(load_text(tmp_path, f"pods: {{dial: '127.0.0.1:{port}'}}\n"))
        assert listener is not None
        await listener.start()
        await listener.start()
        try:
            results.append(listener.secret("a"))
            trusting = certificates.client_context(results[-1][join_token.CA])
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            writer.close()
            await writer.wait_closed()
        finally:
            await listener.stop()
            await listener.stop()

    assert results[0][join_token.URL] == f"wss://127.0.0.1:{port}/line"
    assert results[0][join_token.CA] == results[1][join_token.CA] == results[2][join_token.CA]
    assert results[0][join_token.KEY] != results[1][join_token.KEY]
    assert {each.stat().st_mode & 0o077 for each in older.iterdir()} == {0}
    assert not folder.exists()


async def test_a_listener_address_in_use_is_refused(tmp_path: Path) -> None:
    """The error names the setting when the server starts."""
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        listener = listener_of(load_text(tmp_path, f"pods: {{dial: '127.0.0.1:{other.getsockname()[1]}'}}\n"))
        assert listener is not None
        with pytest.raises(InvalidValue, match=r"pods\.listen"):
            await listener.start()
        await listener.stop()


async def test_kernels_of_one_store_share_a_place_and_have_own_names(postgres: Server, schema: str) -> None:
    """Each kernel knows the live ones; a restarted kernel has a new identity, since its pods are lost."""
    async with AsyncExitStack() as open_ones:
        one, two = [PostgresStore(postgres.dsn, schema=schema, kernel=name) for name in ("one", "two")]
        for each in (one, two):
            await each.open()
            open_ones.push_async_callback(each.close)

        identities = [await KernelIdentities(each)() for each in (one, two)]

        assert identities[0].place == identities[1].place
        assert {each.kernel for each in identities} == set(identities[0].living) == set(identities[1].living)
        await two.close()
        assert (await KernelIdentities(one)()).living == (identities[0].kernel,)
        await two.open()
        second_identity = await KernelIdentities(two)()
        assert second_identity.place == identities[0].place
        assert second_identity.kernel not in identities[0].living
