"""The account that `deploy/` gives kernels, for tests whose kernels are to have no other rights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import Client, SingleConfig
from lightkube.codecs import from_dict
from lightkube.config.kubeconfig import KubeConfig
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ServiceAccountToken

from ramet.isolation.kubernetes.api import quotas
from tests.support.cluster import Cluster, is_allowed, wait_until
from tests.support.manifests import DEPLOY, build_manifests, with_namespace
from tests.support.rights import Right, rights_of

_ACCESS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "RoleBinding")


@dataclass(frozen=True, kw_only=True)
class Account:
    """An account of a kernel with agents in one namespace. Names of its roles begin with the namespace and a dash."""

    kubeconfig: Path  #: its token is in it, and no other way to be somebody
    token: str
    rights: frozenset[Right]  #: what its roles give

    @property
    def config(self) -> SingleConfig:
        """Return the configuration for clients of lightkube."""
        found = KubeConfig.from_file(self.kubeconfig).get()
        assert found is not None, "as of the cluster"
        return found


@contextlib.contextmanager
def create_account(cluster: Cluster, namespace: str, folder: Path) -> Iterator[Account]:
    """Create the account for the length of the block. Its rights are in force."""
    manifests = [
        each for each in with_namespace(build_manifests(DEPLOY / "example"), namespace) if each["kind"] in _ACCESS
    ]
    objects: list[Any] = [from_dict(each) for each in manifests]
    with cluster.blocking_client(namespace) as kube:
        try:
            for each in objects:
                if each.metadata.name != "default":
                    kube.create(each)
            asked = ServiceAccountToken(metadata=ObjectMeta(), spec=TokenRequestSpec(audiences=[]))
            answer = kube.create(asked, "ramet-kernel")
            token = answer.status.token if answer.status else ""
            assert token, "the API server gave none"
            kubeconfig = yaml.safe_load(cluster.kubeconfig.read_text())
            for each in kubeconfig["users"]:
                each["user"] = {"token": token}
            for each in kubeconfig["contexts"]:
                each["context"]["namespace"] = namespace
            file = folder / "kubeconfig-of-a-kernel"
            file.write_text(yaml.safe_dump(kubeconfig))
            account = Account(kubeconfig=file, token=token, rights=rights_of(manifests))
            with Client(account.config, trust_env=False) as it:
                in_force = all(
                    wait_until(partial(is_allowed, it, "create", *each))
                    for each in (("pods", namespace), ("namespaces", ""))
                )
                assert in_force, "what is granted is not in force"
            yield account
        finally:
            for each in objects:
                if each.metadata.namespace is None:
                    kube.delete(type(each), each.metadata.name)


@pytest.fixture
def kernel_account(
    cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Account]:
    """The account of a kernel with agents in `namespace`. A kernel of this process grants itself its roles."""
    monkeypatch.setattr(quotas, "ROLES", tuple(f"{namespace}-{each}" for each in quotas.ROLES))
    with create_account(cluster, namespace, tmp_path_factory.mktemp("account")) as account:
        yield account
