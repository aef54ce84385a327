"""The manifest of a bundle, `bundle.toml`: the functions that are tools, and the skills that the bundle declares.

    tools = ["textkit:count_words"]
    skills = ["estimates"]

An agent that has the bundle has these tools and skills, too. Functions and skills without an entry can still be
requested by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ramet.agent.files.dialects.toml_marks import marks_of
from ramet.agent.files.search_paths import plugin_search_paths
from ramet.agent.files.skills import load_skill
from ramet.core.errors import InvalidValue, RametError
from ramet.services.agent_types.tool_schemas import tool_of, tools_of
from ramet.services.contract import CodeTool
from ramet.services.packaging.atomic_dirs import read_bounded

MANIFEST: Final = "bundle.toml"
SKILLS: Final = "skills"
MAX_SIZE: Final = 64 * 1024  #: bytes of a manifest
MAX_MARKS: Final = 16  #: dots and brackets of a manifest, outside of texts and comments; two lists need two brackets
_MOST: Final = 256  #: tools, and skills


class BundleManifest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of a manifest. Both fields may be empty."""

    tools: tuple[str, ...] = ()  #: "module:function"
    skills: tuple[str, ...] = ()  #: names of folders in `skills`


def manifest_of(folder: Path) -> BundleManifest:
    """Return the manifest of a bundle's folder; an empty one if there is no file. Raises InvalidValue."""
    file = folder / MANIFEST
    if not file.is_file():
        return BundleManifest()
    data = read_bounded(file, MAX_SIZE, MANIFEST)
    if (marks := marks_of(data.decode(errors="replace"))) > MAX_MARKS:
        raise InvalidValue(MANIFEST, marks, f"at most {MAX_MARKS} dots and brackets outside of texts")
    try:
        manifest = msgspec.toml.decode(data, type=BundleManifest)
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:  # ValueError: not UTF-8, or too many digits
        raise InvalidValue(MANIFEST, data[:80].decode(errors="replace"), f"TOML ({problem})") from None
    for field in ("tools", "skills"):
        names = getattr(manifest, field)
        if len(names) > _MOST or len(set(names)) < len(names):
            raise InvalidValue(f"{MANIFEST}: {field}", names[:_MOST], f"at most {_MOST}, each once")
    return manifest


def checked_manifest(folder: Path) -> BundleManifest:
    """Return the manifest, and check that every tool and skill in it exists. Raises InvalidValue."""
    manifest = manifest_of(folder)
    tools_of(manifest.tools, [folder], f"{MANIFEST}: tools")
    for name in manifest.skills:
        try:
            load_skill(name, plugin_search_paths([folder], SKILLS))
        except RametError as problem:
            reason = str(problem).replace(f"{folder}/", "")
            raise InvalidValue(
                f"{MANIFEST}: skills", name, f"a folder in {SKILLS}/ with a SKILL.md ({reason})"
            ) from None
    return manifest


def declared_tools(folder: Path) -> tuple[CodeTool, ...]:
    """Return the tools that a bundle's manifest names. Raises InvalidValue."""
    return tuple(tool_of(each, [folder], f"{MANIFEST}: tools") for each in manifest_of(folder).tools)
