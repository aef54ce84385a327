"""Runtime images of pods: complete without installed packages, found again, and refused for another Python."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ramet.core.errors import InvalidValue, Unknown
from ramet.isolation.kubernetes.images import PlainImage
from ramet.isolation.zygote.main import IMAGES
from ramet.services.contract import PLAIN
from ramet.services.packaging.contract import Job
from ramet.services.packaging.oci.auth import NOBODY, Login
from ramet.services.packaging.oci.manifest import Descriptor, digest_of
from ramet.services.packaging.oci.push import Progress
from ramet.services.packaging.oci.registries import open_registries, open_registry, split, url_of
from ramet.services.packaging.oci.registry import Registry, reference
from ramet.services.packaging.runtime_image.build import BYTECODE, image_on, runtime_image
from ramet.services.packaging.runtime_image.bytecode import compile_sources
from ramet.services.packaging.runtime_image.files import (
    LIB,
    PYTHON,
    ROOTS,
    Kind,
    content_digest,
    own_platform,
    runtime_files,
)
from ramet.services.packaging.runtime_image.pod_images import PodImages
from ramet.services.packaging.service import PackagingService
from tests.support.image_jobs import wait_finished
from tests.support.registries import PASSWORD, USER, layout, needs_registry, registry, skopeo
from tests.support.tars import tar

SEED = Path(sysconfig.get_path("stdlib"), "this.py").read_bytes()
LIBRARY = f"usr/local/lib/python{PYTHON}"
BASE = {
    f"{LIBRARY}/os.py": b"# the library's",
    f"{LIBRARY}/this.py": SEED,
    f"{LIBRARY}/test/x.py": b"",
    "etc/x.py": b"",
}
IMPORTS = "import sys; sys.path.insert(0, sys.argv[1]); from importlib import import_module"


def run_isolated_python(code: str, *args: str | Path, options: tuple[str, ...] = ()) -> str:
    """Return the output of an interpreter that sees no installed package."""
    argv = [sys.executable, "-I", "-S", "-B", *options, "-c", code, *map(str, args)]
    process_result = subprocess.run(argv, capture_output=True, text=True, timeout=180, check=False)
    assert process_result.returncode == 0, process_result.stderr
    return process_result.stdout


async def base_in(host: str, folder: Path, files: dict[str, bytes] = BASE, **options: Any) -> None:
    """Push a base image of the name "base:1"."""
    folder_of_image = layout(folder, files, **options)
    await skopeo("copy", "--dest-tls-verify=false", f"oci:{folder_of_image}:base", f"docker://{host}/base:1")


# --- what is in it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bare", "llm"])
def test_a_runtime_image_holds_all_that_guests_import(tmp_path: Path, kind: Kind) -> None:
    """The imports work without installed packages; all of ramet is there, and no file of this machine."""
    files = runtime_files(kind)
    for path, file in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).symlink_to(file)
        if (cache := file.parent / "__pycache__").is_dir() and not (tmp_path / path.parent / "__pycache__").exists():
            (tmp_path / path.parent / "__pycache__").symlink_to(cache)  # for speed alone

    code = f"{IMPORTS}; [import_module(each) for each in {(*IMAGES[kind], 'ramet.isolation.local')!r}]; print('whole')"

    assert run_isolated_python(code, tmp_path) == "whole\n"
    source_folder = Path(__file__).parents[3] / "src" / "ramet"
    assert {str(each) for each in files if each.parts[0] == "ramet"} >= {
        f"ramet/{each.relative_to(source_folder)}" for each in source_folder.rglob("*.py")
    }
    assert [*files] == sorted(files)
    assert not {each.name for each in files} & {"direct_url.json", "RECORD", "INSTALLER", "ramet", "__pycache__"}
    assert not [each for each in files if each.suffix in (".pyc", ".pth")]
    assert any("LICEN" in each.name.upper() for each in files)


def test_the_digest_depends_on_kind_paths_and_bytes(tmp_path: Path) -> None:
    """Any difference gives another digest."""
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    path, other = PurePosixPath("a.py"), PurePosixPath("b.py")

    names = {
        content_digest("bare", {path: one}),
        content_digest("bare", {path: two}),
        content_digest("bare", {other: one}),
        content_digest("bare", {path: one, other: one}),
        content_digest("llm", {path: one}),
    }

    assert len(names) == 5
    assert content_digest("bare", {path: one}) in names


def test_an_incomplete_distribution_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or editable distribution and one without a list of its files cannot be packed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(ROOTS, "bare", ("loose[more]",))
    info = tmp_path / "loose-1.dist-info"

    with pytest.raises(InvalidValue, match="loose"):
        runtime_files("bare")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loose\nVersion: 1\n")
    with pytest.raises(InvalidValue, match="with a list of its files"):
        runtime_files("bare")
    (info / "RECORD").write_text("loose.py,,\nloose.pth,,\n../../bin/loose,,\ngone.py,,\nloose-1.dist-info/RECORD,,\n")
    (tmp_path / "loose.py").write_text("")
    (tmp_path / "loose.pth").write_text("")
    assert {each for each in runtime_files("bare") if each.parts[0] != "ramet"} == {PurePosixPath("loose.py")}
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: loose\nVersion: 1\nRequires-Dist: absent; extra == 'more'\n"
        "Requires-Dist: never; python_version < '3'\nProvides-Extra: more\n"
    )
    with pytest.raises(InvalidValue, match="absent"):
        runtime_files("bare")
    (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    with pytest.raises(InvalidValue, match="with a list of its files"):
        runtime_files("bare")


async def test_bytecode_is_reproducible_and_used_without_checks(tmp_path: Path) -> None:
    """Python checks neither time nor content of the source; files that do not compile are skipped."""
    lib = tmp_path / "lib"
    lib.mkdir()
    texts = {"one": "def f(a: int = 1) -> int:\n    return a\nX = 'then'\n", "two": "Y = {'x', 'y'}", "bad": "def ("}
    files = {}
    for name, text in texts.items():
        files[PurePosixPath(lib / f"{name}.py")] = lib / f"{name}.py"
        (lib / f"{name}.py").write_text(text)
    outs = [tmp_path / "first", tmp_path / "second"]
    for out in outs:
        out.mkdir()

    first, second = [await compile_sources(files, out) for out in outs]

    assert {each.stem.partition(".")[0] for each in first} == {"one", "two"}
    assert [each.read_bytes() for each in first.values()] == [each.read_bytes() for each in second.values()]
    for path, file in first.items():
        at = tmp_path / "cache" / str(path)[1:]
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(file.read_bytes())
    (lib / "one.py").write_text("X = 'now'")
    options = ("-X", f"pycache_prefix={tmp_path / 'cache'}")
    assert run_isolated_python(f"{IMPORTS}; print(import_module('one').X)", lib, options=options) == "then\n"


# --- in a registry --------------------------------------------------------------------------------------------------


@needs_registry
async def test_a_runtime_image_is_pushed_once_and_bundles_go_on_top(tmp_path: Path) -> None:
    """The layer is complete for a bare Python, the base's settings stay, and nothing is sent twice."""
    progress = list[Progress]()
    async with registry(tmp_path) as host, Registry(f"http://{host}") as registry_client:
        await base_in(host, tmp_path / "base", env=("PATH=/usr/local/bin", f"PYTHON_VERSION={PYTHON}.99"))
        built = await runtime_image(registry_client, "base:1", "bare", on_progress=progress.append)
        assert (progress[-1].step, progress[-1].done) == ("pushing", progress[-1].total)
        progress.clear()
        assert await runtime_image(registry_client, "base:1", "bare", on_progress=progress.append) == built
        assert progress == []

        name = reference(built.reference.removeprefix(f"{host}/"))
        manifest = await registry_client.manifest(name)
        config = json.loads(await registry_client.small_blob(name.repository, manifest.config))
        data = b"".join([each async for each in registry_client.pieces(name.repository, manifest.layers[1])])
        async with PackagingService(tmp_path / "kept") as service:
            bundle = await service.upload(
                tar({"kit/__init__.py": b"", "skills/sum/SKILL.md": b"---\nname: sum\n---\n"})
            )
            image = await service.image(
                (await wait_finished(service, (await service.create_image("", [bundle.id])).id)).image
            )
        above = await image_on(built, image, registry_client)
        assert await image_on(built, image, registry_client, on_progress=progress.append) == above
        assert await image_on(built, PLAIN, registry_client) == built
        assert progress == []
        base_layers = (await registry_client.manifest(reference(above.reference.removeprefix(f"{host}/")))).layers

    assert (built.digest, built.python, built.imports) == (digest_of(manifest.body), f"python{PYTHON}", ())
    assert config["config"]["Env"] == ["PATH=/usr/local/bin", f"PYTHON_VERSION={PYTHON}.99"]
    assert config["config"]["Labels"] == {"kept": "yes", "ramet.runtime": "bare", "ramet.python": PYTHON}
    assert base_layers[:2] == manifest.layers
    top = f"/opt/ramet/bundles/{image.folders[0].name}"
    assert (above.imports, above.skills) == ((top,), (f"{top}/skills",))
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as layer:
        layer.extractall(tmp_path / "root", filter="data")
        assert {(each.uid, each.gid, each.mtime, each.mode & 0o222) for each in layer if each.isreg()} == {(0, 0, 0, 0)}
    root = tmp_path / "root"
    assert {str(each.relative_to(root)) for each in (root / BYTECODE[1:] / "usr").rglob("*.pyc")} == {
        f"{BYTECODE[1:]}/{LIBRARY}/{each}.{sys.implementation.cache_tag}.pyc" for each in ("os", "this")
    }
    assert {each.name.partition(".")[0] for each in (root / BYTECODE[1:] / LIB[1:] / "msgspec").glob("*.pyc")} >= {
        "json"
    }
    code = f"{IMPORTS}; [import_module(each) for each in {IMAGES['bare']!r}]; print('whole')"
    assert run_isolated_python(code, root / LIB[1:]) == "whole\n"


