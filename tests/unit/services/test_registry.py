"""Images in a container registry: one layer more than their base, and equal bytes for equal images."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ramet.core.errors import InvalidValue, Unknown
from ramet.services.contract import Image
from ramet.services.packaging.oci.auth import Login, RegistryFailed, parse_challenges
from ramet.services.packaging.oci.layers import Layer, write_layer
from ramet.services.packaging.oci.manifest import (
    TYPES,
    Descriptor,
    append,
    container_paths,
    digest_of,
    of_platform,
    read_manifest,
)
from ramet.services.packaging.oci.push import LABEL, publish
from ramet.services.packaging.oci.registry import MAX_JSON, ImageReference, Registry, reference
from ramet.services.packaging.service import PackagingService
from tests.support.http import Answer, Handler, Request, serve
from tests.support.image_jobs import wait_finished
from tests.support.registries import IDENTITY, PASSWORD, USER, TokenServer, layout, needs_registry, registry, skopeo
from tests.support.tars import tar

FILES = {"tools/__init__.py": b"", "tools/sums.py": b"def add(a, b):\n    return a + b\n"}
DEEP, LONG = pytest.param(b"[" * 100_000, id="deep"), pytest.param("x" * 300, id="long")
BASE = {"bin/tool": b"#!/bin/sh\n"}


async def image_of(folder: Path, files: dict[str, bytes]) -> Image:
    """Return an image of one bundle."""
    async with PackagingService(folder) as service:
        bundle = await service.upload(tar(files, mode=0o755))
        job = await wait_finished(service, (await service.create_image("", [bundle.id])).id)
        return await service.image(job.image)


def entries_of(layer: bytes) -> dict[str, tarfile.TarInfo]:
    """Return the entries of a packed layer by name."""
    with tarfile.open(fileobj=io.BytesIO(layer), mode="r:gz") as archive:
        return {entry.name: entry for entry in archive}


# --- without a network ----------------------------------------------------------------------------------------------


async def test_equal_images_have_equal_layers(tmp_path: Path) -> None:
    """Times and order on the disk make no difference: owners and times are zero, and names are sorted."""
    one, two = await image_of(tmp_path / "1", FILES), await image_of(tmp_path / "2", dict(reversed(FILES.items())))
    for path in two.folders[0].rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    (two.folders[0] / "tools").chmod(0o755)
    (two.folders[0] / "tools" / "__pycache__").mkdir()
    (two.folders[0] / "tools" / "__pycache__" / "sums.pyc").write_bytes(b"left by an import")
    outs = io.BytesIO(), io.BytesIO()

    layers = [write_layer(out, container_paths(image)) for out, image in zip(outs, (one, two), strict=True)]

    assert layers[0] == layers[1]
    data = outs[0].getvalue()
    assert (layers[0].digest, layers[0].size) == (digest_of(data), len(data))
    assert layers[0].diff_id == digest_of(gzip.decompress(data))
    entries = entries_of(data)
    assert {(each.uid, each.gid, each.mtime, each.uname) for each in entries.values()} == {(0, 0, 0, "")}
    assert [*entries] == sorted(entries)
    top = f"opt/ramet/bundles/{one.folders[0].name}"
    assert [*entries] == ["opt", "opt/ramet", "opt/ramet/bundles", top, f"{top}/tools", *(f"{top}/{n}" for n in FILES)]
    assert {each.mode for each in entries.values() if each.isfile()} == {0o555}


@pytest.mark.parametrize("kind", ["oci", "docker"])
def test_a_layer_is_appended_in_the_format_of_its_base(kind: str) -> None:
    """Unknown parts of a config and a manifest stay unchanged."""
    inner: dict[str, Any] = {
        "os": "linux", "extra": [1], "config": {"Env": ["A=1", "PYTHONPATH=/old"], "Labels": {"a": "b"}},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:0"]}, "history": [{"created_by": "x"}],
    }  # fmt: skip
    config = json.dumps(inner).encode()
    base_layer = {"mediaType": TYPES[kind]["layer"], "digest": "sha256:1", "size": 5, "urls": ["u"]}
    descriptor = {"mediaType": TYPES[kind]["config"], "digest": digest_of(config), "size": len(config)}
    body = json.dumps(
        {"schemaVersion": 2, "config": descriptor, "layers": [base_layer], "annotations": {"x": "y"}}
    ).encode()
    base = read_manifest(body, TYPES[kind]["manifest"])

    appended = append(base, config, Layer("sha256:2", "sha256:3", 7), paths=["/new", "/more"], labels={"c": "d"})

    manifest, config_json = json.loads(appended.manifest), json.loads(appended.config)
    assert manifest["layers"] == [base_layer, {"mediaType": TYPES[kind]["layer"], "digest": "sha256:2", "size": 7}]
    assert manifest["config"] == {**descriptor, "digest": digest_of(appended.config), "size": len(appended.config)}
    assert (manifest["annotations"], appended.media_type) == ({"x": "y"}, TYPES[kind]["manifest"])
    assert config_json["rootfs"]["diff_ids"] == ["sha256:0", "sha256:3"]
    assert len(config_json["history"]) == 2
    assert config_json["config"] == {"Env": ["A=1", "PYTHONPATH=/new:/more:/old"], "Labels": {"a": "b", "c": "d"}}
    assert (config_json["os"], config_json["extra"]) == ("linux", [1])


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"config": 5}', b'{"config": {"digest": "x"}, "layers": []}', b"\xff", DEEP]
)  # fmt: skip
def test_an_invalid_manifest_is_refused(body: bytes) -> None:
    """A manifest of an unknown media type is refused too."""
    with pytest.raises(InvalidValue):
        read_manifest(body, TYPES["oci"]["manifest"])
    with pytest.raises(InvalidValue):
        read_manifest(body, "application/vnd.docker.distribution.manifest.v1+json")
    with pytest.raises(InvalidValue):
        of_platform(body, "linux/amd64") if body != b"{}" else of_platform(b"[]", "linux/amd64")


def test_an_index_leads_to_the_manifest_of_a_platform() -> None:
    """An unknown platform is refused with the known ones."""
    index = json.dumps({
        "manifests": [
            {"mediaType": "m", "digest": f"sha256:{name}", "size": 1, "platform": {"os": "linux", "architecture": name}}
            for name in ("amd64", "arm64")
        ]
    }).encode()  # fmt: skip

    assert of_platform(index, "linux/arm64") == "sha256:arm64"
    with pytest.raises(Unknown, match="linux/amd64, linux/arm64"):
        of_platform(index, "linux/s390x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("base", ImageReference("base", "latest")),
        ("team/base_image:1.0", ImageReference("team/base_image", "1.0")),
        (f"a/b@sha256:{'0' * 64}", ImageReference("a/b", f"sha256:{'0' * 64}")),
    ],
)
def test_a_reference_is_a_repository_and_a_tag_or_digest(text: str, expected: ImageReference) -> None:
    """A reference without a tag means "latest"."""
    assert reference(text) == expected


@pytest.mark.parametrize(
    "text", ["", ":", "a:", "a@", "A", "a/../b", "/a", "a/", "a b", "a:b/c", "a@sha256:0", "a?x=1", "a:b?c", LONG]
)  # fmt: skip
def test_an_invalid_reference_is_refused(text: str) -> None:
    """Above all, a reference must not become another path of the registry."""
    with pytest.raises(InvalidValue):
        reference(text)


@pytest.mark.parametrize("url", ["", "registry", "ftp://x", "http://x/path", "http://registry.example.org"])
def test_a_password_is_sent_only_over_https_or_to_this_machine(url: str) -> None:
    """An invalid address is refused too."""
    with pytest.raises(InvalidValue):
        Registry(url, login=Login(USER, PASSWORD))


# --- with Debian's registry -----------------------------------------------------------------------------------------


@needs_registry
async def test_a_pushed_image_can_be_pulled_by_other_tools(tmp_path: Path) -> None:
    """skopeo checks every digest and copies the layers of the base, our layer and the config."""
    image = await image_of(tmp_path / "kept", FILES)
    async with registry(tmp_path) as host:
        base = layout(tmp_path / "base", BASE)
        await skopeo("copy", "--dest-tls-verify=false", f"oci:{base}:base", f"docker://{host}/team/base:1")
        async with Registry(f"http://{host}") as registry_client:
            name = await publish(image, registry_client, base="team/base:1", to="team/worker:1")
            second_name = await publish(image, registry_client, base="team/base:1", to="team/worker:2")
            same = await publish(image, registry_client, base="team/base:1", to="team/base:worker")
            pulled = await registry_client.manifest(reference(name))
        await skopeo("copy", "--src-tls-verify=false", f"docker://{host}/{name}", f"oci:{tmp_path / 'out'}:out")
        tags = await skopeo("list-tags", "--tls-verify=false", f"docker://{host}/team/worker")

    assert name == second_name
    assert name.partition("@")[2] == same.partition("@")[2] == digest_of(pulled.body)
    assert sorted(json.loads(tags)["Tags"]) == ["1", "2"]
    blobs = tmp_path / "out" / "blobs" / "sha256"
    config = json.loads((blobs / pulled.config.digest.removeprefix("sha256:")).read_bytes())
    path = f"/opt/ramet/bundles/{image.folders[0].name}"
    assert config["config"]["Env"] == ["PATH=/usr/bin", f"PYTHONPATH={path}"]
    assert config["config"]["Labels"] == {"kept": "yes", LABEL: image.id}
    layers = [entries_of((blobs / each.digest.removeprefix("sha256:")).read_bytes()) for each in pulled.layers]
    assert [*layers[0]] == ["bin/tool"]
    assert f"{path.lstrip('/')}/tools/sums.py" in layers[1]


@needs_registry
async def test_an_image_can_be_the_base_of_another(tmp_path: Path) -> None:
    """The result has three layers, and the newest bundle is imported first."""
    one = await image_of(tmp_path / "1", FILES)
    two = await image_of(tmp_path / "2", {"more.py": b"x = 1\n"})
    async with registry(tmp_path) as host, Registry(f"http://{host}") as registry_client:
        base = layout(tmp_path / "base", BASE)
        await skopeo("copy", "--dest-tls-verify=false", f"oci:{base}:base", f"docker://{host}/base:1")
        base_reference = await publish(one, registry_client, base="base:1", to="one")
        name = reference(await publish(two, registry_client, base=base_reference, to="two"))
        manifest = await registry_client.manifest(name)
        config = json.loads(await registry_client.small_blob(name.repository, manifest.config))

    assert len(manifest.layers) == 3
    paths = [f"/opt/ramet/bundles/{each.folders[0].name}" for each in (two, one)]
    assert f"PYTHONPATH={':'.join(paths)}" in config["config"]["Env"]


@needs_registry
async def test_a_registry_with_a_password_needs_it(tmp_path: Path) -> None:
    """A missing or wrong password gives a refusal with status 401, and nothing is pushed."""
    image = await image_of(tmp_path / "kept", FILES)
    async with registry(tmp_path, password=True) as host:
        base, user = layout(tmp_path / "base", BASE), f"--dest-creds={USER}:{PASSWORD}"
        await skopeo("copy", "--dest-tls-verify=false", user, f"oci:{base}:base", f"docker://{host}/base:1")
        for name, wrong in (("", ""), (USER, "wrong")):
            async with Registry(f"http://{host}", login=Login(name, wrong)) as registry_client:
                with pytest.raises(RegistryFailed) as refusal:
                    await publish(image, registry_client, base="base:1", to="worker:1")
                assert refusal.value.status == 401
        async with Registry(f"http://{host}", login=Login(USER, PASSWORD)) as registry_client:
            with pytest.raises(Unknown):
                await registry_client.manifest(reference("worker:1"))
            name = await publish(image, registry_client, base="base:1", to="worker:1")
            assert len((await registry_client.manifest(reference(name))).layers) == 2


@needs_registry
async def test_a_registry_with_tokens_gets_a_token_for_each_repository(tmp_path: Path) -> None:
    """The token server alone gets the password; mounting a layer needs a token for both repositories."""
    image = await image_of(tmp_path / "kept", FILES)
    tokens = TokenServer(tmp_path)
    async with serve(tokens.answer) as tokens.realm, registry(tmp_path, tokens=tokens) as host:
        base, user = layout(tmp_path / "base", BASE), f"--dest-creds={USER}:{PASSWORD}"
        await skopeo("copy", "--dest-tls-verify=false", user, f"oci:{base}:base", f"docker://{host}/base:1")
        async with Registry(f"http://{host}", login=Login(USER, "wrong")) as registry_client:
            with pytest.raises(RegistryFailed, match="no token"):
                await registry_client.manifest(reference("base:1"))
        tokens.requested_scopes.clear()
        async with Registry(f"http://{host}", login=Login(USER, PASSWORD)) as registry_client:
            name = await publish(image, registry_client, base="base:1", to="worker:1")
            assert len((await registry_client.manifest(reference(name))).layers) == 2

    base_only, worker = ["repository:base:pull,push"], "repository:worker:pull,push"
    assert tokens.requested_scopes == [base_only, [worker], [worker, "repository:base:pull"]]


@needs_registry
async def test_an_identity_token_is_exchanged_for_an_access_token(tmp_path: Path) -> None:
    """Pulling works without a login if the token server allows it, and pushing does not."""
    tokens = TokenServer(tmp_path)
    async with serve(tokens.answer) as tokens.realm, registry(tmp_path, tokens=tokens) as host:
        base, user = layout(tmp_path / "base", BASE), f"--dest-creds={USER}:{PASSWORD}"
        await skopeo("copy", "--dest-tls-verify=false", user, f"oci:{base}:base", f"docker://{host}/base:1")
        async with Registry(f"http://{host}", login=Login(identity_token=IDENTITY)) as client:
            manifest = await client.manifest(reference("base:1"))
            second_reference = ImageReference("again", "1")
            for blob in (manifest.config, *manifest.layers):
                await client.push_blob("again", blob, lambda blob=blob: client.pieces("base", blob), of="base")  # type: ignore[misc]
            await client.push_manifest(second_reference, manifest.body, manifest.media_type)
        async with Registry(f"http://{host}") as client:
            with pytest.raises(RegistryFailed, match="no token"):
                await client.manifest(second_reference)
            tokens.anybody = True
            assert await client.manifest(second_reference) == manifest
            with pytest.raises(RegistryFailed) as refusal:
                await client.push_manifest(second_reference, manifest.body, manifest.media_type)
        async with Registry(f"http://{host}", login=Login(identity_token="wrong-token")) as client:
            with pytest.raises(RegistryFailed) as unknown:
                await client.manifest(second_reference)

    assert refusal.value.status == 401
    assert "wrong-token" not in str(unknown.value)


@needs_registry
async def test_a_blob_that_cannot_be_mounted_is_copied(tmp_path: Path) -> None:
    """The blob is sent in pieces and arrives whole; a missing blob raises RegistryFailed."""
    content = os.urandom(1_000_000)
    blob = Descriptor("", digest_of(content), len(content))
    missing = Descriptor("", digest_of(b"missing"), 7)

    async def sent() -> AsyncIterator[bytes]:
        yield content[:400_000]
        yield content[400_000:]

    async with registry(tmp_path) as host, Registry(f"http://{host}") as registry_client:
        await registry_client.push_blob("one", blob, sent)
        await registry_client.push_blob("two", blob, lambda: registry_client.pieces("one", blob))
        content_copied = b"".join([piece async for piece in registry_client.pieces("two", blob)])
        with pytest.raises(RegistryFailed, match="HTTP 404"):
            await registry_client.push_blob("two", missing, lambda: registry_client.pieces("one", missing))

    assert content_copied == content


@needs_registry
async def test_a_base_in_dockers_format_keeps_it(tmp_path: Path) -> None:
    """The manifest and the new layer have Docker's media types, which skopeo reads."""
    image = await image_of(tmp_path / "kept", FILES)
    async with registry(tmp_path) as host, Registry(f"http://{host}") as registry_client:
        base, target = layout(tmp_path / "base", BASE), f"docker://{host}/base:1"
        await skopeo("copy", "--format=v2s2", "--dest-tls-verify=false", f"oci:{base}:base", target)
        name = await publish(image, registry_client, base="base:1", to="worker")
        manifest = await registry_client.manifest(reference(name))
        description = json.loads(await skopeo("inspect", "--tls-verify=false", f"docker://{host}/{name}"))

    assert manifest.media_type == TYPES["docker"]["manifest"]
    assert {each.media_type for each in manifest.layers} == {TYPES["docker"]["layer"]}
    assert description["Layers"] == [each.digest for each in manifest.layers]
    assert description["Labels"][LABEL] == image.id


