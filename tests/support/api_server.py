"""The API of a cluster for pods and secrets, as far as kernels use it. A test chooses its answers.

It has no nodes and no kubelets: a test gives each pod its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from tests.support import http


class Reply(NamedTuple):
    """An answer instead of the true one."""

    status: int
    text: str = ""
    type: str = "text/plain"
    is_done: bool = False  #: what was asked for is done all the same


def refusal(code: int, message: str, reason: str = "") -> Reply:
    """Return a refusal in the form of the API server."""
    status = {"kind": "Status", "status": "Failure", "message": message, "code": code, "reason": reason}
    return Reply(code, json.dumps(status), "application/json")


class ApiServer:
    """The objects of a cluster by kind and name, and the requests for them."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.received_requests: list[str] = []  #: such as "DELETE pods"
        self.replies: dict[str, list[Reply]] = {}  #: to the next that ask for that
        self.held: dict[str, asyncio.Event] = {}  #: what the next that ask for that wait for
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._news = asyncio.Event()
        self._breaks = 0

    def names(self, kind: str) -> list[str]:
        """Return the names of the objects of a kind."""
        return [name for each, name in self.objects if each == kind]

    def add(self, kind: str, made: Mapping[str, Any]) -> None:
        """Add an object, and give it a uid."""
        uid = {"uid": f"uid-{len(self._events)}"}
        self._put(kind, made["metadata"]["name"], {**made, "metadata": {**made["metadata"], **uid}}, "ADDED")

    def change(self, kind: str, name: str, **fields: Any) -> None:
        """Set parts of an object: `spec`, `status`, …"""
        made = copy.deepcopy(self.objects[kind, name])
        for part, value in fields.items():
            made[part] = {**made.get(part, {}), **value}
        self._put(kind, name, made, "MODIFIED")

    def remove(self, kind: str, name: str) -> None:
        """Remove an object, as another client of the API may."""
        self._put(kind, name, copy.deepcopy(self.objects.pop((kind, name))), "DELETED")

    def break_watches(self) -> None:
        """End all open watches. The next watch begins at the position that it asks for."""
        self._breaks += 1
        self._tell()

    def _put(self, kind: str, name: str, made: dict[str, Any], event: str) -> None:
        made["metadata"]["resourceVersion"] = str(len(self._events) + 1)
        if event != "DELETED":
            self.objects[kind, name] = made
        self._events.append((kind, {"type": event, "object": made}))
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def handle(self, asked: http.Request, answer: http.Answer) -> None:
        """Answer one request; see `http.Handler`."""
        url = urllib.parse.urlsplit(asked.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        _, kind, *rest = url.path.partition("/namespaces/")[2].split("/")
        name = rest[0] if rest else asked.body.get("metadata", {}).get("name", "")
        verb = "WATCH" if "watch" in query else "LIST" if asked.method == "GET" and not rest else asked.method
        word = f"{verb} {'/'.join([kind, *rest[1:]])}"
        self.received_requests.append(word)
        if (until := self.held.pop(word, None)) is not None:
            await until.wait()
        reply = self.replies[word].pop(0) if self.replies.get(word) else None
        if reply is not None and not reply.is_done:
            await answer.send_text(reply.status, reply.text, {"content-type": reply.type} if reply.type else {})
        elif verb == "WATCH":
            await self._watch(answer, kind, int(query["resourceVersion"]))
        else:
            true = self._do(verb, kind, name, asked.body) if len(rest) < 2 else refusal(404, "not there")
            response = reply or true
            await answer.send_text(
                response.status, response.text, {"content-type": response.type} if response.type else {}
            )

    def _do(self, verb: str, kind: str, name: str, body: dict[str, Any]) -> Reply:
        if verb == "LIST":
            items = [made for (each, _), made in self.objects.items() if each == kind]
            return _json({"metadata": {"resourceVersion": str(len(self._events))}, "items": items})
        if verb == "POST":
            if (kind, name) in self.objects:
                return refusal(409, f'{kind} "{name}" already exists', "AlreadyExists")
            self.add(kind, body)
        elif (kind, name) not in self.objects:
            return refusal(404, f'{kind} "{name}" not found')
        elif verb == "PATCH":
            self.change(kind, name, **body)
        made = self.objects[kind, name]
        if verb == "DELETE":
            self.remove(kind, name)
        return _json(made)

    async def _watch(self, answer: http.Answer, kind: str, after: int) -> None:
        await answer.start_stream()
        breaks = self._breaks
        while True:
            news = self._news
            for each, event in self._events[after:]:
                if each == kind:
                    await answer.piece(json.dumps(event) + "\n")
            after = len(self._events)
            if breaks != self._breaks:
                return answer.break_off()
            await news.wait()


def _json(body: dict[str, Any]) -> Reply:
    return Reply(200, json.dumps(body), "application/json")


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[ApiServer, str]]:
    """Serve an API on a free port of this machine; yield it and its address."""
    server = ApiServer()
    async with http.serve(server.handle) as address:
        yield server, address
