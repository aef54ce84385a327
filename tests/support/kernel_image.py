"""An image for kernels of `deploy/` and for agents: the base image, this source tree, and the packages of extras."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from ramet.isolation.kubernetes.images import LIB

SOURCE = Path(__file__).parents[2] / "src" / "ramet"
EXTRAS = ("server", "postgres", "kubernetes")
NEEDED = ("skopeo", "umoci")  #: programs


def pushed(registry: str) -> str:
    """Return the reference of the image, named by its content. Make and push it if the registry does not have it."""
    needed = list(_requirements_of("ramet", EXTRAS))
    sources = sorted(SOURCE.rglob("*.py"))
    digest = hashlib.sha256(b"2" + repr([(each.name, each.version) for each in needed]).encode())
    for file in sources:
        digest.update(str(file.relative_to(SOURCE)).encode() + b"\0" + file.read_bytes())
    image = f"{registry}/ramet-kernel:{digest.hexdigest()[:16]}"
    if subprocess.run(
        ["skopeo", "inspect", "--tls-verify=false", f"docker://{image}"], capture_output=True, check=False
    ).returncode:
        with tempfile.TemporaryDirectory() as folder:
            _make(Path(folder), f"{registry}/base:1", image, needed)
    return image


def _make(folder: Path, base: str, image: str, needed: list[importlib.metadata.Distribution]) -> None:
    files, layout = folder / "files", f"{folder}/oci:1"
    for each in needed:
        for file in each.files or ():
            if not file.parts[0].startswith("..") and file.suffix != ".pyc":
                _copy(Path(str(each.locate_file(file))), files / file)
    shutil.copytree(SOURCE, files / "ramet", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    _run("skopeo", "copy", "-q", "--insecure-policy", "--src-tls-verify=false", f"docker://{base}", f"oci:{layout}")
    _run("umoci", "insert", "--image", layout, str(files), LIB)
    _run("umoci", "config", "--image", layout, "--config.env", f"PYTHONPATH={LIB}")
    _run("skopeo", "copy", "-q", "--insecure-policy", "--dest-tls-verify=false", f"oci:{layout}", f"docker://{image}")


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
    target.chmod(0o644)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _requirements_of(name: str, extras: tuple[str, ...]) -> Iterator[importlib.metadata.Distribution]:
    """Yield a distribution and all its requirements, each once."""
    found, open_ones = dict[str, set[str]](), [(name, set(extras))]
    while open_ones:
        each, asked = open_ones.pop()
        distribution = importlib.metadata.distribution(each)
        key = distribution.name.lower().replace("_", "-")
        if key in found and asked <= found[key]:
            continue
        found.setdefault(key, set()).update(asked)
        for requirement in map(Requirement, distribution.requires or ()):
            if requirement.marker is None or any(
                requirement.marker.evaluate({"extra": it}) for it in ("", *found[key])
            ):
                open_ones.append((requirement.name, set(requirement.extras)))
    for each in sorted(found):
        yield importlib.metadata.distribution(each)
