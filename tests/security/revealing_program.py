"""Program that is an agent and reveals its variables and its secret in each text except an answer."""

import json
import os
import sys
from pathlib import Path


def say(kind: str, body: bytes = b"", **fields: object) -> None:
    """Write one frame."""
    sys.stdout.buffer.write((json.dumps({"type": kind, **fields, "size": len(body)}) + "\n").encode() + body)
    sys.stdout.buffer.flush()


def main() -> None:
    """Answer until stdin ends."""
    values = f"{os.environ['TE1']} {os.environ['TE2']} {Path('/run/secrets/tok').read_text()}"
    for line in iter(sys.stdin.buffer.readline, b""):
        asked = json.loads(line)
        body = sys.stdin.buffer.read(asked["size"]).decode()
        if asked["type"] == "start":
            say("ready", operations=["x", "y"])
        elif asked["type"] == "control":
            say("refusal", values.encode(), id=asked["id"])
        elif body == "answer":
            say("chunk", values[::-1].encode(), turn=asked["turn"])
            say("done", turn=asked["turn"])
        elif body == "error":
            say("error", values.encode(), turn=asked["turn"])
        elif body == "noise":
            sys.stderr.write(f"{values}\n" * 20_000)
            sys.stderr.flush()
            say("done", turn=asked["turn"])
        elif body == "exit":
            sys.stderr.write(values)
            sys.stderr.flush()
            os._exit(7)
        else:  # A line that is no frame, or no frame of a program; it is shown up to a byte in the middle of a value.
            padding = "x" * int(body.removeprefix("frame "))
            shown = padding + values if padding else json.dumps({"type": values})
            sys.stdout.write(f"{shown}\n")
            sys.stdout.flush()


main()
