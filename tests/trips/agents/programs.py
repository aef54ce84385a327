"""Functions that stand for a program in a sandbox: they ask models over HTTP, at the endpoint inside."""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import queue
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ramet.guest.models.model_endpoint import ModelEndpoint, model_endpoint
from ramet.guest.thread_channel import stream_channel
from ramet.wire.guest_protocol.guest_to_host import ForwardRequest
from ramet.wire.guest_protocol.host_to_guest import Answer, ResponseHead

PATHS = {"anthropic": "/v1/messages", "openai": "/v1/responses"}


def message(max_tokens: int | None = 1_000, text: Any = "hi", **more: Any) -> dict[str, Any]:
    """Return a request to Anthropic."""
    body = {"model": "claude-sonnet-5-5", "messages": [{"role": "user", "content": text}], **more}
    return body if max_tokens is None else {**body, "max_tokens": max_tokens}


def send(
    endpoint: ModelEndpoint,
    wire: str,
    body: dict[str, Any] | None,
    path: str = "",
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Send one request, and return status, headers and text of the reply."""
    data = json.dumps(body).encode() if body is not None else None
    sent = {"x-api-key": endpoint.key, "content-type": "application/json", **(headers or {})}
    request = urllib.request.Request(endpoint.url(wire) + (path or PATHS[wire]), data, sent)
    try:
        with urllib.request.urlopen(request) as reply:
            return {"status": reply.status, "headers": _lower(reply.headers), "text": reply.read().decode()}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "headers": _lower(error.headers), "text": error.read().decode()}


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def ask(
    wire: str, bodies: list[dict[str, Any] | None], path: str = "", headers: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Send requests one after the other."""
    with model_endpoint() as endpoint:
        return [send(endpoint, wire, body, path, headers) for body in bodies]


def ask_at_once(wire: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send requests at the same time."""
    with model_endpoint() as endpoint, ThreadPoolExecutor(len(bodies)) as threads:
        return list(threads.map(lambda body: send(endpoint, wire, body), bodies))


def ask_raw(requests: list[str]) -> list[str]:
    """Send bytes over sockets, with the key put in, and return all that comes until each connection closes."""
    replies = []
    with model_endpoint() as endpoint:
        for data in requests:
            with socket.create_connection(("127.0.0.1", endpoint.port)) as connection:
                connection.sendall(data.replace("KEY", endpoint.key).encode())
                received = b""
                while piece := connection.recv(65_536):
                    received += piece
                replies.append(received.decode("latin-1"))
    return replies


def _begin(endpoint: ModelEndpoint, body: dict[str, Any]) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port)
    headers = {"x-api-key": endpoint.key, "content-type": "application/json"}
    connection.request("POST", "/anthropic/v1/messages", json.dumps(body), headers)
    return connection.getresponse()


def ask_size(body: dict[str, Any]) -> Any:
    """Send a request, and return status, size and encoding of the reply, or the name of the error."""
    with model_endpoint() as endpoint:
        reply = _begin(endpoint, body)
        size = 0
        try:
            while piece := reply.read1(65_536):
                size += len(piece)
        except (http.client.HTTPException, OSError) as error:
            return type(error).__name__
        return [reply.status, size, reply.headers.get("content-encoding")]


def send_large(size: int) -> list[int]:
    """Send a large request in chunks, and one after `100 Continue`; return the statuses."""
    body = json.dumps(message(text="a" * size)).encode()
    with model_endpoint() as endpoint:
        pieces = (body[at : at + 100_000] for at in range(0, len(body), 100_000))
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port)
        headers = {"x-api-key": endpoint.key, "content-type": "application/json", "transfer-encoding": "chunked"}
        connection.request("POST", "/anthropic/v1/messages", pieces, headers, encode_chunked=True)
        in_chunks = connection.getresponse()
        in_chunks.read()
        with socket.create_connection(("127.0.0.1", endpoint.port)) as plain:
            head = (
                f"x-api-key: {endpoint.key}\r\ncontent-length: {len(body)}\r\nexpect: 100-continue\r\nconnection: close"
            )
            plain.sendall(f"POST /anthropic/v1/messages HTTP/1.1\r\n{head}\r\n\r\n".encode())
            received = plain.recv(1_000)
            assert received == b"HTTP/1.1 100 Continue\r\n\r\n", received
            plain.sendall(body)
            reply = plain.makefile("rb").readline()
        return [in_chunks.status, int(reply.split()[1])]


def leave_in_the_middle(body: dict[str, Any], before: str) -> str:
    """Begin to read a stream, leave, and go on until a file is there."""
    with model_endpoint() as endpoint:
        reply = _begin(endpoint, body)
        begin = reply.read1(10).decode()
        reply.close()
        _wait_for(before)
        return begin


def read_slowly(body: dict[str, Any], before: str) -> int:
    """Begin a request, read nothing until a file is there, then read all of it; return its size."""
    with model_endpoint() as endpoint:
        reply = _begin(endpoint, body)
        _wait_for(before)
        return len(reply.read())


def _wait_for(file: str) -> None:
    while not pathlib.Path(file).exists():
        time.sleep(0.01)


def find_in_memory(reverse: str, body: dict[str, Any]) -> dict[str, bool]:
    """Ask a model, and return where the text is found whose letters come in reverse: itself it must not be here."""
    with model_endpoint() as endpoint:
        status = send(endpoint, "anthropic", body)["status"]
        endpoint_key = endpoint.key[::-1]
        return {
            "asked": status == 200,
            "control": _is_in_memory(endpoint_key),
            "environment": any(value[::-1].find(reverse) >= 0 for value in os.environ.values()),
            "memory": _is_in_memory(reverse),
        }


def _is_in_memory(reverse: str) -> bool:
    """Return whether the memory of this process holds a text, without making a copy of the text there."""
    first, rest = reverse[-1].encode(), reverse[-2::-1]
    with pathlib.Path("/proc/self/maps").open() as maps, pathlib.Path("/proc/self/mem").open("rb", 0) as memory:
        for line in maps.readlines():
            area, rights = line.split()[:2]
            begin, end = (int(each, 16) for each in area.split("-"))
            if "r" not in rights or "[v" in line:
                continue
            try:
                memory.seek(begin)
                data = memory.read(end - begin)
            except (OSError, ValueError, OverflowError):
                continue
            at = data.find(first)
            while at >= 0:
                if all(data[at + 1 + i : at + 2 + i] == letter.encode() for i, letter in enumerate(rest)):
                    return True
                at = data.find(first, at + 1)
    return False


def ask_directly() -> str:
    """Send a request on the channel, without the endpoint; return the name of the error."""
    status = flood(1)
    return str(status[0])


def flood(count: int) -> list[Any]:
    """Send requests on the channel, without the endpoint, and return the first end of one: a status, or an error."""
    ends: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def receive(message: Any, _: bytes) -> None:
        if isinstance(message, ResponseHead):
            ends.put(message.status)
        elif isinstance(message, Answer) and message.error is not None:
            ends.put(message.error.type)

    body = json.dumps(message()).encode()
    for _ in range(count):
        stream_channel().open_stream(
            ForwardRequest, receive, body, wire="anthropic", method="POST", path="/v1/messages", headers={}
        )
    return [ends.get()]


def ask_with_sdks() -> list[Any]:
    """Ask with the SDKs of Anthropic and OpenAI; return texts, and the statuses of refusals."""
    import anthropic
    import openai

    with model_endpoint() as endpoint:
        claude = anthropic.Anthropic(base_url=endpoint.url("anthropic"), api_key=endpoint.key)
        gpt = openai.OpenAI(base_url=endpoint.url("openai") + "/v1", api_key=endpoint.key)
        messages: Any = [{"role": "user", "content": "hi"}]
        model = "claude-sonnet-5-5"
        whole: Any = claude.messages.create(model=model, max_tokens=50, messages=messages)
        found = [whole.content[0].text]
        with claude.messages.stream(model=model, max_tokens=50, messages=messages) as stream:
            found.append(stream.get_final_text())
        found.append(gpt.responses.create(model="gpt-5.4", input="hi").output_text)
        chat: Any = gpt.chat.completions.create(model="gpt-5.4", messages=messages)
        found.append(chat.choices[0].message.tool_calls[0].function.name)
        try:
            claude.messages.create(model=model, max_tokens=50, messages=messages)
        except anthropic.APIStatusError as error:
            found.append(error.status_code)
        try:
            gpt.responses.create(model="gpt-5.4", input="hi")
        except openai.APIStatusError as error:
            found.append(error.status_code)
        return found
