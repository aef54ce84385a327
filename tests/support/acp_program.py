"""A program that speaks the Agent Client Protocol, with nothing but Python's standard library, for a sandbox.

The prompt is its script: a JSON array of steps, done in order. Each is an array of a name and arguments:

    ["say", TEXT]                     a part of the reply
    ["call", ID, TOOL, ARGS]          a call begins
    ["ask", ID, TOOL, ARGS]           it asks for permission; the reply says what came: "allowed" or "rejected"
    ["abandon", ID, TOOL, ARGS]       it asks for permission, and does not wait for what comes
    ["end", ID, STATUS]               a call ends
    ["model", TEXT]                   it asks a model of Anthropic; the reply is that of the model, or the status
    ["plan", [TEXT, …]]               ["sub_agent", ID, TITLE, STATE]
    ["write", PATH, TEXT]             ["read", PATH]                  ["environ", NAME]
    ["remember", TEXT]                ["recall"]                      ["new", STEP]: a step of a session that is new
    ["tool", NAME, ARGS]              it calls a tool of the session's MCP server; the reply is what that answers
    ["wait", PATH]                    until a file is there           ["hang"]                        ["exit", STATUS]
    ["stop", REASON]                  the turn ends with it

A session is a file in its home. What is remembered there is known after `session/load`.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
import urllib.error
import urllib.request
from itertools import count
from typing import Any, NoReturn

Json = dict[str, Any]
ids = count()
HOME = pathlib.Path(os.environ["HOME"])
servers: dict[str, list[Json]] = {}  #: of MCP, by session
loaded: set[str] = set()  #: sessions of earlier processes


def send(message: Json) -> None:
    """Write a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def receive() -> Json:
    """Read the next message."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message: Json = json.loads(line)
    return message


def update(session: str, **fields: Any) -> None:
    """Report something of a session."""
    send({"method": "session/update", "params": {"sessionId": session, "update": fields}})


def say(session: str, text: str) -> None:
    """Say a part of the reply."""
    update(session, sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})


def ask(session: str, id: str, tool: str, args: Json, *, waits: bool = True) -> str:
    """Ask for permission; return what came."""
    number = next(ids)
    options = [
        {"optionId": "always", "name": "Always", "kind": "allow_always"},
        {"optionId": "once", "name": "Once", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ]
    call = {"toolCallId": id, "name": tool, "title": tool, "kind": "execute", "rawInput": args, "status": "pending"}
    params = {"sessionId": session, "toolCall": call, "options": options}
    send({"id": number, "method": "session/request_permission", "params": params})
    if not waits:
        return ""
    while (message := receive()).get("id") != number or "method" in message:
        if message.get("method") == "session/cancel":
            return "cancelled"
    outcome = message["result"]["outcome"]
    return {"once": "allowed", "always": "ALWAYS", "no": "rejected"}.get(outcome.get("optionId"), "cancelled")


def model(text: str) -> str:
    """Ask a model; return its reply, or the status."""
    body = {"model": "claude-sonnet-5-5", "max_tokens": 1000, "messages": [{"role": "user", "content": text}]}
    request = urllib.request.Request(
        os.environ["MODEL_URL"] + "/v1/messages",
        json.dumps(body).encode(),
        {"content-type": "application/json", "x-api-key": os.environ["MODEL_KEY"], "anthropic-version": "2023-06-01"},
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return str(json.load(reply)["content"][0]["text"])
    except urllib.error.HTTPError as error:
        return str(error.code)


def call_tool(session: str, name: str, args: Json) -> str:
    """Call a tool of the first MCP server of a session; return its text, or the error."""
    if not servers[session]:
        return "no tools"
    [server] = servers[session]
    headers = {each["name"]: each["value"] for each in server["headers"]}
    message = {"jsonrpc": "2.0", "id": next(ids), "method": "tools/call", "params": {"name": name, "arguments": args}}
    sent = {"content-type": "application/json", **headers}
    with urllib.request.urlopen(urllib.request.Request(server["url"], json.dumps(message).encode(), sent)) as reply:
        answer = json.load(reply)
    return str(answer["result"]["content"][0]["text"] if "result" in answer else answer["error"]["message"])


def play(session: str, script: list[Any]) -> str:
    """Do the steps; return how the turn ends."""
    for step in script:
        match step:
            case ["say", text]:
                say(session, text)
            case ["call", id, tool, args]:
                fields = {"toolCallId": id, "name": tool, "title": tool, "kind": "other", "rawInput": args}
                update(session, sessionUpdate="tool_call", status="pending", **fields)
            case ["ask", id, tool, args]:
                say(session, ask(session, id, tool, args))
            case ["abandon", id, tool, args]:
                ask(session, id, tool, args, waits=False)
            case ["end", id, status]:
                update(session, sessionUpdate="tool_call_update", toolCallId=id, status=status)
            case ["model", text]:
                say(session, model(text))
            case ["tool", name, args]:
                say(session, call_tool(session, name, args))
            case ["plan", texts]:
                entries = [{"content": each, "priority": "high", "status": "pending"} for each in texts]
                update(session, sessionUpdate="plan", entries=entries)
            case ["sub_agent", id, title, state]:
                said = {"state": "idle", "stopReason": "end_turn"} if state == "completed" else {"state": state}
                update(session, sessionUpdate="subagent_update", sessionId=id, title=title, state=said)
            case ["write", path, text]:
                pathlib.Path(path).write_text(text)
            case ["read", path]:
                say(session, pathlib.Path(path).read_text())
            case ["environ", name]:
                say(session, os.environ.get(name, "(none)"))
            case ["remember", text]:
                with (HOME / session).open("a") as file:
                    file.write(text)
            case ["recall"]:
                say(session, (HOME / session).read_text())
            case ["wait", path]:
                while not pathlib.Path(path).exists():
                    time.sleep(0.01)
            case ["hang"]:
                while receive().get("method") != "session/cancel":
                    pass
                return "cancelled"
            case ["exit", status]:
                sys.exit(status)
            case ["new", each]:
                if session not in loaded:
                    play(session, [each])
            case ["stop", reason]:
                return str(reason)
    return "end_turn"


def main() -> NoReturn:
    """Answer requests until there are none."""
    while True:
        message = receive()
        number, params = message.get("id"), message.get("params") or {}
        result: Json | None
        match message.get("method"):
            case "initialize":
                result = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
            case "session/new":
                session = f"session-{time.time_ns()}"
                (HOME / session).write_text("")
                servers[session] = params["mcpServers"]
                result = {"sessionId": session}
            case "session/load":
                if not (HOME / params["sessionId"]).exists():
                    send({"id": number, "error": {"code": -32002, "message": "Resource not found"}})
                    continue
                servers[params["sessionId"]] = params["mcpServers"]
                loaded.add(params["sessionId"])
                result = None
            case "session/prompt":
                text = "".join(each["text"] for each in params["prompt"])
                result = {
                    "stopReason": play(params["sessionId"], json.JSONDecoder().raw_decode(text, text.index('[["'))[0])
                }
            case _:
                continue
        send({"id": number, "result": result})


if __name__ == "__main__":
    main()
