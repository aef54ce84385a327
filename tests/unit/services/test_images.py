"""Images: made of bundles in the background, equal for equal requests, with requirements installed once."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ramet.core.errors import Damaged, InvalidValue, Unknown
from ramet.services.contract import PLAIN, Image
from ramet.services.packaging.build import MAX_BUNDLES
from ramet.services.packaging.bundles.requirements import Installs, parse_requirements
from ramet.services.packaging.contract import BundlesClash, Job
from ramet.services.packaging.service import PackagingService
from tests.support.image_jobs import wait_finished
from tests.support.tars import tar
from tests.support.wheels import wheel

SUMS = {"tools/__init__.py": b"", "tools/sums.py": b"def add(a, b):\n    return a + b\n"}
SKILL = {"skills/review/SKILL.md": b"---\ndescription: reviews\n---\nRead it twice.\n"}


async def upload_bundle(service: PackagingService, files: dict[str, bytes]) -> str:
    """Upload a bundle of these files and return its id."""
    return (await service.upload(tar(files))).id


async def make_image(service: PackagingService, bundles: Sequence[str], base: str = "") -> Image:
    """Return the image of a job that must succeed."""
    job = await wait_finished(service, (await service.create_image(base, bundles)).id)
    assert job == Job(id=job.id, state="done", image=job.id), job.error
    return await service.image(job.image)


async def run_in_image(image: Image, code: str) -> str:
    """Return the output of Python code that imports from an image."""
    paths = [str(folder) for folder in (*image.folders, *image.packages)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-IBc", f"import sys; sys.path[:0] = {paths!r}\n{code}", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return out.decode().strip()


def install_settings(wheels: Path, *args: str) -> Installs:
    """Return the settings of an operator without a network."""
    return Installs(pip_args=("--no-index", "-f", str(wheels), *args))


# --- what an image is -----------------------------------------------------------------------------------------------


async def test_code_of_a_bundle_can_be_imported_from_its_image(tmp_path: Path) -> None:
    """An image consists of folders: all hold code, and some hold skills."""
    async with PackagingService(tmp_path) as service:
        code, skill = await upload_bundle(service, SUMS), await upload_bundle(service, SKILL)

        image = await make_image(service, [code, skill])

        assert image.folders == (tmp_path / "bundles" / code, tmp_path / "bundles" / skill)
        assert image.skills == (tmp_path / "bundles" / skill / "skills",)
        assert image.packages == ()
        assert await run_in_image(image, "from tools.sums import add; print(add(2, 3))") == "5"


async def test_the_plain_image_has_the_empty_id(tmp_path: Path) -> None:
    """The plain image needs no bundle, and is not listed."""
    async with PackagingService(tmp_path) as service:
        assert await service.image("") == PLAIN
        assert await service.list_images() == []


async def test_a_repeated_request_returns_the_same_image_at_once(tmp_path: Path) -> None:
    """A restart changes nothing; another order of bundles is another image."""
    async with PackagingService(tmp_path) as service:
        one, two = await upload_bundle(service, SUMS), await upload_bundle(service, SKILL)
        first = await make_image(service, [one, two])
        second_job = await service.create_image("", [one, two])
        other = await make_image(service, [two, one])

        assert second_job == Job(id=first.id, state="done", image=first.id)
        assert other.id != first.id
        assert other.folders == first.folders[::-1]
        listing = await service.list_images()
    async with PackagingService(tmp_path) as service:
        assert await service.create_image("", [one, two]) == second_job
        assert await service.job(first.id) == second_job
        assert await service.image(first.id) == first
        assert await service.list_images() == listing
        assert {(info.id, info.bundles) for info in listing} == {(first.id, (one, two)), (other.id, (two, one))}


async def test_the_same_bundles_are_one_image_on_any_base(tmp_path: Path) -> None:
    """Bases on bases make no endless images; an invalid request is refused even if the image exists."""
    async with PackagingService(tmp_path) as service:
        one, two = await upload_bundle(service, SUMS), await upload_bundle(service, {"more.py": b"x = 1\n"})
        base = await make_image(service, [one])

        assert (await make_image(service, [one], base.id)).id == base.id
        assert (await make_image(service, [two], base.id)).id == (await make_image(service, [one, two])).id
        with pytest.raises(InvalidValue):
            await service.create_image(base.id, [])
        assert len(await service.list_images()) == 2


async def test_the_number_of_images_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more image is refused; an existing image is still returned at once."""
    monkeypatch.setattr("ramet.services.packaging.service.MAX_IMAGES", 1)
    async with PackagingService(tmp_path) as service:
        one, two = await upload_bundle(service, SUMS), await upload_bundle(service, {"more.py": b"x = 1\n"})
        await make_image(service, [one])

        with pytest.raises(InvalidValue, match="at most 1 recorded"):
            await service.create_image("", [two])
        assert (await service.create_image("", [one])).state == "done"


