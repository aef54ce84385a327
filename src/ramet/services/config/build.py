"""Creation of a server from its configuration."""

from __future__ import annotations

import hashlib
import pathlib
import secrets
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ramet.agent.external.external import External
from ramet.core.errors import InvalidValue
from ramet.core.ids import safe_name
from ramet.core.liveness.watch_settings import Watch
from ramet.core.mcp.server_entry import McpServer
from ramet.disk.state_folder import JOURNAL, state_folder
from ramet.host.observability.audit import Audit
from ramet.host.observability.audit_file import AuditFile
from ramet.host.sandbox.sandboxes import BackendName
from ramet.isolation.contract import Backend
from ramet.isolation.workspace.folder_retention import FolderLimits
from ramet.services.agent_types.registry import create_default_types
from ramet.services.config.adapters import find_backend, find_policy_adapter, find_store
from ramet.services.config.load import Config
from ramet.services.config.models import ModelAliases
from ramet.services.config.settings import (
    BundleSettings,
    InstallSettings,
    PostgresUrl,
    RetentionSettings,
    ServiceLimits,
    StoreAdapter,
    TcpAddress,
    UnixSocket,
)
from ramet.services.config.validators import KUBERNETES
from ramet.services.packaging.bundles.requirements import Installs
from ramet.services.packaging.contract import BundleLimits
from ramet.services.rules import Rules
from ramet.services.server.server import SHARED, Server
from ramet.services.turns.queue import TurnLimits
from ramet.store.contract import Store

if TYPE_CHECKING:
    from ramet.services.packaging.runtime_image.pod_images import PodImages


def server_of(config: Config, environ: Mapping[str, str], **options: Any) -> Server:
    """Return a server that is not started yet. `options` are further options of `Server`, and take precedence.

    Secrets are read from `environ` or from files: the token and those of notifications now, a model's key when that
    model is first used. Raises MissingExtra. Raises InvalidValue, naming the reference, if the token does not exist,
    and naming the entry point for an invalid backend. Raises the errors of `audit_of`.
    """
    limits, listen = config.limits, config.listen
    store = options.get("store") or store_of(config.store, config.working_dir, kernel_of(config, environ))
    pod_images = pod_images_of(config, environ)
    settings: dict[str, Any] = {
        "socket": listen.path if isinstance(listen, UnixSocket) else None,
        "listen": (listen.host, listen.port) if isinstance(listen, TcpAddress) else None,
        "backend": backend_of(config, environ, store, pod_images),
        "pod_images": pod_images,
        "store": store,
        "policy_adapter": None if config.policy_adapter is None else find_policy_adapter(config.policy_adapter),
        "policy_timeout_s": float(config.policy_timeout_s),
        "address": config.address,
        "types": create_default_types(ModelAliases(config.models, environ), programs_of(config), servers_of(config)),
        "token": None if config.token is None else config.token.read(environ),
        "teams": config.teams,
        "audit": options.get("audit") or audit_of(config),
        "notify": {name: each.target(f"notify.{name}", environ) for name, each in config.notify.items()},
        "watch": Watch(**structs.asdict(config.watch)),
        "rules": rules_of(config),
        "talk": turn_limits(limits),
        "bundles": bundle_limits(config.bundles),
        "installs": installs_of(config.installs),
        "keep_results_seconds": config.retention.results_s,
        "keep_folders": folder_limits(config.retention),
        "keep_trees": config.retention.memory_trees,
        "public_metrics": config.metrics == "public",
    }
    return Server(config.working_dir, **settings | options)


def backend_of(
    config: Config,
    environ: Mapping[str, str],
    store: Store | None = None,
    pod_images: PodImages | None = None,
) -> BackendName | Backend | None:
    """Return the configured backend; None for bwrap, where it works. Raises InvalidValue, MissingExtra.

    `store` and `pod_images` are those of the server.
    """
    if config.backend == KUBERNETES:
        from ramet.services.config.kubernetes import pods_of

        return pods_of(config, pod_images, store if store is not None and store.name == SHARED else None)
    return None if config.backend is None else find_backend(config.backend, config.working_dir)


def pod_images_of(config: Config, environ: Mapping[str, str]) -> PodImages | None:
    """Return the images of pods, if the settings name a registry.

    The registry is not contacted before an image is needed.
    """
    if config.backend != KUBERNETES:
        return None
    from ramet.services.config.kubernetes import images_of

    return images_of(config, environ)


