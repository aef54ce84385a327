"""An agent without ramet: a program that exchanges frames on stdin and stdout. See docs/guides/command-agents.md."""

import json
import sys


def say(kind: str, body: bytes = b"", **fields: int) -> None:
    """Write one frame: a line of JSON, and a body of the size that the line states."""
    sys.stdout.buffer.write(json.dumps({"type": kind, **fields, "size": len(body)}).encode() + b"\n" + body)
    sys.stdout.buffer.flush()


messages: list[str] = []
for line in iter(sys.stdin.buffer.readline, b""):
    frame = json.loads(line)
    body = sys.stdin.buffer.read(frame["size"])
    if frame["type"] == "start":
        messages = [each["content"] for each in json.loads(body) if each["role"] == "user"]
        say("ready")
    elif frame["type"] == "turn":
        messages.append(body.decode())
        for each in messages:
            say("chunk", f"{each}. ".encode(), turn=frame["turn"])
        say("done", turn=frame["turn"])
