"""A container registry over its HTTP API: blobs and manifests by digest, with Basic and token authentication."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import NamedTuple, Self

import httpx2

from ramet.core.errors import InvalidValue, Unknown
from ramet.services.packaging.oci.auth import NOBODY, Login, RegistryFailed, authorization, is_loopback
from ramet.services.packaging.oci.manifest import (
    TYPES,
    Descriptor,
    ImageManifest,
    digest_of,
    is_index,
    of_platform,
    read_manifest,
)

MAX_JSON = 4 * 1024 * 1024  #: bytes of a manifest or a config, the registry's own limit
_REPOSITORY = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PIECE = 256 * 1024

Body = Callable[[], AsyncIterator[bytes]]  #: returns the data to send, from its beginning: requests may be repeated


def body_of(data: bytes) -> Body:
    """Return the body of a request that sends `data`."""

    async def pieces() -> AsyncIterator[bytes]:
        yield data

    return pieces


class ImageReference(NamedTuple):
    """The parts of a name such as "team/base:1" or "team/base@sha256:…" in a registry."""

    repository: str
    tag: str  #: or a digest


def reference(text: str) -> ImageReference:
    """Parse a name without the registry; without a tag it is "latest". Raises InvalidValue."""
    repository, at, digest = text.partition("@")
    name, colon, tag = (repository, "", digest) if at else repository.partition(":")
    if not colon and not at:
        tag = "latest"
    if not _REPOSITORY.fullmatch(name) or not (_DIGEST if at else _TAG).fullmatch(tag) or len(name) > 255:
        raise InvalidValue("reference", text, "repository, repository:tag or repository@sha256:digest, in lower case")
    return ImageReference(name, tag)


def split_url(url: str) -> tuple[httpx2.URL, str]:
    """Return scheme and host of a registry, and the prefix, "" for none, of images that are named without a registry.

    Raises InvalidValue.
    """
    try:
        parsed_url = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed_url = httpx2.URL()
    folder = parsed_url.path.strip("/")
    is_plain = not (parsed_url.query or parsed_url.fragment or parsed_url.userinfo) and (
        not folder or _REPOSITORY.fullmatch(folder)
    )
    if parsed_url.scheme not in ("http", "https") or not parsed_url.host or not is_plain or " " in url:
        accepted = "scheme and host of a registry, as in https://registry.example.org, and what names there begin with"
        raise InvalidValue("url", url, accepted)
    return parsed_url.copy_with(path="/"), folder


class Registry:
    """A connection to one registry with one login. It is open between `async with`."""

    def __init__(self, url: str, *, login: Login = NOBODY, timeout_s: float = 60.0) -> None:
        """Set `url` to that of a registry, or of a part of one, such as "https://registry.example.org/team".

        Raises InvalidValue, also for a login that would be sent unencrypted.
        """
        self._url, self._folder = split_url(url)
        self.name = self._url.netloc.decode()
        self.sign_in(login)
        self._tokens: dict[str, str] = {}  #: the authorization header of each repository
        self._client = httpx2.AsyncClient(timeout=timeout_s, trust_env=False)

    def sign_in(self, login: Login) -> None:
        """Use this login from now on. Raises InvalidValue for a login that would be sent unencrypted."""
        if login and self._url.scheme == "http" and not is_loopback(self._url.host):
            raise InvalidValue("url", str(self._url), "https where there is a login, or this machine")
        self._login = login

    def full_name(self, name: str) -> str:
        """Return the full name of an image in the registry, for a name without a registry."""
        return f"{self._folder}/{name}" if self._folder else name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    # --- pull

    async def manifest(self, name: ImageReference, platform: str = "linux/amd64") -> ImageManifest:
        """Return the manifest of that name, for a platform. With "", return the manifest itself, of any platform.

        Raises Unknown, InvalidValue, RegistryFailed.
        """
        kinds = [kind for each in TYPES.values() for kind in (each["manifest"], each["index"])]
        response = await self._ask(
            "GET", name.repository, f"manifests/{name.tag}", headers={"accept": ", ".join(kinds)}
        )
        if response.status == 404:
            raise Unknown("image of the registry", f"{name.repository}:{name.tag}")
        self._expect(response, 200, f"manifest {name.tag}")
        if name.tag.startswith("sha256:") and digest_of(response.body) != name.tag:
            raise RegistryFailed(self.name, f"manifest {name.tag}", 200, "its content has another digest")
        kind = response.headers.get("content-type", "").partition(";")[0]
        if is_index(kind) and platform:
            return await self.manifest(
                ImageReference(name.repository, of_platform(response.body, platform)), platform=""
            )
        return read_manifest(response.body, kind)

    async def small_blob(self, repository: str, blob: Descriptor) -> bytes:
        """Return a blob of at most MAX_JSON bytes. Raises RegistryFailed, also for a wrong digest."""
        response = await self._ask("GET", repository, f"blobs/{_check_digest(blob.digest)}")
        self._expect(response, 200, f"blob {blob.digest}")
        if digest_of(response.body) != blob.digest:
            raise RegistryFailed(self.name, f"blob {blob.digest}", 200, "its content has another digest")
        return response.body

    async def has_blob(self, repository: str, blob: Descriptor) -> bool:
        """Return whether a blob is in a repository. Raises RegistryFailed."""
        return (await self._ask("HEAD", repository, f"blobs/{_check_digest(blob.digest)}")).status == 200

    async def digest(self, name: ImageReference) -> str | None:
        """Return the digest of an image that can be pulled by that name.

        Return None if the image, or any blob of it, is missing. Raises InvalidValue, RegistryFailed.
        """
        try:
            manifest = await self.manifest(name, "")
        except Unknown:
            return None
        for blob in (manifest.config, *manifest.layers):
            if not await self.has_blob(name.repository, blob):
                return None
        return digest_of(manifest.body)

    # --- push

    async def push_blob(self, repository: str, blob: Descriptor, body: Body, *, of: str = "") -> None:
        """Push a blob to a repository, unless it is there, or can be mounted from the repository `of`."""
        digest = _check_digest(blob.digest)
        if await self.has_blob(repository, blob):
            return
        mount = {"mount": digest, "from": of} if of and of != repository else {}
        response = await self._ask("POST", repository, "blobs/uploads/", query=mount, source_repository=of)
        if response.status == 201 and mount:
            return
        self._expect(response, 202, f"upload of blob {digest}")
        url = httpx2.URL(str(self._url)).join(response.headers.get("location", ""))
        if (url.scheme, url.netloc) != (self._url.scheme, self._url.netloc):
            raise RegistryFailed(self.name, f"upload of blob {digest}", 202, f"it leads to {url.netloc.decode()}")
        url = url.copy_merge_params({"digest": digest})
        headers = {"content-type": "application/octet-stream"}
        response = await self._ask("PUT", repository, url, headers=headers, body=body, size=blob.size)
        self._expect(response, 201, f"upload of blob {digest}")

    async def push_manifest(self, name: ImageReference, body: bytes, media_type: str) -> str:
        """Push a manifest under its name, and return its digest. All its blobs must exist."""
        path, headers = f"manifests/{name.tag}", {"content-type": media_type}
        response = await self._ask("PUT", name.repository, path, headers=headers, body=body_of(body), size=len(body))
        self._expect(response, 201, f"manifest {name.tag}")
        return digest_of(body)

    async def pieces(self, repository: str, blob: Descriptor) -> AsyncIterator[bytes]:
        """Yield a blob of any size in pieces. Raises RegistryFailed, at the end also if the digest is wrong."""
        hasher = hashlib.sha256()
        url = self._url.join(f"/v2/{repository}/blobs/{_check_digest(blob.digest)}")
        await self._ask("HEAD", repository, f"blobs/{blob.digest}")  # for the token
        request = self._client.build_request(
            "GET", url, headers={**self._headers(repository), "accept-encoding": "identity"}
        )
        response = await self._client.send(request, stream=True, follow_redirects=True)
        try:
            if response.status_code != 200:
                raise RegistryFailed(self.name, f"blob {blob.digest}", response.status_code, response.reason_phrase)
            async for piece in response.aiter_raw(_PIECE):
                hasher.update(piece)
                yield piece
        finally:
            await response.aclose()
        if f"sha256:{hasher.hexdigest()}" != blob.digest:
            raise RegistryFailed(self.name, f"blob {blob.digest}", 200, "its content has another digest")

    # --- one request

    async def _ask(
        self,
        method: str,
        repository: str,
        target: str | httpx2.URL,
        *,
        headers: Mapping[str, str] = {},
        query: Mapping[str, str] = {},
        body: Body | None = None,
        size: int = 0,
        source_repository: str = "",
    ) -> _Answer:
        """Send a request to a path below the repository, or to a URL of this registry. Raises RegistryFailed."""
        url = self._url.join(f"/v2/{repository}/{target}") if isinstance(target, str) else target
        if query:
            url = url.copy_merge_params(query)
        length_header = {"content-length": str(size)} if body else {}
        try:
            for attempt in (1, 2):
                request = self._client.build_request(
                    method,
                    url,
                    headers={**self._headers(repository), **headers, **length_header},
                    content=body() if body else None,
                )
                response = await self._client.send(request, stream=True, follow_redirects=method in ("GET", "HEAD"))
                try:
                    if response.status_code == 401 and attempt == 1:
                        if await self._authorize(
                            repository, source_repository, response.headers.get("www-authenticate", "")
                        ):
                            continue
                    data = bytearray()
                    async for piece in response.aiter_bytes(_PIECE):
                        data += piece
                        if len(data) > MAX_JSON:
                            raise RegistryFailed(self.name, f"{method} {url.path}", 200, f"more than {MAX_JSON} bytes")
                    return _Answer(response.status_code, dict(response.headers), bytes(data))
                finally:
                    await response.aclose()
        except (httpx2.HTTPError, httpx2.InvalidURL) as problem:
            reason = f"{type(problem).__name__}: {problem}"
            raise RegistryFailed(self.name, f"{method} {url.path}", 0, reason) from None
        raise AssertionError("the second attempt is the last")

    def _headers(self, repository: str) -> dict[str, str]:
        token = self._tokens.get(repository)
        return {"authorization": token} if token else {}

    async def _authorize(self, repository: str, source_repository: str, challenge: str) -> bool:
        """Answer a challenge. Return whether the request can be repeated. Raises RegistryFailed."""
        scopes = [f"repository:{repository}:pull,push"] + (
            [f"repository:{source_repository}:pull"] if source_repository else []
        )
        header = await authorization(self._client, self._url, challenge, self._login, scopes)
        if header:
            self._tokens[repository] = header
        return bool(header)

    def _expect(self, answer: _Answer, status: int, action: str) -> None:
        if answer.status != status:
            raise RegistryFailed(self.name, action, answer.status, answer.body.decode(errors="replace"))


class _Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def _check_digest(digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise InvalidValue("digest", digest, "sha256: and 64 hexadecimal digits")
    return digest