async def test_an_image_on_top_of_another_has_the_bundles_of_both(tmp_path: Path) -> None:
    """Bundles of the base come first, and stay when the base is deleted."""
    async with PackagingService(tmp_path) as service:
        one, two = await upload_bundle(service, SUMS), await upload_bundle(service, {"more.py": b"x = 1\n"})
        base = await make_image(service, [one])
        image = await make_image(service, [two], base.id)
        await service.delete_image(base.id)

        assert image.folders == (tmp_path / "bundles" / one, tmp_path / "bundles" / two)
        assert await service.image(image.id) == image
        with pytest.raises(Unknown):
            await service.image(base.id)
        with pytest.raises(Unknown):
            await service.delete_image(base.id)


async def test_many_requests_for_one_image_are_one_job(tmp_path: Path) -> None:
    """Each request returns the same id, and one image is made."""
    async with PackagingService(tmp_path) as service:
        bundle = await upload_bundle(service, SUMS)

        jobs = await asyncio.gather(*(service.create_image("", [bundle]) for _ in range(10)))
        await wait_finished(service, jobs[0].id)

        assert len({job.id for job in jobs}) == 1
        assert len(await service.list_images()) == 1
        assert service.list_jobs() == ()


# --- what is refused before anything begins -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "id", ["0" * 64, "nothing", "../images", "", "/etc/passwd", pytest.param("x" * 1000, id="long")]
)
async def test_unknown_ids_are_refused_before_a_job_begins(tmp_path: Path, id: str) -> None:
    """An unknown bundle, base, image or job leaves no job and no image."""
    async with PackagingService(tmp_path) as service:
        bundle = await upload_bundle(service, SUMS)
        with pytest.raises(Unknown, match="bundle"):
            await service.create_image("", [bundle, id])
        if id:
            with pytest.raises(Unknown, match="image"):
                await service.create_image(id, [bundle])
            with pytest.raises(Unknown, match="image"):
                await service.image(id)
        with pytest.raises(Unknown, match="job"):
            await service.job(id)
        with pytest.raises(Unknown, match="image"):
            await service.delete_image(id)

        assert service.list_jobs() == ()
        assert await service.list_images() == []


async def test_an_image_has_bundles_each_once_and_not_too_many(tmp_path: Path) -> None:
    """No bundle, a repeated bundle and more bundles than an import path may hold are refused."""
    async with PackagingService(tmp_path) as service:
        bundle = await upload_bundle(service, SUMS)
        for bundles in ([], [bundle, bundle], [f"{number:064}" for number in range(MAX_BUNDLES + 1)]):
            with pytest.raises(InvalidValue, match="bundles"):
                await service.create_image("", bundles)


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        pytest.param(SUMS, {**SUMS, "other.py": b""}, "tools/__init__.py", id="same-file"),
        pytest.param(SKILL, {"skills/review/SKILL.md": b"other"}, "skills/review/SKILL.md", id="same-skill"),
        pytest.param(SUMS, {"tools/more.py": b""}, "tools", id="into-a-package"),
        pytest.param({"tools/more.py": b""}, SUMS, "tools", id="package-over-folder"),
        pytest.param(SUMS, {"tools.py": b""}, "tools", id="module-and-package"),
        pytest.param(
            {"tools.py": b""}, {"tools.cpython-311-x86_64-linux-gnu.so": b""}, "tools", id="module-and-extension"
        ),
    ],
)
async def test_bundles_that_hide_parts_of_each_other_are_refused(
    tmp_path: Path, first: dict[str, bytes], second: dict[str, bytes], path: str
) -> None:
    """The refusal names the path and both bundles, even if one of them is in the base."""
    async with PackagingService(tmp_path) as service:
        one, two = await upload_bundle(service, first), await upload_bundle(service, second)
        base = await make_image(service, [one])
        for base_id, bundles in (("", [one, two]), (base.id, [two])):
            with pytest.raises(BundlesClash) as refusal:
                await service.create_image(base_id, bundles)

            assert (refusal.value.path, refusal.value.first, refusal.value.second) == (path, one, two)


