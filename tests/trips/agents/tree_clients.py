"""Functions that stand for a program in a sandbox: they use the tools of the tree over MCP, at the endpoint inside."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

from ramet.core.errors import RametError
from ramet.guest.models.model_endpoint import ModelEndpoint, model_endpoint

Json = dict[str, Any]
JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


class Client:
    """A client of the MCP server of an endpoint, by hand."""

    def __init__(self, endpoint: ModelEndpoint) -> None:
        self.port, self.key = endpoint.port, endpoint.key
        self._ids = itertools.count(1)

    def post(self, message: Any, headers: Json | None = None, method: str = "POST", path: str = "/mcp") -> list[Any]:
        """Send a message, and return the status and the body of the reply; a header that is None is left out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        sent = {**JSON, "authorization": f"Bearer {self.key}", **(headers or {})}
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        connection.request(method, path, body, {name: value for name, value in sent.items() if value is not None})
        reply = connection.getresponse()
        data = reply.read()
        connection.close()
        return [reply.status, json.loads(data) if data else None]

    def request(self, method: str, params: Json | None = None) -> Json:
        """Send a request, and return the reply."""
        message: Json = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params or {}}
        status, reply = self.post(message)
        assert (status, reply["id"]) == (200, message["id"]), (status, reply)
        return dict(reply)

    def call(self, tool: str, **arguments: Any) -> str:
        """Call a tool, and return its text, marked if it tells of a failure, or the message of an error."""
        reply = self.request("tools/call", {"name": tool, "arguments": arguments})
        if "error" in reply:
            return f"error {reply['error']['code']}: {reply['error']['message']}"
        [content] = reply["result"]["content"]
        return f"refused: {content['text']}" if reply["result"]["isError"] else str(content["text"])

    def spawn(self, agent: str, prompt: str, **more: Any) -> Json:
        """Spawn an agent, and return its id and path."""
        return dict(json.loads(self.call("spawn_agent", agent=agent, prompt=prompt, **more)))

    def rows(self) -> list[Json]:
        """Return the rows of the tree."""
        return list(json.loads(self.call("tree"))["runs"])


@contextlib.contextmanager
def client() -> Iterator[Client]:
    """Provide a client of the run that this code is."""
    with model_endpoint(tree_tools=True) as endpoint:
        yield Client(endpoint)


# ---- children


def double(number: str) -> int:
    """Return twice a number that is written as a text."""
    return 2 * int(number)


def fail(reason: str) -> None:
    """Fail."""
    raise ValueError(reason)


# ---- programs


def handshake() -> list[Json]:
    """Begin a conversation as a client does, and return the replies."""
    with client() as tools:
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        replies = [tools.request("initialize", params)]
        status, body = tools.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (status, body) == (202, None), (status, body)
        return [*replies, tools.request("ping"), tools.request("tools/list")]


def lead() -> Json:
    """Use each tool once and more."""
    with client() as tools:
        sum_run = tools.spawn("double", "21", name="sum", description="adds numbers")
        found: Json = {"sum": [sum_run, tools.call("result", id=sum_run["id"])]}
        scout = tools.spawn("scout", "Look around.")
        found["scout"] = tools.call("result", id=scout["path"], wait_s=50)
        found["sent"] = tools.call("send", to=scout["id"], text="And behind the house?")
        found["again"] = tools.call("result", id=scout["id"], wait_s=50)
        failed = tools.spawn("fail", "no luck")
        found["failed"] = tools.call("result", id=failed["id"])
        endless = tools.spawn("endless", "Wait.")
        found["early"] = tools.call("result", id=endless["id"], wait_s=0)
        while not any(each.get("waits_for") == "model" for each in tools.rows()):
            time.sleep(0.01)
        found["rows"] = tools.rows()
        found["stopped"] = json.loads(tools.call("stop", id=endless["id"], reason="enough"))
        found["late"] = tools.call("result", id=endless["id"])
        found["stopped_again"] = tools.call("stop", id=endless["id"])
        return found


def call_each(calls: list[tuple[str, Json]]) -> list[str]:
    """Call tools one after the other, and return their texts."""
    with client() as tools:
        return [tools.call(name, **arguments) for name, arguments in calls]


def answer_between(agent: str, count: int) -> Json:
    """Let more calls of `result` wait than may, use other tools meanwhile, and stop the run that all wait for."""
    with client() as tools, ThreadPoolExecutor(count) as threads:
        child = tools.spawn(agent, "Wait.")
        waits = [threads.submit(tools.call, "result", id=child["id"], wait_s=50) for _ in range(count)]
        done, _ = wait(waits, return_when=FIRST_COMPLETED)
        found: Json = {"first": [each.result() for each in done], "rows": tools.rows()}
        found["sent"] = tools.call("send", to=child["id"], text="hello")
        found["stopped"] = tools.call("stop", id=child["id"])
        found["ends"] = sorted(each.result() for each in waits)
        return found


