"""Rights in the terms of RBAC: rights that roles give, and rights that a kernel has used."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import parse_qs

import httpx2
import pytest

from tests.support.manifests import Manifest

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
#: Whoever has an account may ask what it may: that is Kubernetes' own role `system:basic-user`.
_EVERYONES = "selfsubjectaccessreviews.authorization.k8s.io"


class Right(NamedTuple):
    """A verb and a resource, named as in kubectl, `networkpolicies.networking.k8s.io`, or as a part, `pods/attach`."""

    verb: str
    resource: str
    name: str = ""  #: of the one object that it is about, where a role says so


class Audit:
    """The rights that an account used in this process, each with its namespaces; "" is no namespace."""

    def __init__(self, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used: dict[Right, set[str]] = defaultdict(set)
        self.refused: dict[Right, set[str]] = defaultdict(set)
        send_request = httpx2.AsyncHTTPTransport.handle_async_request

        async def noted(transport: httpx2.AsyncHTTPTransport, request: httpx2.Request) -> httpx2.Response:
            response = await send_request(transport, request)
            if request.headers.get("Authorization") == f"Bearer {token}":
                found = self.refused if response.status_code in (401, 403) else self.used
                for right, namespace in _rights_needed(request):
                    found[right].add(namespace)
            return response

        monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", noted)


def rights_of(manifests: Sequence[Manifest]) -> frozenset[Right]:
    """Return the rights that the roles among these manifests give, wherever they are bound."""
    rules = [rule for each in manifests if each["kind"] == "ClusterRole" for rule in each["rules"]]
    return frozenset(
        Right(verb, _resource(resource, group), name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    )


def _resource(resource: str, group: str) -> str:
    name, slash, part = resource.partition("/")
    return f"{name}.{group}{slash}{part}" if group else resource


def _rights_needed(request: httpx2.Request) -> Iterator[tuple[Right, str]]:
    """Yield the rights that a request needs, with its namespace, as an API server sees it."""
    prefix, *words = request.url.path.strip("/").split("/")
    group, words = ("", words[1:]) if prefix == "api" else (words[0], words[2:])
    namespace = ""
    if words[0] == "namespaces" and len(words) > 2:
        namespace, words = words[1], words[2:]
    kind, name, part = [*words, "", ""][:3]
    resource = _resource(f"{kind}/{part}" if part else kind, group)
    if resource == _EVERYONES:
        return
    yield Right(_verb(request, name), resource), namespace
    if resource == "pods/attach":  # From Kubernetes 1.35 on a WebSocket takes both.
        yield Right("create", resource), namespace
    if kind == "rolebindings" and request.method == "POST":  # Who has not what it gives must be allowed to give it.
        role = json.loads(request.content)["roleRef"]
        yield Right("bind", f"{role['kind'].lower()}s.{group}", role["name"]), namespace


def _verb(request: httpx2.Request, name: str) -> str:
    if request.method in _VERBS:
        return _VERBS[request.method]
    if request.method == "DELETE":
        return "delete" if name else "deletecollection"
    asked = parse_qs(request.url.query.decode())
    return "get" if name else "watch" if asked.get("watch") == ["true"] else "list"
