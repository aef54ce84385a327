"""The libraries in the package are those of their manifest, and the page imports nothing else."""

from __future__ import annotations

import hashlib
import re
import tomllib

from ramet.web.static_files import FOLDER, static_files

VENDOR = FOLDER / "vendor"
FROM = re.compile(rb"""(?:\bfrom|\bimport)\s*\(?["']([^"']+)["']""")


def test_every_vendored_file_is_the_one_of_the_manifest() -> None:
    """Each script has its entry, with the hash of the file and, without the stated change, of the original."""
    manifest = tomllib.loads((VENDOR / "VENDORED.toml").read_text())

    assert set(manifest) == {path.name for path in VENDOR.glob("*.mjs")}
    for name, entry in manifest.items():
        content = (VENDOR / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"], name
        if "change" in entry:
            before, after = entry["change"].split(" is ")
            assert content.count(after.encode()) == 1
            content = content.replace(after.encode(), before.encode())
        assert hashlib.sha256(content).hexdigest() == entry["original_sha256"], name
        assert (VENDOR / entry["licence_file"]).stat().st_size > 500, name


def test_scripts_import_only_files_of_the_page() -> None:
    """A bare import would need an import map, which is an inline script."""
    scripts = {name: file.content for name, file in static_files().items() if name.endswith(".mjs")}
    imported = {target.decode() for content in scripts.values() for target in FROM.findall(content)}

    assert imported
    assert [each for each in imported if not each.startswith(("./", "../"))] == []


def test_the_index_has_no_inline_script_or_style() -> None:
    """The content security policy forbids both, and a relative address works below any path."""
    index = (FOLDER / "index.html").read_text()

    assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", index) == []
    assert [each for each in re.findall(r"""(?:src|href)="([^"]+)""", index) if each.startswith(("/", "http"))] == []
