"""The files of the page: read once, named by their content, and served only by the names that they have here."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from starlette.responses import Response

from ramet.concurrency.threads import in_thread
from ramet.web.script_text import served_script

FOLDER: Final = pathlib.Path(__file__).parent / "static"
#: The types of files that are served. Other files, such as licences, are in the wheel only.
MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
INDEX: Final = "index.html"
VENDOR: Final = "vendor"  #: the folder of libraries of others, which are served byte for byte
#: No inline script or style, no other origin, no frame, no form.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


@dataclass(frozen=True)
class StaticFile:
    """A file of the page, with the hash of its content as its ETag."""

    content: bytes
    media_type: str
    etag: str

    @cached_property
    def gzip_content(self) -> bytes:
        """The content as gzip."""
        return gzip.compress(self.content, mtime=0)

    def answer(self, known_etags: str = "", accepted_encodings: str = "") -> Response:
        """Return the file; 304 without content if its ETag is one of those that the browser has."""
        # A browser asks each time, so that a new version of ramet never meets scripts of an old one.
        headers = {
            "etag": f"W/{self.etag}",  # weak: the same file may come compressed
            "cache-control": "no-cache",
            "vary": "accept-encoding",
            "content-security-policy": CONTENT_SECURITY_POLICY,
        }
        if self.etag in {each.strip()[-len(self.etag) :] for each in known_etags.split(",")}:
            return Response(status_code=304, headers=headers)
        if "gzip" in {each.strip().lower() for each in accepted_encodings.split(",")}:
            headers["content-encoding"] = "gzip"
            return Response(self.gzip_content, headers=headers, media_type=self.media_type)
        return Response(self.content, headers=headers, media_type=self.media_type)


@cache
def static_files(folder: pathlib.Path = FOLDER) -> Mapping[str, StaticFile]:
    """Return the files below a folder by their relative paths. A path that is not in it leads nowhere."""
    files = dict[str, StaticFile]()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (media_type := MEDIA_TYPES.get(path.suffix)) is not None:
            name, content = path.relative_to(folder).as_posix(), path.read_bytes()
            if path.suffix == ".mjs" and not name.startswith(f"{VENDOR}/"):
                content = served_script(content.decode()).encode()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            files[name] = StaticFile(content, media_type, etag)
    return files


def prepare_files(after_s: float = 0.0) -> None:
    """Read and compress the files in a thread, some seconds from now, so that the first page need not wait for that."""
    asyncio.get_running_loop().call_later(after_s, lambda: in_thread(_compress_files, name="ramet-page-files"))


def _compress_files() -> None:
    for each in static_files().values():
        assert each.gzip_content
