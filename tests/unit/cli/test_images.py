"""`ramet images`: from a root file system to a runtime image, with and without Docker's login."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from pathlib import Path

from ramet.services.packaging.runtime_image.files import PYTHON
from tests.support.registries import PASSWORD, USER, needs_registry, registry
from tests.support.tars import tar


async def ramet(home: Path, *words: str) -> tuple[int | None, str, str]:
    """Run a command in a home folder; return status, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ramet", "images", *words, cwd=home, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@needs_registry
async def test_a_root_becomes_a_base_and_a_base_a_runtime_image(tmp_path: Path) -> None:
    """The login is Docker's or that of the settings; a pushed image is named at once.

    A registry's URL may say what names there begin with: that is said of no name that has a registry in it.
    """
    (tmp_path / "root.tar.gz").write_bytes(tar({f"usr/lib/python{PYTHON}/os.py": b""}, packed=True))
    (tmp_path / ".docker").mkdir()
    async with registry(tmp_path, password=True) as host:
        result = await ramet(tmp_path, "base", "root.tar.gz", "--to", "base:1", "--registry", host)
        auths = {host: {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}}
        (tmp_path / ".docker" / "config.json").write_text(json.dumps({"auths": auths}))
        based = await ramet(tmp_path, "base", "root.tar.gz", "--to", "base:1", "--registry", host)
        first = await ramet(tmp_path, "runtime", "--base", "base:1", "--registry", host, "--kind", "bare")
        (tmp_path / ".docker" / "config.json").unlink()
        (tmp_path / "password").write_text(PASSWORD)
        (tmp_path / "password").chmod(0o600)
        (tmp_path / "ramet.yaml").write_text(
            f"base_image: {host}/base:1\nregistry_url: http://{host}\n"
            f"registry_username: {USER}\nregistry_password: file:password\n"
        )
        second_result = await ramet(tmp_path, "runtime", "--kind", "bare", "--config", "ramet.yaml")
        (tmp_path / "ramet.yaml").unlink()
        (tmp_path / ".docker" / "config.json").write_text(json.dumps({"auths": auths}))
        team = f"http://{host}/team/a"
        nested_result = await ramet(tmp_path, "base", "root.tar.gz", "--to", "base:2", "--registry", team)
        on_it = await ramet(tmp_path, "runtime", "--base", "base:2", "--registry", team, "--kind", "bare")
        other_result = await ramet(
            tmp_path, "runtime", "--base", f"{host}/base:1", "--registry", team, "--kind", "bare"
        )

    assert (result[0], result[1]) == (1, "")
    assert "401" in result[2]
    assert (based[0], based[1].partition("sha256:")[0]) == (0, f"{host}/base@"), based
    assert (first[0], first[1].partition("sha256:")[0]) == (0, f"{host}/ramet-bare@"), first
    assert first[2].splitlines() == ["reading the base", "compiling", "packing", "pushing"]
    assert second_result == (0, first[1], "")
    assert nested_result[1] == based[1].replace("/base@", "/team/a/base@"), nested_result
    assert on_it[1] == other_result[1] == first[1].replace("/ramet-bare@", "/team/a/ramet-bare@"), on_it


async def test_a_missing_argument_is_reported_in_one_line(tmp_path: Path) -> None:
    """The line names the option or setting; a file that is not a tar is refused."""
    (tmp_path / "root.tar").write_text("no tar")

    no_base = await ramet(tmp_path, "runtime", "--registry", "localhost:1")
    no_registry = await ramet(tmp_path, "runtime", "--base", "base:1")
    no_tar = await ramet(tmp_path, "base", "root.tar", "--to", "base:1", "--registry", "localhost:1")

    assert [each[0] for each in (no_base, no_registry, no_tar)] == [2, 2, 2]
    assert no_base[2].startswith("ramet: base_image: None is not accepted; expected --base IMAGE or a setting")
    assert no_registry[2].startswith("ramet: registry_url: None is not accepted; expected --registry URL or a setting")
    assert "ramet: tar: 'root.tar' is not accepted; expected a tar, plain or with gzip" in no_tar[2]
