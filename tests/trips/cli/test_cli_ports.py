"""`ramet port` and `ramet show`: ports of an active run, for people in another process."""

from __future__ import annotations

import asyncio
import json
import pathlib

import pytest

import ramet
from ramet.cli.main import main
from tests.support.serving import short_folder
from tests.trips.agents import listening as agents
from tests.trips.kits.isolated import BackendName
from tests.trips.kits.ports import backend, get_body_at_socket, start_serving

__all__ = ["backend"]

PORTS = {"web": 8000, "api": 9000}


async def test_port_prints_the_sockets_of_a_run(backend: BackendName, capsys: pytest.CaptureFixture[str]) -> None:
    """`port` prints one path by its name, or each path; an unknown name or an ended run gets one line on stderr."""
    with short_folder() as folder:

        async def on(*words: str) -> tuple[int, str, str]:
            status = await asyncio.to_thread(main, [*words, "--dir", str(folder)])  # It has a loop of its own.
            streams = capsys.readouterr()
            return status, streams.out, streams.err

        async with ramet.AgentRuntime(folder, backend=backend) as runtime:
            handle = await start_serving(runtime, agents.greet_on_both, PORTS, 8000, 9000)
            plain = await runtime.start_agent(agents.idle)
            host_run = await runtime.spawn(asyncio.sleep, args=(600,))
            paths = {name: str(await handle.port(name)) for name in PORTS}

            assert await on("port", handle.id, "api") == (0, f"{paths['api']}\n", "")
            assert await get_body_at_socket(pathlib.Path(paths["api"])) == "second /"
            status, out, _ = await on("port", handle.id[:-1])
            assert (status, dict(line.split() for line in out.splitlines()[1:])) == (0, paths)
            status, out, _ = await on("port", handle.id, "--json")
            assert [json.loads(line) for line in out.splitlines()] == [
                {"port": name, "socket": path} for name, path in paths.items()
            ]
            for words, reason in (
                ((handle.id, "ftp"), "'ftp'"),
                ((plain.id, "web"), "'web'"),
                ((host_run.id, "web"), "'web'"),
                ((plain.id,), "no ports"),
                (("run-none", "web"), "run-none"),
            ):
                status, out, err = await on("port", *words)
                assert (status != 0, out, err.count("\n")) == (True, "", 1), words
                assert reason in err

            status, out, _ = await on("show", handle.id)
            assert [line.split()[1:] for line in out.splitlines() if line.startswith("ports")] == [
                ["web=8000,", "api=9000"]
            ]
            assert json.loads((await on("show", handle.id, "--json"))[1])["ports"] == PORTS
            assert "ports" not in (await on("show", plain.id))[1]

            await handle.cancel()
            await handle.result()  # Which is on record then.
            status, out, err = await on("port", handle.id, "web")
            assert (status != 0, out, "ended" in err) == (True, "", True)
            assert "ports" not in (await on("show", handle.id))[1]
        status, out, err = await on("port", handle.id, "web")
        assert (status != 0, out, err.count("\n")) == (True, "", 1)
