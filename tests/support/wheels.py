"""Packages that can be installed without a network."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, source: str, *, needs: str = "", program: str = "") -> Path:
    """Make a wheel with one module of that name in `folder`, which pip takes as a place to find links (`-f`).

    `program` is a function of the module, for a program with the name of the package.
    """
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {needs}\n" if needs else ""
    )
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", source)
        archive.writestr(f"{info}/METADATA", about)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        if program:
            archive.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name} = {name}:{program}\n")
        archive.writestr(f"{info}/RECORD", "".join(f"{each},,\n" for each in (f"{name}.py", f"{info}/METADATA")))
    return path


def source_package(folder: Path, name: str, version: str, setup: str) -> None:
    """Make a package without a wheel: `setup` is the program that would install it."""
    top = f"{name}-{version}"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with tarfile.open(folder / f"{top}.tar.gz", "w:gz") as archive:
        for path, text in (("PKG-INFO", about), ("setup.py", setup)):
            member = tarfile.TarInfo(f"{top}/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