async def test_folders_that_are_not_packages_can_be_shared(tmp_path: Path) -> None:
    """Skills, data and namespace packages of two bundles go together."""
    async with PackagingService(tmp_path) as service:
        one = await upload_bundle(service, {"skills/a/SKILL.md": b"a", "data/x": b"1", "space/one.py": b"x = 1\n"})
        two = await upload_bundle(service, {"skills/b/SKILL.md": b"b", "data/y": b"2", "space/two.py": b"y = 2\n"})

        image = await make_image(service, [one, two])

        assert len(image.skills) == 2
        assert await run_in_image(image, "from space.one import x; from space.two import y; print(x, y)") == "1 2"


async def test_an_image_that_lost_a_bundle_is_damaged_and_can_be_made_again(tmp_path: Path) -> None:
    """A bundle that was removed by hand makes the image damaged, not another image."""
    async with PackagingService(tmp_path) as service:
        bundle = await upload_bundle(service, SUMS)
        image = await make_image(service, [bundle])
        (tmp_path / "bundles" / bundle).rename(tmp_path / "away")

        with pytest.raises(Damaged, match="make the image again"):
            await service.image(image.id)
        with pytest.raises(Unknown, match="bundle"):
            await service.create_image("", [bundle])
        await upload_bundle(service, SUMS)
        assert await service.image(image.id) == image


async def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    """The record stays as it is, and the error names the image."""
    async with PackagingService(tmp_path) as service:
        image = await make_image(service, [await upload_bundle(service, SUMS)])
        file = tmp_path / "images" / f"{image.id}.json"
        file.write_text(json.dumps({"info": 5}))

        with pytest.raises(Damaged, match="image"):
            await service.image(image.id)
        assert file.read_text() == '{"info": 5}'


# --- requirements ---------------------------------------------------------------------------------------------------


async def test_requirements_are_refused_unless_the_operator_allows_them(tmp_path: Path) -> None:
    """Installs are off by default; an empty requirements file asks for nothing."""
    async with PackagingService(tmp_path) as service:
        needy = await upload_bundle(service, {"requirements.txt": b"greeting\n"})
        empty = await upload_bundle(service, {"requirements.txt": b"# nothing\n\n"})
        with pytest.raises(InvalidValue, match="does not install") as refusal:
            await service.create_image("", [needy])

        assert needy in str(refusal.value)
        assert service.list_jobs() == ()
        assert (await make_image(service, [empty])).packages == ()


async def test_equal_requirements_are_installed_once_for_all_images(tmp_path: Path) -> None:
    """Dependencies are included; neither the second image nor a restart needs pip."""
    wheels = tmp_path / "wheels"
    wheel(wheels, "greeting", "1.0", "import words\nhello = words.hello\n", needs="words")
    wheel(wheels, "words", "2.0", "hello = 'hello'\n")
    async with PackagingService(tmp_path / "kept", installs=install_settings(wheels)) as service:
        one = await upload_bundle(service, {"requirements.txt": b"greeting >= 1  # politely\n", "one.py": b""})
        two = await upload_bundle(service, {"requirements.txt": b"\ngreeting >= 1\n", "two.py": b""})
        image = await make_image(service, [one])
        for path in wheels.iterdir():
            path.unlink()

        other, full_image = await make_image(service, [two]), await make_image(service, [one, two])

        assert await run_in_image(image, "import greeting; print(greeting.hello)") == "hello"
        assert image.packages == other.packages == full_image.packages
        (packages,) = image.packages
        assert [path.name for path in packages.parent.iterdir()] == [packages.name]
        assert {info.requirements for info in await service.list_images()} == {("greeting >= 1",)}
        assert packages.stat().st_mode & 0o777 == 0o555
    async with PackagingService(tmp_path / "kept") as service:
        assert await service.image(image.id) == image


async def test_concurrent_images_install_equal_requirements_once(tmp_path: Path) -> None:
    """The second image waits for the first one's pip, and starts none."""
    wheels, log = tmp_path / "wheels", tmp_path / "pip.log"
    wheel(wheels, "greeting", "1.0", "")
    async with PackagingService(tmp_path / "kept", installs=install_settings(wheels, "--log", str(log))) as service:
        bundles = [
            await upload_bundle(service, {"requirements.txt": b"greeting", name: b""}) for name in ("one", "two")
        ]

        one, two = await asyncio.gather(*(make_image(service, [bundle]) for bundle in bundles))

    assert one.packages == two.packages
    assert log.read_text().count("Successfully installed greeting") == 1


