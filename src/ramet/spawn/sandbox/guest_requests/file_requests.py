"""The files of a run that its guest asks for: artifacts of its children, and its checkpoint."""

from __future__ import annotations

import asyncio

from ramet.core.errors import InvalidValue, Unknown
from ramet.spawn.run import Run
from ramet.spawn.sandbox.channel import LargeReply, Reply
from ramet.spawn.sandbox.guest_requests.child_requests import ChildRequests
from ramet.spawn.sandbox.outbound import FileBody, open_artifact, open_body
from ramet.wire.frames import MAX_BODY
from ramet.wire.guest_protocol import answer_data, guest_to_host
from ramet.wire.values import values


class FileRequests:
    """The files that the guest of one sandbox reads and writes through its host."""

    def __init__(self, run: Run, children: ChildRequests) -> None:
        self._run, self._children = run, children

    async def read_artifact(self, request: guest_to_host.ReadArtifact, _: bytes) -> LargeReply:
        """Return an artifact of an ended child. Raises Unknown, and InvalidValue for one too large for a frame."""
        result = await self._children.find(request.run).result()
        artifact = next((each for each in result.files if each.name == request.name), None)
        if artifact is None or artifact.path is None:
            raise Unknown("artifact", request.name, tuple(each.name for each in result.files))
        if artifact.size > MAX_BODY:
            raise InvalidValue(
                "artifact", artifact.name, f"a file of at most {MAX_BODY} bytes, to be read in one piece"
            )
        path = artifact.path

        async def read() -> Reply:
            body = await open_body(lambda: open_artifact(path))
            if body is None:
                raise Unknown("artifact", request.name)
            return Reply(None, body)

        return LargeReply(read)

    async def save_checkpoint(self, request: guest_to_host.SaveCheckpoint, body: bytes) -> Reply:
        """Save a checkpoint. Raises InvalidValue for one that is too large, or that could not be read again."""
        folder = self._run.sandbox.folder
        assert folder is not None, "a run in a sandbox has a folder"
        max_bytes = self._run.grant.max_output_bytes if self._run.grant is not None else 0
        if len(body) > max_bytes:
            raise InvalidValue(
                "checkpoint", len(body), f"a value of at most {max_bytes} bytes (policy.max_output_bytes)"
            )
        # A checkpoint that cannot be read again is not stored.
        values.decode(body, request.json_size, label="checkpoint")
        await asyncio.to_thread(folder.save_checkpoint, body, request.json_size, request.version)
        return Reply()

    async def load_checkpoint(self, _request: guest_to_host.LoadCheckpoint, _: bytes) -> LargeReply:
        return LargeReply(self._checkpoint_reply)

    async def _checkpoint_reply(self) -> Reply:
        folder = self._run.sandbox.folder
        assert folder is not None, "a run in a sandbox has a folder"
        checkpoint = await open_body(folder.open_checkpoint)
        if checkpoint is None:
            return Reply(answer_data.Checkpoint(found=False))
        message = answer_data.Checkpoint(found=True, json_size=checkpoint.json_size, version=checkpoint.version)
        return Reply(message, FileBody(fd=checkpoint.fd, offset=checkpoint.offset, size=checkpoint.size))