@needs_registry
async def test_errors_of_a_registry_are_reported(tmp_path: Path) -> None:
    """An unknown base, a blob with a wrong digest, a digest as the target name, and a stopped registry raise errors."""
    image = await image_of(tmp_path / "kept", FILES)

    async def other() -> AsyncIterator[bytes]:
        yield b"other"

    async with registry(tmp_path) as host, Registry(f"http://{host}") as registry_client:
        with pytest.raises(InvalidValue, match="nothing:1"):
            await publish(image, registry_client, base="nothing:1", to="worker:1")
        with pytest.raises(RegistryFailed, match="HTTP 400"):
            await registry_client.push_blob("worker", Descriptor("", digest_of(b"this"), 5), other)
        with pytest.raises(InvalidValue, match="to"):
            await publish(image, registry_client, base="base", to=f"worker@{digest_of(b'')}")
    async with Registry(f"http://{host}") as closed_registry:
        with pytest.raises(RegistryFailed) as refusal:
            await closed_registry.manifest(reference("base"))
        assert refusal.value.status == 0


# --- with a registry that lies --------------------------------------------------------------------------------------


BLOB = Descriptor("", digest_of(b"a blob"), 6)


def fixed_answer(status: int, body: dict[str, Any], **headers: str) -> Handler:
    """A handler that answers every request in the same way, and has no blob."""

    async def answer(request: Request, answer: Answer) -> None:
        if request.method == "HEAD":
            await answer.send(404, {}, {"connection": "close"})
        else:
            await answer.send(status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    return answer


async def test_an_upload_goes_only_to_the_registry() -> None:
    """An address elsewhere is refused, since the password would be sent there."""
    async with (
        serve(fixed_answer(202, {}, location="https://elsewhere.example.org/upload")) as url,
        Registry(url) as registry_client,
    ):
        with pytest.raises(RegistryFailed, match=r"it leads to elsewhere\.example\.org"):
            await registry_client.push_blob("base", BLOB, lambda: registry_client.pieces("other", BLOB))


@pytest.mark.parametrize("login", [Login(USER, PASSWORD), Login(identity_token=IDENTITY), Login()], ids=range(3))
@pytest.mark.parametrize(
    "realm", ["http://tokens.example.org/token", "ftp://127.0.0.1/token", "/token", "", "http://u:p@x.example.org?a=b"]
)
async def test_unencrypted_tokens_come_only_from_the_registrys_own_host(login: Login, realm: str) -> None:
    """Another address is refused, since the password would be sent there."""
    challenge = f'Bearer realm="{realm}",service="here"'
    async with (
        serve(fixed_answer(401, {}, www_authenticate=challenge)) as url,
        Registry(url, login=login) as registry_client,
    ):
        with pytest.raises(RegistryFailed, match="tokens come unencrypted") as refusal:
            await registry_client.manifest(reference("base"))

    assert "u:p" not in str(refusal.value)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (
            'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push"',
            {
                "bearer": {
                    "realm": "https://auth.docker.io/token",
                    "service": "registry.docker.io",
                    "scope": "repository:a/b:pull,push",
                }
            },
        ),
        (
            'Bearer realm="https://ghcr.io/token",service="ghcr.io",scope="repository:a/b:pull"',
            {"bearer": {"realm": "https://ghcr.io/token", "service": "ghcr.io", "scope": "repository:a/b:pull"}},
        ),
        (
            'BASIC Realm = "a \\"b\\", Bearer realm=c" , bearer realm=https://x/t, service="" , Bearer realm="y"',
            {"basic": {"realm": 'a "b", Bearer realm=c'}, "bearer": {"realm": "https://x/t", "service": ""}},
        ),
        ("Negotiate, Bearer", {"negotiate": {}, "bearer": {}}),
        ('Bearer realm="https://x', {"bearer": {}, "realm": {}}),
        ("", {}),
    ],
)
def test_challenges_are_read_as_registries_write_them(header: str, expected: dict[str, dict[str, str]]) -> None:
    """A quoted value may hold commas; a value without an end is none."""
    assert parse_challenges(header) == expected