def images_in(host: str, folder: Path, progress: list[Progress]) -> PodImages:
    """Return the pod images of a registry on "base:1", without a login."""
    return PodImages(
        partial(open_registries, host, "base:1", environ={"HOME": str(folder)}), "bare", on_progress=progress.append
    )


async def make_image(service: PackagingService, *bundles: str) -> Job:
    """Make an image of these bundles and return its finished job."""
    return await wait_finished(service, (await service.create_image("", bundles)).id)


@needs_registry
async def test_an_image_of_pods_is_pushed_when_it_is_made(tmp_path: Path) -> None:
    """The push happens once. The image is found by exactly the folders that a run may see."""
    progress = list[Progress]()
    async with registry(tmp_path) as host:
        images = images_in(host, tmp_path, progress)
        with pytest.raises(InvalidValue, match="base:1"):
            await images.image()
        await base_in(host, tmp_path / "base")
        async with PackagingService(tmp_path / "kept", push=images.image) as service:
            one, other = [
                (await service.upload(tar({f"{name}/__init__.py": b"", f"skills/{name}/SKILL.md": b""}))).id
                for name in ("one", "other")
            ]
            both_job, single_image = await asyncio.gather(make_image(service, one, other), make_image(service, one))
            image = await service.image(both_job.image)
            mounts = [str(each.resolve()) for each in (*image.folders, *image.skills)]
            assert [each.step for each in progress].count("compiling") == 1
            assert [each.step for each in progress].count("packing") == 3

            assert await images.image_with_mounts(mounts) is None  # whose they are was not said
            images.store = service
            first, *others = await asyncio.gather(
                *(images.image_with_mounts(["/usr/share", *mounts]) for _ in range(3))
            )
            part = await images.image_with_mounts([mounts[0]])
            second_images = images_in(host, tmp_path, progress)
            second_images.store = service
            second_image = await second_images.image_with_mounts(mounts)
            none = [await images.image_with_mounts(each) for each in ([mounts[1]], ["/usr/share"], [])]
            assert first is not None
            inspected = json.loads(await skopeo("inspect", "--tls-verify=false", f"docker://{first.image.reference}"))

    assert [*others, second_image] == [first] * 3
    assert first.image_paths == {each: f"/opt/ramet/bundles/{Path(each).name}" for each in mounts[:2]}
    assert inspected["Labels"]["ramet.image"] == both_job.image
    assert part is not None
    assert (part.image.reference == first.image.reference, list(part.image_paths)) == (False, mounts[:1])
    assert single_image.state == "done"
    assert none == [None] * 3
    assert [each.step for each in progress].count("packing") == 3


