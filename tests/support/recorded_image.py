"""A server's folder as an older ramet leaves it: `python -m tests.support.recorded_image FOLDER` writes it.

The server has an image and an agent of that image. The code of 93a443c wrote the archive `93a443c-image.tar.gz`. The
names of the team, the agent and the image, and the agent's nonce, are on stdout.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import signal
import sys

import ramet
from tests.support.tars import tar

GREETER = {"greeter.py": b"def greet(text):\n    return f'hello {text}'\n"}


async def main(folder: pathlib.Path) -> None:
    """Start a server, make the image, spawn its agent, and kill the server."""
    socket = folder / ".ramet" / "serve.sock"
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ramet", "serve", "--dir", str(folder), "--backend", "local"
    )
    while not socket.exists():  # noqa: ASYNC110 - the server says nothing when it is ready
        await asyncio.sleep(0.05)
    async with ramet.connect(str(socket)) as client:
        key = (folder / ".ramet" / "operator-token").read_text().strip()
        bundle = await client.upload_bundle(tar(GREETER), key=key)
        job = await client.create_image([bundle.id], key=key)
        while job.state in ("queued", "running"):
            await asyncio.sleep(0.05)
            job = await client.job(job.id, key=key)
        team = await client.create_team({"agents": 4}, key=key)
        info = {"function": "greeter:greet"}
        agent = await client.spawn_agent(
            team.team.id, "greeter", "function", info, image=job.image, policy=ramet.Policy(), key=team.key
        )
        asked = b'{"messages": [{"role": "user", "content": "you"}]}'
        assert b"hello you" in await client.say(agent.agent.id, asked, key=agent.nonce)
        names = {"team": team.team.id, "key": team.key, "image": job.image}
        print(json.dumps({**names, "agent": agent.agent.id, "nonce": agent.nonce}))  # noqa: T201 - its result
    server.send_signal(signal.SIGKILL)
    await server.wait()


if __name__ == "__main__":
    asyncio.run(main(pathlib.Path(sys.argv[1])))
