"""A program that is an agent, for tests: the standard library alone, as a stranger would write it.

What it is told means something: `hang` is begun and not brought to its end before it is told to, `log` makes it write
ten megabytes to stderr, `fail` makes it fail, `die` ends it at once. Anything else is answered with all that it was
ever told. What comes in the format `raw` comes back as it is.
"""

import json
import os
import signal
import sys


def say(kind: str, body: bytes = b"", **fields: object) -> None:
    """One frame."""
    sys.stdout.buffer.write(json.dumps({"type": kind, **fields, "size": len(body)}).encode() + b"\n" + body)
    sys.stdout.buffer.flush()


def answer(turn: int, text: str) -> None:
    """One turn, to its end."""
    if text == "log":
        sys.stderr.write("x" * 10_000_000)
    if text == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "fail":
        say("chunk", b"so far", turn=turn)
        say("error", b"it was told to", turn=turn)
        return
    for word in " | ".join(heard).split(" "):
        say("chunk", f"{word} ".encode(), turn=turn)
    say("done", turn=turn)


heard: list[str] = []
mail: list[str] = []
for line in iter(sys.stdin.buffer.readline, b""):
    told = json.loads(line)
    body = sys.stdin.buffer.read(told["size"])
    match told["type"]:
        case "start":
            heard += [each["content"] for each in json.loads(body) if each["role"] == "user"]
            say("ready", mail=True, operations=["mail", "swap", "hang"])
        case "turn" if told["format"] == "raw":
            say("chunk", body, turn=told["turn"])
            say("done", turn=told["turn"])
        case "turn":
            heard.append(body.decode())
            if heard[-1] == "hang":
                say("chunk", b"begun ", turn=told["turn"])
            else:
                answer(told["turn"], heard[-1])
        case "interrupt":
            say("done", turn=told["turn"])
        case "mail":
            mail.append(body.decode())
        case "control" if told["operation"] == "mail":
            say("answer", json.dumps(mail).encode(), id=told["id"])
        case "control" if told["operation"] == "swap":
            say("refusal", b"nothing to swap", id=told["id"])
