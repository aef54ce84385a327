"""An MCP server of 2025 at an address of this machine, without any library: each path behaves as its name says.

`python plain_address.py RECORD` prints its port. A line of the record is a JSON list.
"""

from __future__ import annotations

import gzip
import json
import pathlib
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RECORD = pathlib.Path(sys.argv[1])
TOOL = {"name": "work", "description": "Works.", "inputSchema": {"type": "object", "properties": {}}}
STEPS = 40
FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "\u001b[31mWho?", "minLength": 2},
        "age": {"type": "integer", "minimum": 0},
    },
    "required": ["name"],
}
CANCELLED, ANSWERED = threading.Event(), threading.Event()
ANSWERS: list[Any] = []
LOCK = threading.Lock()


def record(*facts: Any) -> None:
    with LOCK, RECORD.open("a") as file:
        file.write(json.dumps(facts) + "\n")


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    port = 0

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        record("GET", self.mode)
        if self.mode == "reopening" and self.headers.get("last-event-id"):
            self.events_begin()
            self.wfile.write(b"id: 2\nretry: 0\ndata:\n\n")
        else:
            self.reply(405)

    def do_DELETE(self) -> None:
        record("DELETE", self.mode, self.headers.get("mcp-session-id"))
        self.be_deaf()
        self.reply(200)

    def be_deaf(self) -> None:
        if self.mode == "deaf":
            time.sleep(60)

    @property
    def mode(self) -> str:
        return self.path.removeprefix("/")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        message = json.loads(body)
        method, number = message.get("method"), message.get("id")
        if self.mode == "refusing":
            self.reply(401, headers={"www-authenticate": "Bearer"})
        elif self.mode == "redirecting":
            elsewhere = f"http://localhost:{self.port}/work"
            self.reply(307, headers={"location": elsewhere})
        elif method == "server/discover":
            self.reply(404)
        elif method == "initialize":
            version = message["params"]["protocolVersion"]
            record("initialize", self.mode, version, sorted(message["params"]["capabilities"]))
            info = {"name": "plain", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            self.answer(number, result, {"mcp-session-id": f"session-{self.mode}"})
        elif method == "tools/list":
            record("session", self.mode, self.headers.get("mcp-session-id"), self.headers.get("mcp-protocol-version"))
            self.answer(number, {"tools": [TOOL]})
        elif method == "tools/call":
            record("call", self.mode)
            self.work(number, message["params"])
        elif method == "notifications/cancelled":
            record("cancelled", self.mode)
            self.be_deaf()
            CANCELLED.set()
            self.reply(202)
        elif method is None:
            ANSWERS.append(message)
            ANSWERED.set()
            self.reply(202)
        else:
            self.reply(202)

    def work(self, number: Any, params: dict[str, Any]) -> None:
        done = {"jsonrpc": "2.0", "id": number, "result": text(f"{self.mode} is done")}
        match self.mode:
            case "work":
                token = params.get("_meta", {}).get("progressToken")
                self.events_begin()
                for step in range(STEPS):
                    progress = {"progressToken": token, "progress": step, "total": STEPS, "message": f"step {step}"}
                    self.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
                self.event(done)
            case "hang":
                CANCELLED.wait(60)
                self.reply(202)
            case "asks":
                self.events_begin()
                for each in ("sampling/createMessage", "roots/list"):
                    ANSWERED.clear()
                    self.event({"jsonrpc": "2.0", "id": each, "method": each, "params": {"messages": []}})
                    ANSWERED.wait(30)
                codes = [each["error"]["code"] for each in ANSWERS]
                self.event({**done, "result": text(f"refused with {codes}")})
            case "elicits":
                self.events_begin()
                ANSWERED.clear()
                ANSWERS.clear()
                params = {"message": "Who are you?", "requestedSchema": FORM}
                self.event({"jsonrpc": "2.0", "id": "e", "method": "elicitation/create", "params": params})
                ANSWERED.wait(60)
                self.event({**done, "result": text(json.dumps(ANSWERS[-1].get("result")))})
            case "floods":
                self.events_begin()
                line = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
                for _ in range(5_000):
                    self.event(line)
                self.event(done)
            case "huge":
                self.reply(200, b"x" * 40_000_000, {"content-type": "application/json"})
            case "endless":
                self.events_begin()
                for _ in range(40):
                    self.wfile.write(b"data: " + b"x" * 1_000_000)
            case "parts":
                self.events_begin()
                self.event({**done, "result": {"content": [0] * 150_000}})
            case "bomb":
                body = gzip.compress(json.dumps({**done, "result": text("x" * 50_000_000)}).encode(), 1)
                self.reply(200, body, {"content-type": "application/json", "content-encoding": "gzip"})
            case "cut":
                self.events_begin()
                self.wfile.flush()
                self.connection.shutdown(2)
            case "reopening":
                self.events_begin()
                self.wfile.write(b"id: 1\nretry: 0\ndata:\n\n")
            case "broken":
                self.reply(200, b'{"jsonrpc": "2.0", "id": ', {"content-type": "application/json"})
            case "slow" | "deaf":
                time.sleep(60)

    def answer(self, number: Any, result: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode()
        self.reply(200, body, {"content-type": "application/json", **(headers or {})})

    def reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def events_begin(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, message: Any) -> None:
        self.wfile.write(f"data: {json.dumps(message)}\n\n".encode())
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that leave."""


def main() -> None:
    with Server(("127.0.0.1", 0), Handler) as server:
        Handler.port = int(server.server_address[1])
        sys.stdout.write(f"{Handler.port}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
