"""What the settings of a server are made of. Whatever is printed of them holds no secret."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from ramet.agent.files.bounded_read import Unreadable
from ramet.core.errors import InvalidValue
from ramet.host.observability.redaction import STARS
from ramet.services.config.secret_file import read_secret

MAX_SECRET: Final = 8_192
#: Holds the operator's token itself, for whoever names no place: as if `RAMET_TOKEN` were `env:` and this name.
TOKEN_VARIABLE: Final = "RAMET_OPERATOR_TOKEN"


class SecretReference(Struct, frozen=True):
    """Where a secret is: in a variable of the environment, or in a file that holds nothing else."""

    kind: Literal["env", "file"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def read(self, environ: Mapping[str, str]) -> str:
        """The secret, without blanks around it. Raises InvalidValue, which names the reference, if there is none."""
        accepted = f"a secret of 1 to {MAX_SECRET} printable characters"
        if self.kind == "env":
            found, problem = environ.get(self.name, ""), f"{accepted} in the environment"
        else:
            try:
                found, problem = read_secret(pathlib.Path(self.name), limit=MAX_SECRET + 2), accepted
            except Unreadable as error:
                raise InvalidValue(str(self), "a file", f"{accepted} in it; {error.reason}") from None
        found = found.strip()
        if not found:
            raise InvalidValue(str(self), "nothing", problem)
        if len(found) > MAX_SECRET or not found.isprintable():
            raise InvalidValue(str(self), STARS, problem)
        return found


class UnixSocket(Struct, frozen=True):
    """An address that only this machine has."""

    path: pathlib.Path

    def __str__(self) -> str:
        return str(self.path)


class TcpAddress(Struct, frozen=True):
    """An address that others may reach; port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


#: A user's name in a URL, and what parameters begin with there.
_NAME: Final = re.compile(r"[\w.%+~-]*\Z")
_PARAMETERS: Final = re.compile("[?#;]")


def without_secrets(url: str) -> str:
    """Return a URL as it may be shown: without a password and without parameters, either of which may be secret.

    It need not be one that is well formed: a password may hold any character, and all before the last "@" is taken for
    a name and a password.
    """
    scheme, _, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    name, colon, _ = user.partition(":")
    if not _NAME.match(name):
        name = STARS
    shown = f"{name}:{STARS}" if colon else name
    [place, *more] = _PARAMETERS.split(place, maxsplit=1)
    return f"{scheme}://{shown}{at}{place}" + (f"?{STARS}" if more else "")


class PostgresUrl:
    """Where a PostgreSQL server is. Shown without a password and without parameters, either of which may be secret."""

    __slots__ = ("url",)

    def __init__(self, url: str) -> None:
        self.url = url

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PostgresUrl) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __str__(self) -> str:
        return without_secrets(self.url)

    def __repr__(self) -> str:
        return f"PostgresUrl({str(self)!r})"


class StoreAdapter(Struct, frozen=True):
    """A store of another package: the name of its entry point, or "package.module:Name"; and its URL, if it has one."""

    name: str
    url: str = ""

    def __str__(self) -> str:
        return without_secrets(self.url) if self.url else self.name

    def __repr__(self) -> str:
        return f"StoreAdapter({str(self)!r})"


class ModelAlias(Struct, frozen=True):
    """A name of one's own for a model; without a `key` the provider's package looks where it always does."""

    model: str
    key: SecretReference | None = None

    def __str__(self) -> str:
        return self.model if self.key is None else f"{self.model}, key {self.key}"


class ServiceLimits(Struct, frozen=True, kw_only=True):
    """How much is taken of whoever asks."""

    body_bytes: int = 8 * 2**20  #: of one message
    queue: int = 16  #: turns that wait at one agent
    agents: int = 1_000  #: that live at once, of all teams
    keep_failed_s: int = 604_800  #: that an agent which has failed may be kept: a week


class RetentionSettings(Struct, frozen=True, kw_only=True):
    """How long what has ended is kept. What lives, or can go on, is kept in any case."""

    results_s: int | None = None  #: seconds after its end that a tree stays on record; None: until `ramet gc`
    folder_days: int = 30  #: that the folder of a run stays
    folder_count: int = 1_000  #: of the newest folders
    folder_bytes: int | None = None  #: that the newest folders take together; None: any
    memory_trees: int = 256  #: that are over, and are held in memory to be asked for


class BundleSettings(Struct, frozen=True, kw_only=True):
    """How much of code and skills may be uploaded."""

    upload_bytes: int = 64_000_000  #: of one archive, as it comes
    total_bytes: int = 256_000_000  #: of all files of one
    kept_bytes: int = 10_000_000_000  #: of all that are kept: files, names, and 1 KiB for each file and folder


class PodSettings(Struct, frozen=True, kw_only=True):
    """Whose a pod is, and how pods and this server find each other; of the backend `kubernetes`."""

    per: Literal["run", "team"] = "run"
    warm: int = 0  #: so many wait for runs like those before, of each kind
    dial: TcpAddress | None = None  #: where pods reach this server; None: through the API server
    listen: TcpAddress | None = None  #: None: at that port, at every address
    certificate: pathlib.Path | None = None  #: None: one by an authority of the working directory's own
    key: pathlib.Path | None = None
    ca: pathlib.Path | None = None
    pull_secret: str | None = None  #: the Secret by which nodes pull images


class RuleSettings(Struct, frozen=True, kw_only=True):
    """What agents that are asked for over HTTP may have of this machine; None is whatever they ask for."""

    sandboxed: bool | None = None  #: None: as soon as something of an agent touches the machine
    mounts: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    endpoints: tuple[str, ...] | None = None  #: None: every public one
    backends: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    bundles: Literal["operator", "teams"] = "operator"  #: who may upload them


class InstallSettings(Struct, frozen=True, kw_only=True):
    """Whether images may have what their bundles' `requirements.txt` name, and how it is installed."""

    allowed: bool = False
    pip_args: tuple[str, ...] = ()  #: further arguments of pip, which win
    timeout_s: int = 600
