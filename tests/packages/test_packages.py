"""The wheel and the sdist have what a user needs, say what they contain, and work without any extra."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from packaging.metadata import Metadata

from ramet.agent.files.search_paths import SearchPath
from ramet.agent.files.skills import find_skills
from tests.packages.sbom import SBOM, create_sbom

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
#: Modules of extras. In this environment all of them are installed.
EXTRAS = (
    "anthropic cryptography httptools httpx2 langchain_anthropic langchain_openai lightkube mcp openai psycopg "
    "starlette uvicorn"
)
ASK = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}.split()), **{{"opentelemetry.sdk": None}})
from ramet.cli.main import main
print(sys.modules["ramet"].__file__, file=sys.stderr)
sys.exit(main())
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with an sdist of this tree, and a wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    line = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(line, check=True, capture_output=True, text=True)
    return folder


def sources() -> list[str]:
    """Return the files of the package that git does not ignore, as a wheel names them."""
    line = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "src/ramet"]
    listed = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name.removeprefix("src/") for name in listed if name and (ROOT / name).is_file()]


def test_the_wheel_has_the_package_and_its_description_and_works_without_an_extra(dist: Path, tmp_path: Path) -> None:
    """Code, page, agent files, examples and skill are in it, tests are not; `ramet ask` answers from it."""
    (file,) = dist.glob("*.whl")
    with zipfile.ZipFile(file) as wheel:
        names = [each for each in wheel.namelist() if not each.endswith("/")]
        about = next(each for each in names if each.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(wheel.read(about), validate=True)
        sbom = wheel.read(about.replace("METADATA", "sboms/vendored.cdx.json")).decode()
        wheel.extractall(tmp_path / "installed")
    info = about.removesuffix("METADATA")

    assert sorted(each for each in names if not each.startswith(info)) == sorted(sources())
    assert {"ramet/py.typed", "ramet/web/static/index.html", "ramet/skills/ramet/SKILL.md"} < set(names)
    assert {each.removeprefix(info) for each in names if each.startswith(info)} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "sboms/vendored.cdx.json", "licenses/LICENSE",
        *(f"licenses/src/ramet/web/static/vendor/LICENSE-{name}.txt" for name in ("htm", "preact")),
    }  # fmt: skip
    assert (metadata.license_expression, metadata.project_urls) == ("MIT AND Apache-2.0", None)
    assert sbom == create_sbom()

    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "PYTHONDONTWRITEBYTECODE": "1"}
    folder = shutil.copytree(ROOT / "examples" / "payment-api", tmp_path / "payment-api")
    answer = subprocess.run(
        [sys.executable, "-c", ASK, "ask", "Why is the payment API failing?", "--dir", str(folder)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert str(tmp_path / "installed") in answer.stderr
    assert "acquirer.read_timeout_ms" in answer.stdout, answer.stdout


def test_no_package_has_the_keys_of_a_deployment() -> None:
    """`deploy/compose.yaml` reads keys from a file beside it, which git and the build backend leave out."""
    line = ["git", "check-ignore", "deploy/.env", ".env"]
    assert subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split() == line[2:]


def test_the_list_of_vendored_parts_is_of_their_manifest() -> None:
    """`RAMET_GOLDEN=write` writes it anew."""
    if os.environ.get("RAMET_GOLDEN") == "write":
        SBOM.write_text(create_sbom())
    assert SBOM.read_text() == create_sbom()


def test_the_extra_all_is_every_extra_of_users_and_the_page_has_each() -> None:
    """`ramet[all]` leaves out only what developers need; docs/reference/packages.md describes every extra."""
    extras: dict[str, Any] = SETTINGS["project"]["optional-dependencies"]
    of_users = sorted(extras.keys() - {"all", "dev", "docs", "ui-test"})
    page = (ROOT / "docs" / "reference" / "packages.md").read_text()

    assert extras["all"] == [f"ramet[{','.join(of_users)}]"]
    assert [each for each in extras if not re.search(rf"(?m)^\| `{each}` \|", page)] == []


def test_addresses_of_the_project_come_from_one_setting(tmp_path: Path) -> None:
    """Without the setting a package has no address, with it every one."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    text = (ROOT / "pyproject.toml").read_text()
    found = []
    for address in ("", "https://forge.example/ramet/"):
        (tmp_path / "pyproject.toml").write_text(text.replace('repository = ""', f'repository = "{address}"'))
        metadata: dict[str, Any] = {}
        hook.ProjectUrls.update(SimpleNamespace(root=str(tmp_path)), metadata)
        found.append(metadata.get("urls"))

    assert found[0] is None
    assert found[1] == {"Source": "https://forge.example/ramet", "Issues": "https://forge.example/ramet/issues"}


def test_the_skill_for_coding_agents_is_a_skill_that_ramet_reads() -> None:
    """Its name is that of its folder, and its description fits a listing."""
    folder = ROOT / "src" / "ramet" / "skills"
    found = find_skills([SearchPath(folder, "user")])

    assert [each.name for each in found.skills] == ["ramet"]
    assert (found.problems, found.notes) == ((), ())


def test_the_version_is_the_same_in_every_file() -> None:
    """pyproject.toml has it; a citation repeats it."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())

    assert citation["version"] == SETTINGS["project"]["version"]