@needs_registry
async def test_an_image_that_cannot_be_pushed_is_a_failed_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's error is the registry's; no agent can use the image, and a repeated request can succeed.

    It is packed where its bundles are: /tmp may have no room for it.
    """
    hosts = ["127.0.0.1:1"]
    images = PodImages(lambda: open_registries(hosts[-1], "base:1", environ={"HOME": str(tmp_path)}), "bare")
    async with PackagingService(tmp_path / "kept", push=images.image) as service:
        bundle = await service.upload(tar({"kit/__init__.py": b""}))

        failed_job = await make_image(service, bundle.id)

        assert failed_job.error is not None
        assert (failed_job.state, failed_job.error.type) == ("failed", "RegistryFailed")
        assert "127.0.0.1:1" in failed_job.error.message
        assert await service.list_images() == []
        with pytest.raises(Unknown):
            await service.image(failed_job.id)
        async with registry(tmp_path) as host:
            await base_in(host, tmp_path / "base")
            hosts.append(host)
            await images.image()
            monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
            assert (await make_image(service, bundle.id)).state == "done"


@needs_registry
async def test_an_image_that_its_registry_lost_is_pushed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One push serves all requests and restores missing layers and bases; a complete image is not pushed."""
    progress = list[Progress]()
    async with registry(tmp_path) as host:
        images = images_in(host, tmp_path, progress)
        await base_in(host, tmp_path / "base")
        async with PackagingService(tmp_path / "kept", push=images.image) as service:
            bundle = await service.upload(tar({"kit/__init__.py": b""}))
            image = await service.image((await make_image(service, bundle.id)).image)
            plain, with_bundle = await images.image(), await images.image(image)
            assert await images.image(PLAIN._replace(id="empty")) == plain
            at = tmp_path / "storage" / "docker" / "registry" / "v2" / "repositories"

            def left(kind: str) -> list[Path]:
                return sorted(at.glob(f"ramet-*/{kind}/**/link"))

            file_count = left("_layers") + left("_manifests")
            progress.clear()
            assert not await images.push_again(plain)
            assert not await images.push_again(with_bundle)
            assert not await images.push_again(PlainImage(f"{host}/base:1"))
            assert progress == []

            def one_layer() -> None:
                next(each for each in left("_layers") if "ramet-images" in each.parts).unlink()

            def everything() -> None:
                for kind in ("bare", "images"):
                    shutil.rmtree(at / f"ramet-{kind}")

            for lose, pack_count in ((one_layer, 1), (everything, 2)):
                before = await images.image(image)
                lose()
                assert all(await asyncio.gather(*(images.push_again(before) for _ in range(3))))
                assert [each.step for each in progress].count("packing") == pack_count
                assert await images.image(image) == with_bundle
                progress.clear()
            assert left("_layers") + left("_manifests") == file_count
    assert [each.getMessage().split()[1] for each in caplog.records if "pushed again" in each.getMessage()] == [
        with_bundle.reference,
        plain.reference,
        with_bundle.reference,
    ]


