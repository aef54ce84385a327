"""A process with a session that takes messages of other sessions, until it is killed: `message_receiver.py FOLDER`."""

from __future__ import annotations

import asyncio
import pathlib
import sys

from ramet import AgentRuntime, ScriptedModel, Session
from ramet.core.events import MessageRecorded


async def main(folder: pathlib.Path) -> None:
    """Begin the conversation, or go on with it, and say when it can be reached."""
    model = ScriptedModel({"session-message": ["Noted."], "": ["Ready."]})
    async with AgentRuntime(folder) as runtime:
        session = Session(model, runtime=runtime, session_id="docs", inbound="hold")
        async with session:
            if not session.messages:
                await session.ask("Begin.")
            print("ready", flush=True)  # noqa: T201 - it is how it is known to be at work
            async for event in session.events(tree=False):
                if isinstance(event, MessageRecorded):
                    print("recorded:", event.message["content"], flush=True)  # noqa: T201 - the test waits for it


if __name__ == "__main__":
    asyncio.run(main(pathlib.Path(sys.argv[1])))
