"""An MCP server on its standard input and output with one tool, `spawn`, which says what it was given.

By hand: it runs in programs' sandboxes, with nothing but the interpreter.
"""

from __future__ import annotations

import json
import sys
from typing import Any

TOOL = {
    "name": "spawn",
    "description": "Spawn an agent.",
    "inputSchema": {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]},
}


def main() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            answer = _answer(message["method"], message.get("params") or {})
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
            sys.stdout.flush()


def _answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            server = {"name": "tree", "version": "1"}
            capabilities: dict[str, Any] = {"tools": {}}
            version = params["protocolVersion"]
            return {"result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": server}}
        case "tools/list":
            return {"result": {"tools": [TOOL]}}
        case "tools/call":
            said = f"spawned for {params['arguments']['task']}"
            return {"result": {"content": [{"type": "text", "text": said}]}}
        case _:
            return {"error": {"code": -32601, "message": f"no such method: {method}"}}


if __name__ == "__main__":
    main()
