"""A program that writes what a test says to its output, as an agent that is broken or hostile would.

The argument is a list of steps in JSON. Each is done when the request it waits for has come:

    {"on": "session/prompt", "write": "text", "times": 3}      written as it is, with $id for the request's id
    {"on": "initialize", "result": {…}}                         an answer
    {"on": "session/prompt", "say": "text"}                     a part of the reply; "update", "request": any other
    {"on": "answer", "log": "path"}                             what came is added to a file; "touch": it is made
    {"on": "session/prompt", "do": "endless" | "exit" | "close" | "hang" | "ignore" | "fork" | "deaf"}

`session/new` and `initialize` are answered as usual, unless a step waits for them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

USUAL = {
    "initialize": {"protocolVersion": 1, "agentCapabilities": {}},
    "session/new": {"sessionId": "s1"},
}


def main() -> None:
    """Answer requests until the input ends."""
    steps = json.loads(sys.argv[1])
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method = message.get("method", "answer")
        wanted = [step for step in steps if step["on"] == method]
        for step in wanted:
            do(step, message)
            if step.get("once"):
                steps.remove(step)
        if not wanted and method in USUAL:
            send({"jsonrpc": "2.0", "id": message["id"], "result": USUAL[method]})


def send(message: dict[str, Any]) -> None:
    """Write a message."""
    write(json.dumps(message).encode() + b"\n")


def write(data: bytes) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(1, data) :]


def do(step: dict[str, Any], message: dict[str, Any]) -> None:
    """Do one step."""
    number = json.dumps(message.get("id"))
    if "write" in step:
        data = step["write"].replace("$id", number).encode("utf-8", "surrogateescape")
        for _ in range(step.get("times", 1)):
            write(data)
    if "say" in step:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": step["say"]}}
        for _ in range(step.get("times", 1)):
            send({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s1", "update": update}})
    if "touch" in step:
        Path(step["touch"]).touch()
    if "pid" in step:  # In one step: a reader finds all of it.
        Path(step["pid"] + ".new").write_text(str(os.getpid()))
        Path(step["pid"] + ".new").rename(step["pid"])
    if "log" in step:
        with Path(step["log"]).open("a") as log:
            log.write(json.dumps(message) + "\n")
    if "told" in step:  # What came, as text.
        do({"say": json.dumps(message)}, message)
    if "update" in step:
        params = {"sessionId": step.get("session", "s1"), "update": step["update"]}
        send({"jsonrpc": "2.0", "method": "session/update", "params": params})
    if "request" in step:
        send({"jsonrpc": "2.0", **step["request"]})
    if "result" in step:
        send({"jsonrpc": "2.0", "id": message["id"], "result": step["result"]})
    match step.get("do"):
        case "endless":
            while True:
                write(b"x" * 65536)
        case "exit":
            sys.stderr.write(step.get("stderr", ""))
            sys.stderr.flush()
            os._exit(step.get("code", 0))
        case "close":
            os.close(1)
        case "hang" | "deaf":
            signal.pause()
        case "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "fork":  # A process in a session of its own, which holds the output open.
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
            Path(step["pids"]).write_text(f"{os.getpid()} {child.pid}")


if __name__ == "__main__":
    main()