@pytest.mark.slow
async def test_requirements_of_all_bundles_are_installed_together(tmp_path: Path) -> None:
    """A conflict between two bundles' versions of one package is a failed job, not a surprise at run time."""
    wheels = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        wheel(wheels, "words", version, f"version = {version!r}\n")
    async with PackagingService(tmp_path / "kept", installs=install_settings(wheels)) as service:
        old = await upload_bundle(service, {"requirements.txt": b"words < 2"})
        any_ = await upload_bundle(service, {"requirements.txt": b"words"})
        new = await upload_bundle(service, {"requirements.txt": b"words == 2.*"})
        base = await make_image(service, [any_])
        image = await make_image(service, [old], base.id)
        job = await wait_finished(service, (await service.create_image("", [old, new])).id)

        assert await run_in_image(base, "import words; print(words.version)") == "2.0"
        assert await run_in_image(image, "import words; print(words.version)") == "1.0"
        assert job.state == "failed"


@pytest.mark.slow
async def test_a_failed_install_is_a_failed_job_and_leaves_nothing(tmp_path: Path) -> None:
    """The error holds the end of pip's output; a repeated request tries again and can succeed."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    async with PackagingService(tmp_path / "kept", installs=install_settings(wheels)) as service:
        bundle = await upload_bundle(service, {"requirements.txt": b"greeting\n"})
        job = await wait_finished(service, (await service.create_image("", [bundle])).id)

        assert job.state == "failed"
        assert job.error is not None
        assert job.error.type == "InstallFailed"
        assert "No matching distribution found for greeting" in job.error.message
        assert service.list_jobs() == (job,)
        assert list((tmp_path / "kept" / "packages").iterdir()) == []
        assert await service.list_images() == []
        with pytest.raises(Unknown):
            await service.image(job.id)

        wheel(wheels, "greeting", "1.0", "hello = 'hello'\n")
        assert (
            await run_in_image(await make_image(service, [bundle]), "import greeting; print(greeting.hello)") == "hello"
        )
        assert service.list_jobs() == ()


async def test_a_package_that_must_be_built_is_not_installed(tmp_path: Path) -> None:
    """The build code would run with the rights of the server."""
    wheels, mark = tmp_path / "wheels", tmp_path / "ran"
    wheels.mkdir()
    files = {
        "evil-1.0/pyproject.toml": b'[build-system]\nrequires = []\nbuild-backend = "evil"\nbackend-path = ["."]\n',
        "evil-1.0/evil.py": f"open({str(mark)!r}, 'w')\n".encode(),
        "evil-1.0/PKG-INFO": b"Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n",
    }
    archive = tar(files, packed=True)
    (wheels / "evil-1.0.tar.gz").write_bytes(archive)
    async with PackagingService(tmp_path / "kept", installs=install_settings(wheels)) as service:
        bundle = await upload_bundle(service, {"requirements.txt": b"evil\n"})
        job = await wait_finished(service, (await service.create_image("", [bundle])).id)

    assert job.state == "failed"
    assert not mark.exists()


async def test_an_install_beyond_its_time_limit_is_ended(tmp_path: Path) -> None:
    """The index never answers: the job fails, and nothing of the install is left."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        index = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        installs = Installs(pip_args=("-i", index), timeout_s=0.01)
        async with PackagingService(tmp_path, installs=installs) as service:
            bundle = await upload_bundle(service, {"requirements.txt": b"greeting\n"})
            job = await wait_finished(service, (await service.create_image("", [bundle])).id)

            assert job.state == "failed"
            assert job.error is not None
            assert "not done within 0.01 s" in job.error.message
            assert list((tmp_path / "packages").iterdir()) == []


