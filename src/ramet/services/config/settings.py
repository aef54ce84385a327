"""The types of a server's settings. Their text forms contain no secrets."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from ramet.agent.files.bounded_read import Unreadable
from ramet.core.errors import InvalidValue
from ramet.core.liveness.watch_settings import WatchAction
from ramet.host.observability.redaction import STARS
from ramet.services.config.secret_file import read_secret

MAX_SECRET: Final = 8_192
#: The variable with the operator's token itself. It acts like `RAMET_TOKEN` set to `env:` and this name.
TOKEN_VARIABLE: Final = "RAMET_OPERATOR_TOKEN"


class SecretReference(Struct, frozen=True):
    """A reference to a secret: a variable of the environment, or a file that contains only the secret."""

    kind: Literal["env", "file"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def read(self, environ: Mapping[str, str]) -> str:
        """Return the secret without surrounding blanks.

        Raises InvalidValue, which names the reference, if there is none.
        """
        accepted = f"a secret of 1 to {MAX_SECRET} printable characters"
        if self.kind == "env":
            secret, problem = environ.get(self.name, ""), f"{accepted} in the environment"
        else:
            try:
                secret, problem = read_secret(pathlib.Path(self.name), limit=MAX_SECRET + 2), accepted
            except Unreadable as error:
                raise InvalidValue(str(self), "a file", f"{accepted} in it; {error.reason}") from None
        secret = secret.strip()
        if not secret:
            raise InvalidValue(str(self), "nothing", problem)
        if len(secret) > MAX_SECRET or not secret.isprintable():
            raise InvalidValue(str(self), STARS, problem)
        return secret


class UnixSocket(Struct, frozen=True):
    """An address that only this machine can reach."""

    path: pathlib.Path

    def __str__(self) -> str:
        return str(self.path)


class TcpAddress(Struct, frozen=True):
    """An address that other machines may reach; port 0 is any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


#: A user's name in a URL, and the characters that parameters begin with.
_NAME: Final = re.compile(r"[\w.%+~-]*\Z")
_PARAMETERS: Final = re.compile("[?#;]")


def without_secrets(url: str) -> str:
    """Return a URL without its password and its parameters, either of which may be secret.

    The URL need not be well formed: a password may contain any character, so everything before the last "@" counts as
    name and password.
    """
    scheme, _, rest = url.partition("://")
    user, at, location = rest.rpartition("@")
    name, colon, _ = user.partition(":")
    if not _NAME.match(name):
        name = STARS
    shown = f"{name}:{STARS}" if colon else name
    [location, *more] = _PARAMETERS.split(location, maxsplit=1)
    return f"{scheme}://{shown}{at}{location}" + (f"?{STARS}" if more else "")


class PostgresUrl(Struct, frozen=True):
    """The URL of a PostgreSQL server.

    Its text form omits the password and the parameters, either of which may be secret.
    """

    url: str

    def __str__(self) -> str:
        return without_secrets(self.url)

    def __repr__(self) -> str:
        return f"PostgresUrl({str(self)!r})"


class StoreAdapter(Struct, frozen=True):
    """A store of another package: the name of its entry point, or "package.module:Name", and its URL if it has one."""

    name: str
    url: str = ""

    def __str__(self) -> str:
        return without_secrets(self.url) if self.url else self.name

    def __repr__(self) -> str:
        return f"StoreAdapter({str(self)!r})"


class ModelAlias(Struct, frozen=True):
    """An alias of a model. Without a `key`, the provider's package looks for one in its usual places."""

    model: str
    key: SecretReference | None = None

    def __str__(self) -> str:
        return self.model if self.key is None else f"{self.model}, key {self.key}"


class ServiceLimits(Struct, frozen=True, kw_only=True):
    """The limits for requests and agents."""

    body_bytes: int = 8 * 2**20  #: the size of one message
    queue: int = 16  #: turns that may wait for one agent
    agents: int = 1_000  #: agents that are alive at the same time, in all teams
    keep_failed_s: int = 604_800  #: how long a failed agent may be kept: a week


class RetentionSettings(Struct, frozen=True, kw_only=True):
    """The retention of ended trees and runs. Active and resumable ones are kept in any case."""

    results_s: int | None = None  #: seconds that an ended tree stays in the journal; None: until `ramet gc`
    folder_days: int = 30  #: days that the folder of a run is kept
    folder_count: int = 1_000  #: the number of the newest folders to keep
    folder_bytes: int | None = None  #: the total size of the newest folders; None: no limit
    memory_trees: int = 256  #: ended trees that are kept in memory for queries


class BundleSettings(Struct, frozen=True, kw_only=True):
    """The limits for uploads of code and skills."""

    upload_bytes: int = 64_000_000  #: the size of one archive as it is uploaded
    total_bytes: int = 256_000_000  #: the size of all files of one archive
    kept_bytes: int = 10_000_000_000  #: the size of all kept bundles: files, names, and 1 KiB for each file and folder


class WatchSettings(Struct, frozen=True, kw_only=True):
    """The watch on runs that have none of their own (`ramet.Watch`)."""

    silent_s: int | None = None
    same_call: int | None = None
    on_silent: WatchAction = "report"
    on_loop: WatchAction = "report"


class PodSettings(Struct, frozen=True, kw_only=True):
    """Settings of the backend `kubernetes`: the sharing of pods, and the connections between pods and this server."""

    per: Literal["run", "team"] = "run"
    warm: int = 0  #: idle pods of each kind that wait for similar runs
    dial: TcpAddress | None = None  #: the address at which pods dial this server; None: attach through the API server
    listen: TcpAddress | None = None  #: None: at that port, at every address
    certificate: pathlib.Path | None = None  #: None: a certificate of the working directory's own authority
    key: pathlib.Path | None = None
    ca: pathlib.Path | None = None
    pull_secret: str | None = None  #: the Secret that nodes use to pull images


class RuleSettings(Struct, frozen=True, kw_only=True):
    """Rules for agents that are spawned over HTTP: what they may use of this machine. None allows anything."""

    sandboxed: bool | None = None  #: None: only if something of an agent uses the machine
    mounts: tuple[str, ...] = ()
    writable_mounts: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    endpoints: tuple[str, ...] | None = None  #: None: every public one
    backends: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    bundles: Literal["operator", "teams"] = "operator"  #: who may upload them


class InstallSettings(Struct, frozen=True, kw_only=True):
    """Settings for installing the requirements in the `requirements.txt` of bundles into images."""

    allowed: bool = False
    pip_args: tuple[str, ...] = ()  #: further arguments of pip, which take precedence
    timeout_s: int = 600