def deep(level: int) -> list[Any]:
    """Spawn this function's own type at the next level, and return what each level sees."""
    with client() as tools:
        below: Any = None
        if level:
            child = tools.spawn("deep", str(level - 1), name=f"level-{level}")
            below = json.loads(tools.call("result", id=child["id"], wait_s=50).removeprefix("status: completed\n"))
        return [[each["path"] for each in tools.rows()], below]


def go_deep(level: str) -> str:
    """Do what `deep` does, for a prompt."""
    return json.dumps(deep(int(level)))


def meddle(target: str) -> str:
    """Try to reach a run of another branch."""
    with client() as tools:
        found = [tools.call(tool, id=target) for tool in ("result", "stop")]
        return json.dumps([*found, tools.call("result", id="nobody"), [each["path"] for each in tools.rows()]])


def lead_two_branches() -> Any:
    """Spawn a run, and one beside it that tries to reach the first; return what the second found."""
    with client() as tools:
        hidden = tools.spawn("endless", "Wait.", name="hidden")
        meddler = tools.spawn("meddle", hidden["id"])
        found = tools.call("result", id=meddler["id"], wait_s=50).removeprefix("status: completed\n")
        report = tools.call("result", id=hidden["id"], wait_s=0)
        tools.call("stop", id=hidden["id"])  # Otherwise this run would wait for its end.
        return [json.loads(found), report]


def ask_twice(agent: str) -> list[str]:
    """Spawn two runs, one after the other, and return their reports."""
    with client() as tools:
        return [tools.call("result", id=tools.spawn(agent, "Look.")["id"], wait_s=50) for _ in range(2)]


def ask_wrongly(messages: list[list[Any]]) -> list[Any]:
    """Send messages, each with headers, a method and a path, and return statuses and bodies."""
    with client() as tools:
        replies = [tools.post(*each) for each in messages]
        assert tools.request("ping")["result"] == {}
        return replies


def send_raw(requests: list[str]) -> list[str]:
    """Send bytes over sockets, with the key put in; return the first line of what comes."""
    replies = []
    with client() as tools:
        for data in requests:
            with socket.create_connection(("127.0.0.1", tools.port)) as connection:
                connection.sendall(data.replace("KEY", tools.key).encode())
                replies.append(connection.makefile("rb").readline().decode().strip())
    return replies


def ask_without_tools() -> list[Any]:
    """Return the status of the path of the tools, and the name of the error for its address, without the tools."""
    with model_endpoint() as endpoint:
        status = Client(endpoint).post({"jsonrpc": "2.0", "id": 1, "method": "ping"})[0]
        try:
            return [status, endpoint.mcp_url]
        except RametError as error:
            return [status, type(error).__name__]


def flood(count: int) -> Json:
    """Call a tool over many connections at once; return how often each status came, and that it works afterwards."""
    with client() as tools:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "tree"}}

        def ask(_: int) -> str:
            try:
                return str(tools.post(message)[0])
            except (OSError, http.client.HTTPException):
                return "closed"

        with ThreadPoolExecutor(40) as threads:
            ends = list(threads.map(ask, range(count)))
        return {"ends": {each: ends.count(each) for each in set(ends)}, "after": len(tools.rows())}


def use_sdk() -> Json:
    """Use the tools with the client of MCP's own SDK."""
    import asyncio

    import httpx2
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def use(endpoint: ModelEndpoint) -> Json:
        headers = {"authorization": f"Bearer {endpoint.key}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=90) as http_client,
            streamable_http_client(endpoint.mcp_url, http_client=http_client) as streams,
            ClientSession(streams[0], streams[1]) as session,
        ):
            begun = await session.initialize()
            listed = await session.list_tools()
            spawned: Any = (await session.call_tool("spawn_agent", {"agent": "double", "prompt": "4"})).content[0]
            run = json.loads(spawned.text)
            ended: Any = (await session.call_tool("result", {"id": run["id"]})).content[0]
            refused = await session.call_tool("stop", {"id": "nobody"})
            reason: Any = refused.content[0]
            try:
                await session.call_tool("result", {"id": run["id"], "wait_s": "long"})
                wrong = ""
            except Exception as error:
                wrong = str(error)
            return {
                "version": begun.protocol_version, "tools": [each.name for each in listed.tools], "result": ended.text,
                "refused": [refused.is_error, reason.text], "wrong": wrong,
            }  # fmt: skip

    with model_endpoint(tree_tools=True) as endpoint:
        return asyncio.run(use(endpoint))