@needs_registry
@pytest.mark.parametrize(
    ("files", "env", "version"),
    [
        ({}, ("PYTHON_VERSION=3.9.18",), "3.9.18"),
        ({"usr/lib/python3.9/os.py": b"", "opt/py/lib64/python3.10/os.py": b""}, (), "3.10, 3.9"),
        ({"usr/lib/python3.9/os.py": b""}, ("PYTHON_VERSION=3.1.9",), "3.1.9"),
    ],
    ids=["said", "found", "both"],
)
async def test_a_base_with_another_python_is_refused(
    tmp_path: Path, files: dict[str, bytes], env: tuple[str, ...], version: str
) -> None:
    """The error names both versions, and nothing is pushed."""
    async with registry(tmp_path) as host, Registry(f"http://{host}") as registry_client:
        await base_in(host, tmp_path / "base", {"x": b"", **files}, env=env)
        with pytest.raises(InvalidValue) as refusal:
            await runtime_image(registry_client, "base:1", "bare", into="pods")
        with pytest.raises(Unknown):
            await registry_client.manifest(reference("pods"))

    assert (refusal.value.field, refusal.value.value) == ("base", f"base:1 (Python {version})")
    assert f"Python {PYTHON}" in refusal.value.accepted


@needs_registry
async def test_a_base_for_another_machine_is_refused(tmp_path: Path) -> None:
    """A target with a tag is refused, since the tag is made of the content; a missing base is refused too."""
    async with registry(tmp_path) as host, Registry(f"http://{host}") as registry_client:
        await base_in(host, tmp_path / "base", architecture="s390x")
        with pytest.raises(InvalidValue, match=f"linux/s390x.*{own_platform()}"):
            await runtime_image(registry_client, "base:1", "bare")
        with pytest.raises(InvalidValue, match="base:2"):
            await runtime_image(registry_client, "base:2", "bare")
        with pytest.raises(InvalidValue, match="into"):
            await runtime_image(registry_client, "base:1", "bare", into="pods:1")