@pytest.mark.parametrize("piece", ["a", 'a="', 'a="" ', "a=", " ", ",", "=", '"', "a ", 'a="\\'])
def test_a_hostile_challenge_is_read_in_linear_time(piece: str) -> None:
    """200 KB take a fraction of a second, where quadratic time would be a minute."""
    header = "Bearer " + piece * (200_000 // len(piece))
    begin = time.process_time()

    parse_challenges(header)

    assert time.process_time() - begin < 3


async def test_a_registry_that_refuses_its_own_token_is_not_asked_again() -> None:
    """The second refusal is the result."""
    paths = list[str]()

    async def answer(request: Request, answer: Answer) -> None:
        paths.append(request.path.partition("?")[0])
        if request.path.startswith("/token"):
            await answer.send(200, {"token": "x"})
        else:
            await answer.send(401, {}, {"www-authenticate": f'Bearer realm="{url}/token",service="here"'})

    async with serve(answer) as url, Registry(url) as registry_client:
        with pytest.raises(RegistryFailed) as refusal:
            await registry_client.manifest(reference("base"))

    assert refusal.value.status == 401
    assert paths == ["/v2/base/manifests/latest", "/token", "/v2/base/manifests/latest"]


async def test_an_index_cannot_lead_to_another_index() -> None:
    """Otherwise a registry could lead on endlessly."""
    kind = TYPES["oci"]["index"]
    inner: dict[str, Any] = {"manifests": []}
    descriptor = {"mediaType": kind, "digest": digest_of(json.dumps(inner).encode()), "size": 1}
    outer = {"manifests": [{**descriptor, "platform": {"os": "linux", "architecture": "amd64"}}]}

    async def answer(request: Request, answer: Answer) -> None:
        await answer.send(200, outer if request.path.endswith("latest") else inner, {"content-type": kind})

    async with serve(answer) as url, Registry(url) as registry_client:
        with pytest.raises(InvalidValue, match="manifest"):
            await registry_client.manifest(reference("base"))
        with pytest.raises(Unknown, match="linux/amd64"):
            await registry_client.manifest(reference("base"), "linux/riscv64")


async def test_content_of_a_registry_is_checked_against_its_digest() -> None:
    """A manifest or config with another digest, and one that is too large, are refused."""
    async with serve(fixed_answer(200, {"x": "y"})) as url, Registry(url) as registry_client:
        with pytest.raises(RegistryFailed, match="another digest"):
            await registry_client.manifest(reference(f"base@{BLOB.digest}"))
        with pytest.raises(RegistryFailed, match="another digest"):
            await registry_client.small_blob("base", BLOB)
        with pytest.raises(InvalidValue, match="digest"):
            await registry_client.small_blob("base", Descriptor("", "../../secret", 1))
    async with serve(fixed_answer(200, {"x": "y" * (MAX_JSON + 1)})) as url, Registry(url) as registry_client:
        with pytest.raises(RegistryFailed, match="more than"):
            await registry_client.manifest(reference("base"))