async def test_closing_ends_the_jobs_and_pip(tmp_path: Path) -> None:
    """Active and queued jobs end, unfinished files are removed, and the next server does not know the jobs."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        index = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        deaf.setblocking(False)
        service = await PackagingService(tmp_path, installs=Installs(pip_args=("-i", index))).open()
        bundles = [await upload_bundle(service, {"requirements.txt": b"words%d\n" % number}) for number in range(4)]
        jobs = [await service.create_image("", [bundle]) for bundle in bundles]
        connection, _ = await asyncio.get_running_loop().sock_accept(deaf)  # pip has begun
        with connection:
            states = [job.state for job in service.list_jobs()]
            await service.close()

        assert [job.state for job in jobs] == ["queued"] * 4
        assert states == ["running", "running", "queued", "queued"]
        assert list((tmp_path / "packages").iterdir()) == []
        assert service.list_jobs() == ()
        await service.close()
    async with PackagingService(tmp_path, installs=Installs()) as service:
        with pytest.raises(Unknown):
            await service.job(jobs[0].id)


async def test_pip_does_not_get_the_servers_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable such as PIP_FIND_LINKS has no effect."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "elsewhere"))
    wheel(tmp_path / "elsewhere", "greeting", "1.0", "")
    (tmp_path / "wheels").mkdir()
    async with PackagingService(tmp_path / "kept", installs=install_settings(tmp_path / "wheels")) as service:
        bundle = await upload_bundle(service, {"requirements.txt": b"greeting\n"})
        job = await wait_finished(service, (await service.create_image("", [bundle])).id)

    assert job.state == "failed"


@pytest.mark.parametrize(
    "line",
    [
        "--no-binary :all:",
        "-i http://example.org/simple",
        "--pre",
        "-f /tmp",
        "-f .",
        "-r /etc/passwd",
        "-c other.txt",
        "-e .",
        "--trusted-host example.org",
        "name @ http://example.org/name",
        "name@file:///tmp/name",
        "git+https://example.org/name.git",
        "http://example.org/name",
        "./name.whl",
        "/tmp/name.whl",
        "..",
        ".",
        "name other",
        "name --global-option=x",
        "name --config-settings=x",
        "name --hash=sha256:xyz",
        "name --hash=md5:00",
        "name \\\n --pre",
        "name ; python_version > '3' --pre x",
        "name >= 1 -i x",
        "name -i",
        "name; x @ y",
        "${HOME}",
        "name==1\x00",
        "naïve",
    ],
)
async def test_a_requirement_line_that_is_not_a_package_is_refused(tmp_path: Path, line: str) -> None:
    """An option, an address or a path would let a bundle choose the source of packages."""
    async with PackagingService(tmp_path, installs=Installs()) as service:
        bundle = await upload_bundle(service, {"requirements.txt": f"fine==1.0\n{line}\n".encode()})
        with pytest.raises(InvalidValue, match="no options, addresses or paths") as refusal:
            await service.create_image("", [bundle])

        assert bundle in str(refusal.value)
        assert service.list_jobs() == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", ()),
        (b"# nothing\n\r\n", ()),
        (b"a\nB.c_d-e\n", ("a", "B.c_d-e")),
        (b"a[x,y]>=1,<2 # why\r\nb == 1.0.*", ("a[x,y]>=1,<2", "b == 1.0.*")),
        (b"a (>=1)", ("a (>=1)",)),
        (b"a~=1.4; python_version < '3.12'", ("a~=1.4; python_version < '3.12'",)),
        (b"a==1 \\\n    --hash=sha256:00ff \\\n    --hash=sha512:11", ("a==1 --hash=sha256:00ff --hash=sha512:11",)),
        (b"a===1.0+local", ("a===1.0+local",)),
    ],
)  # fmt: skip
def test_requirements_are_read_as_pip_reads_them(text: bytes, expected: tuple[str, ...]) -> None:
    """Names, extras, versions, markers and hashes may span several lines; comments and spaces are ignored."""
    assert parse_requirements(text, "here") == expected


@pytest.mark.parametrize("data", [b"\xff", b"#" * (257 * 1024)], ids=["latin-1", "too-large"])
def test_an_unreadable_requirements_file_is_refused(data: bytes) -> None:
    """The error names the file."""
    with pytest.raises(InvalidValue, match="here"):
        parse_requirements(data, "here")


async def test_a_job_whose_image_cannot_be_written_fails(tmp_path: Path) -> None:
    """The job's error is the disk's error, without a path of the server; a repeated request succeeds."""
    async with PackagingService(tmp_path) as service:
        bundle = await upload_bundle(service, SUMS)
        (tmp_path / "images").rename(tmp_path / "away")
        job = await wait_finished(service, (await service.create_image("", [bundle])).id)

        assert job.state == "failed"
        assert job.error is not None
        assert job.error.type == "FileNotFoundError"
        assert str(tmp_path) not in job.error.message, "clients see it"
        (tmp_path / "away").rename(tmp_path / "images")
        assert (await make_image(service, [bundle])).id == job.id