def kernel_of(config: Config, environ: Mapping[str, str]) -> str:
    """Return the name of a server among the kernels of its store: the same name after each start, where possible.

    A pod uses its own name. Elsewhere the name is derived from the names of the machine and of the listening address.
    """
    if config.kernel is not None:
        return config.kernel
    machine = environ.get("HOSTNAME", "") or socket.gethostname()
    if "KUBERNETES_SERVICE_HOST" in environ:
        return safe_name(machine, "kernel")
    location = str(config.listen if config.listen is not None else config.working_dir.absolute())
    if isinstance(config.listen, TcpAddress):
        suffix = f"{config.listen.port}" if config.listen.port else secrets.token_hex(4)
    else:
        suffix = hashlib.sha256(location.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{safe_name(machine, 'kernel')}-{suffix}"


def store_of(
    place: pathlib.Path | PostgresUrl | StoreAdapter | None, working_dir: pathlib.Path, kernel: str = "kernel"
) -> Store | None:
    """Return the store at a place; None for the store of the working directory. Raises MissingExtra, InvalidValue."""
    if place is None or (isinstance(place, pathlib.Path) and place.resolve() == state_folder(working_dir) / JOURNAL):
        return None
    if isinstance(place, pathlib.Path):
        from ramet.store.sqlite.store import SqliteStore

        return SqliteStore(place)
    if isinstance(place, StoreAdapter):
        return find_store(place, kernel)
    from ramet.store.postgres import PostgresStore

    return PostgresStore(place.url, kernel=kernel)


def audit_of(config: Config) -> Audit | None:
    """Return the audit log of a configuration, which the caller closes; None if the configuration names no file.

    Raises InvalidValue for a file that cannot be written, StoreInUse if it has another writer, and Damaged.
    """
    path = config.audit_file
    if path is None:
        return None
    try:
        return Audit([AuditFile(path)])
    except OSError as problem:
        raise InvalidValue("audit_file", str(path), f"a file that can be written; {problem.strerror}") from None
    except InvalidValue as problem:
        raise InvalidValue("audit_file", problem.value, problem.accepted) from None


def rules_of(config: Config) -> Rules:
    """Return the operator's rules. A model that a rule names by its alias may also be used by its own name."""
    rules, models = config.rules, config.rules.models
    if models is not None:
        models = (*models, *(config.models[name].model for name in models if name in config.models))
    settings: dict[str, Any] = {**structs.asdict(rules), "models": models}
    return Rules(agents=config.limits.agents, keep_failed_s=config.limits.keep_failed_s, **settings)


def programs_of(config: Config) -> Mapping[str, External]:
    """Return the operator's programs of other makers, by name."""
    return {name: each.external for name, each in config.external.items()}


def servers_of(config: Config) -> Mapping[str, McpServer]:
    """Return the operator's MCP servers, by name."""
    return {name: each.server for name, each in config.mcp_servers.items()}


def turn_limits(limits: ServiceLimits) -> TurnLimits:
    """Return the limits of a conversation: `queue` waiting turns, with room for at least one of `body_bytes`."""
    defaults = TurnLimits()
    return TurnLimits(
        body_bytes=limits.body_bytes,
        waiting=limits.queue,
        waiting_bytes=max(defaults.waiting_bytes, limits.body_bytes),
        kept_turns=max(defaults.kept_turns, limits.queue + 1),
    )


def folder_limits(settings: RetentionSettings) -> FolderLimits:
    """Return which run folders are kept, in addition to those of runs that can be resumed."""
    return FolderLimits(days=settings.folder_days, count=settings.folder_count, bytes=settings.folder_bytes)


def bundle_limits(settings: BundleSettings) -> BundleLimits:
    """Return the limits of one upload and of all uploads. A single file may be as large as an upload."""
    return BundleLimits(
        upload=settings.upload_bytes,
        total=settings.total_bytes,
        file=min(settings.total_bytes, max(BundleLimits().file, settings.upload_bytes)),
        quota=settings.kept_bytes,
    )


def installs_of(settings: InstallSettings) -> Installs | None:
    """Return how requirements are installed; None if they are not."""
    return Installs(pip_args=settings.pip_args, timeout_s=settings.timeout_s) if settings.allowed else None
