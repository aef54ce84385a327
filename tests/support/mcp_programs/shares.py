"""An MCP server of 2025 without any library, for several agents at once: `shares.py ARGUMENT…`.

Its only tool, `work`, does what its argument `value` says; each answer begins with a text of this process alone.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

SCHEMA = {"type": "object", "properties": {"value": {"type": "string"}}}
PROCESS = f"0{os.urandom(4).hex()}"
HELD: dict[str, int] = {}  #: calls without an answer yet, by a name
ASKED: dict[str, int] = {}  #: calls that wait for the answer to a question, by its id


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(request: int, text: str) -> None:
    send(id=request, result={"content": [{"type": "text", "text": f"{PROCESS} {text}"}]})


def report(token: Any, message: str) -> None:
    send(method="notifications/progress", params={"progressToken": token, "progress": 1, "message": message})


def work(request: int, value: str, token: Any) -> None:
    verb, _, name = value.partition(" ")
    match verb:
        case "hold":
            HELD[name] = request
            report(token, f"holds {name}")
        case "free":
            answer(HELD.pop(name), "freed")
            answer(request, "done")
        case "ask":
            ASKED[f"question {request}"] = request
            send(
                id=f"question {request}",
                method="elicitation/create",
                params={"message": name, "requestedSchema": SCHEMA},
            )
        case "report":
            report(token, name)
            answer(request, "done")
        case "die":
            sys.stderr.write(name)
            sys.stderr.flush()
            os._exit(3)
        case _:
            answer(request, " ".join(sys.argv[1:]))


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        request, method, params = message.get("id"), message.get("method"), message.get("params") or {}
        if method == "initialize":
            info = {"name": "shares", "version": "1"}
            send(
                id=request, result={"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            )
        elif method == "tools/list":
            send(id=request, result={"tools": [{"name": "work", "description": "Works.", "inputSchema": SCHEMA}]})
        elif method == "tools/call":
            token = params.get("_meta", {}).get("progressToken")
            work(request, params["arguments"]["value"], token)
        elif method and request is not None:  # A client that asks for a newer protocol would wait for the answer.
            send(id=request, error={"code": -32601, "message": "not found"})
        elif method is None and request in ASKED:
            outcome = "refused" if "error" in message else json.dumps(message["result"].get("content"))
            answer(ASKED.pop(request), outcome)


if __name__ == "__main__":
    main()
