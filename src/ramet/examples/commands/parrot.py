"""An agent without ramet: any program that speaks frames on stdin and stdout is one. See docs/command-agents.md."""

import json
import sys


def say(kind: str, body: bytes = b"", **fields: int) -> None:
    """One frame: a line of JSON, and as many bytes as it says."""
    sys.stdout.buffer.write(json.dumps({"type": kind, **fields, "size": len(body)}).encode() + b"\n" + body)
    sys.stdout.buffer.flush()


heard: list[str] = []
for line in iter(sys.stdin.buffer.readline, b""):
    told = json.loads(line)
    body = sys.stdin.buffer.read(told["size"])
    if told["type"] == "start":
        heard = [each["content"] for each in json.loads(body) if each["role"] == "user"]
        say("ready")
    elif told["type"] == "turn":
        heard.append(body.decode())
        for each in heard:
            say("chunk", f"{each}. ".encode(), turn=told["turn"])
        say("done", turn=told["turn"])
