"""ramet with a folder: each message, birth and end of a run is in its transcript before anybody sees it."""

import tempfile

import bench_ramet  # type: ignore[import-not-found]  # beside this file, as the harness wants it
from common import main  # type: ignore[import-not-found]  # the harness


class A(bench_ramet.A):  # type: ignore[misc]  # see above
    """As `bench_ramet`, with transcripts on disk."""

    async def setup(self) -> None:
        """Make the parts that every run shares; the sitting removes the folder."""
        from ramet import AgentRuntime

        await super().setup()
        self.runtime = AgentRuntime(tempfile.mkdtemp(prefix="ramet-bench-"))


if __name__ == "__main__":
    main(A)