@needs_registry
async def test_a_base_may_be_in_another_registry(tmp_path: Path) -> None:
    """The base's layers are copied; each registry gets its own login from Docker's file."""
    for each in ("one", "two", ".docker"):
        (tmp_path / each).mkdir()
    environ = {"HOME": str(tmp_path)}
    async with registry(tmp_path / "one") as one, registry(tmp_path / "two", password=True) as two:
        await base_in(one, tmp_path / "base")
        auths = {two: {"username": USER, "password": PASSWORD}}
        (tmp_path / ".docker" / "config.json").write_text(json.dumps({"auths": auths}))
        async with open_registries(two, f"{one}/base:1", environ=environ) as at:
            # Stands for a runtime image that was pushed before, from another place: nothing need be packed.
            image = await runtime_image(at.registry, at.base, "bare", source=at.source)
            first = (await at.source.manifest(reference("base:1"))).layers[0]
            name = reference(image.reference.removeprefix(f"{two}/"))
            content_copied = b"".join([each async for each in at.registry.pieces(name.repository, first)])
        async with open_registry(two, username=USER, password="wrong", environ=environ) as registry_client:
            with pytest.raises(Exception, match="401"):
                await registry_client.manifest(name)

    assert len(content_copied) == first.size
    assert isinstance(first, Descriptor)


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("base:1", ("", "base:1")),
        ("team/base:1", ("", "team/base:1")),
        ("localhost/base", ("localhost", "base")),
        ("127.0.0.1:5000/base:1", ("127.0.0.1:5000", "base:1")),
        ("registry.example.org/team/base@sha256:0", ("registry.example.org", "team/base@sha256:0")),
        ("docker.io/python:3.11-slim", ("registry-1.docker.io", "library/python:3.11-slim")),
        ("docker.io/team/base", ("registry-1.docker.io", "team/base")),
    ],
)
def test_a_base_may_name_its_registry(name: str, expected: tuple[str, str]) -> None:
    """A first part with a dot or a port is a host, as in other tools."""
    assert split(name) == expected


def test_a_registry_may_be_named_by_its_host() -> None:
    """The address is https, except on this machine."""
    assert [url_of(each) for each in ("r.example.org:5000", "localhost:1", "127.0.0.1", "http://r:5")] == [
        "https://r.example.org:5000", "http://localhost:1", "http://127.0.0.1", "http://r:5",
    ]  # fmt: skip


async def test_a_password_needs_a_username_and_https() -> None:
    """Username and password are never sent unencrypted over a network."""
    with pytest.raises(InvalidValue, match="username"):
        async with open_registry("registry.example.org", password="x"):
            pass
    with pytest.raises(InvalidValue, match="https where there is a login"):
        async with open_registry("http://registry.example.org", username="x"):
            pass
    assert not NOBODY
    assert Login("x")
