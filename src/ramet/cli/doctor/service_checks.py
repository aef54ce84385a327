"""Checks of what a server's settings name: a PostgreSQL database, a cluster. Each has a few seconds to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from ramet.cli.doctor.check_result import CheckResult
from ramet.cli.render.sanitize import one_line
from ramet.cli.settings_file import default_file, trust_problem
from ramet.core.errors import InvalidValue, MissingExtra, RametError
from ramet.disk.installation import missing_extra
from ramet.services.config.load import Config, examine
from ramet.services.config.settings import PostgresUrl, StoreAdapter

_ANSWER_S = 4
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def check_services(folder: Path, environ: Mapping[str, str]) -> Sequence[CheckResult]:
    """Report the store and the cluster that the settings of a server in this folder name.

    The settings file of a folder that nobody trusts is not read: it would choose whom this process talks to.
    """
    file, results = default_file(folder), list[CheckResult]()
    if file is not None and (reason := trust_problem(folder)):
        file = None
        meaning = "the settings file of this folder is not used, since the folder is not trusted"
        results.append(CheckResult(name="settings", state="limited", meaning=meaning, remedy=one_line(reason, 300)))
    config, problems = examine(file, environ, {})
    if config is None:
        meaning = f"ramet serve does not start with them: {one_line(str(problems[0]), 300)}"
        return [
            *results,
            CheckResult(name="settings", state="missing", meaning=meaning, remedy="see ramet config check"),
        ]
    return [*results, check_store(config), check_cluster(config, environ)]


def check_store(config: Config) -> CheckResult:
    """Report whether the store answers: a PostgreSQL server is asked."""
    if isinstance(config.store, StoreAdapter):
        return CheckResult(name="store", state="ok", meaning=f"{config.store}, of another package; it was not tried")
    if not isinstance(config.store, PostgresUrl):
        meaning = f"SQLite, in {config.store or 'the folder'}; PostgreSQL is not set, and is not needed"
        return CheckResult(name="store", state="ok", meaning=one_line(meaning, 300))
    try:
        import psycopg
    except ImportError:
        return _missing_extra("store", missing_extra("a journal on PostgreSQL", "postgres"))
    where = str(config.store)
    try:
        with psycopg.connect(config.store.url, connect_timeout=_ANSWER_S, autocommit=True) as connection:
            version = connection.info.server_version
    except (psycopg.Error, OSError) as error:
        meaning = one_line(f"PostgreSQL at {where} does not answer: {error}", 400)
        remedy = (
            "start the server, or correct the setting store (RAMET_STORE): ramet config check shows where it is set"
        )
        return CheckResult(name="store", state="missing", meaning=meaning, remedy=remedy)
    return CheckResult(name="store", state="ok", meaning=f"PostgreSQL {version // 10_000} answers at {where}")


def check_cluster(config: Config, environ: Mapping[str, str]) -> CheckResult:
    """Report whether the Kubernetes API answers, and lets this user create pods."""
    home = environ.get("HOME", "")
    named = config.kubeconfig or environ.get("KUBECONFIG")
    if not named and not Path(home, ".kube", "config").is_file() and not _SERVICE_ACCOUNT.is_file():
        meaning = "no cluster is set up: agents run on this machine, and need none"
        return CheckResult(name="cluster", state="ok", meaning=meaning)
    try:
        return asyncio.run(_ask_cluster(config))
    except MissingExtra as missing:
        return _missing_extra("cluster", missing)
    except InvalidValue as refusal:
        meaning = one_line(f"the kubeconfig cannot be used; expected {refusal.accepted}", 400)
        remedy = "correct KUBECONFIG, or the setting kubeconfig; kubectl config view reads the same file"
        return CheckResult(name="cluster", state="missing", meaning=meaning, remedy=remedy)
    except (RametError, OSError, TimeoutError) as error:
        reason = one_line(str(error), 300) or f"no answer within {_ANSWER_S} s"
        remedy = "see that kubectl get pods works with the same kubeconfig"
        return CheckResult(name="cluster", state="missing", meaning=f"it does not answer: {reason}", remedy=remedy)


async def _ask_cluster(config: Config) -> CheckResult:
    from ramet.isolation.kubernetes.api.client import Api

    namespace = config.namespace or "default"
    async with asyncio.timeout(_ANSWER_S):
        api = Api(namespace, config.kubeconfig)
        try:
            may_create = await api.may("create", "pods")
        finally:
            await api.close()
    if may_create:
        return CheckResult(name="cluster", state="ok", meaning=f"it answers, and pods can be created in {namespace}")
    return CheckResult(
        name="cluster",
        state="limited",
        meaning=f"it answers, and this user may not create pods in {namespace}",
        remedy="set the setting namespace (RAMET_NAMESPACE), or ask for a role that may create pods",
    )


def _missing_extra(name: str, missing: MissingExtra) -> CheckResult:
    feature, _, command = str(missing).partition("; install it with: ")
    return CheckResult(name=name, state="missing", meaning=feature, remedy=command or f"install {missing.extra}")
