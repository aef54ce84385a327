"""ramet with its journal on: every event is committed to SQLite (WAL, FULL) before anybody sees it or acts on it."""

import pathlib
import tempfile

import bench_ramet  # type: ignore[import-not-found]  # beside this file, as the harness wants it
from common import main  # type: ignore[import-not-found]  # the harness


class A(bench_ramet.A):  # type: ignore[misc]  # see above
    """The adapter of `bench_ramet`, with a journal."""

    async def setup(self) -> None:
        """Make the parts that every run shares; the sitting removes the folder."""
        from ramet import AgentRuntime
        from ramet.store.sqlite.store import SqliteStore

        await super().setup()
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ramet-bench-"))
        self.runtime = AgentRuntime(store=SqliteStore(folder / "journal.db"))


if __name__ == "__main__":
    main(A)
