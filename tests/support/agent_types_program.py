"""A program that is an agent, for tests. It uses the standard library alone, as a program of a user may.

Some messages have a meaning: `hang` begins a turn that ends only when the host ends it, `log` writes ten megabytes to
stderr, `fail` fails, and `die` ends the program at once. The answer to every other message repeats all messages so far.
The answer to a message in the format `raw` is the message itself.
"""

import json
import os
import signal
import sys


def say(kind: str, body: bytes = b"", **fields: object) -> None:
    """Send one frame."""
    sys.stdout.buffer.write(json.dumps({"type": kind, **fields, "size": len(body)}).encode() + b"\n" + body)
    sys.stdout.buffer.flush()


def answer(turn: int, text: str) -> None:
    """Answer one turn to its end."""
    if text == "log":
        sys.stderr.write("x" * 10_000_000)
    if text == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "fail":
        say("chunk", b"so far", turn=turn)
        say("error", b"it was told to", turn=turn)
        return
    for word in " | ".join(user_messages).split(" "):
        say("chunk", f"{word} ".encode(), turn=turn)
    say("done", turn=turn)


user_messages: list[str] = []
mail: list[str] = []
for line in iter(sys.stdin.buffer.readline, b""):
    message = json.loads(line)
    body = sys.stdin.buffer.read(message["size"])
    match message["type"]:
        case "start":
            user_messages += [each["content"] for each in json.loads(body) if each["role"] == "user"]
            say("ready", mail=True, operations=["mail", "swap", "hang"])
        case "turn" if message["format"] == "raw":
            say("chunk", body, turn=message["turn"])
            say("done", turn=message["turn"])
        case "turn":
            user_messages.append(body.decode())
            if user_messages[-1] == "hang":
                say("chunk", b"begun ", turn=message["turn"])
            else:
                answer(message["turn"], user_messages[-1])
        case "interrupt":
            say("done", turn=message["turn"])
        case "mail":
            mail.append(body.decode())
        case "control" if message["operation"] == "mail":
            say("answer", json.dumps(mail).encode(), id=message["id"])
        case "control" if message["operation"] == "swap":
            say("refusal", b"nothing to swap", id=message["id"])
