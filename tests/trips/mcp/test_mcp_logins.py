"""Logins at MCP servers: `ramet mcp login|logout` with a real authorization server, and runs that use the login."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import stat

import httpx2
import pytest

import ramet
from ramet.cli.main import main
from ramet.core.events import Notice
from ramet.host.mcp.logins.login_store import LoginStore
from ramet.models.scripted.dialogue import Call
from tests.support.waiting import eventually
from tests.trips.kits.isolated import BackendName, usual_backend
from tests.trips.kits.mcp import agent
from tests.trips.kits.mcp_addresses import address_server

backend = usual_backend


async def test_a_run_uses_the_login_of_its_user(
    tmp_path: pathlib.Path,
    backend: BackendName,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a login, a run names the command; a login is private, of one address, and refreshed."""
    home, folder = tmp_path / "home", tmp_path / "project"
    folder.mkdir()
    monkeypatch.setenv("RAMET_HOME", str(home))
    monkeypatch.setenv("BROWSER", "true")
    async with address_server("login_server", tmp_path) as server:
        entry = server.entry("mcp")
        (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"mcp": {**entry, "name": "mcp"}}}))

        async def command(*words: str) -> int:
            return await asyncio.to_thread(main, ["mcp", *words, "mcp", "--dir", str(folder)])

        async def redirected(printed: list[str]) -> str:
            """Return the address to which the authorization server sends the browser."""

            def links() -> list[str]:
                printed.extend(capsys.readouterr().out.splitlines())
                return [each for each in printed if each.startswith("http")]

            await eventually(lambda: bool(links()))
            async with httpx2.AsyncClient(timeout=180) as browser:
                answer = await browser.get(links()[-1])
            return answer.headers["location"]

        async def ask(*calls: Call) -> list[str]:
            async with ramet.AgentRuntime(tmp_path / "work", backend=backend, user_dir=home) as runtime:
                user = agent(
                    entry, {**entry, "name": "other", "url": f"{entry['url']}?x=1"}, policy=server.policy()
                ).replace(model=ramet.ScriptedModel([list(calls), "Done."]))
                handle = await runtime.spawn(user, "Begin!")
                await handle.result()
                notices = [each.text async for each in handle.events() if isinstance(each, Notice)]
                return [*(each.text for each in handle.run.context.history if each.type == "tool"), *sorted(notices)]

        whoami = Call("mcp__mcp__whoami", {})
        assert await command("login") == 1
        assert "not started: ramet trust" in capsys.readouterr().err
        assert main(["trust", str(folder)]) == 0
        refusal = "the MCP server 'mcp' failed: it refused the connection (HTTP 401): see ramet mcp login mcp"
        assert refusal in await ask(whoami), "whichever of the two servers failed first"

        capsys.readouterr()
        logging_in = asyncio.create_task(command("login"))
        async with httpx2.AsyncClient(timeout=180) as browser:
            redirect = httpx2.URL(await redirected([]))
            strange = await browser.get(redirect.copy_with(path="/callback", query=b"error=no&state=x"))
            page = await browser.get(redirect)
        assert strange.status_code == 404, "another page in the browser cannot end the login"
        assert (await logging_in, page.status_code) == (0, 200)
        assert capsys.readouterr().out == f"logged in at {entry['url']}\n"
        [file] = (home / "mcp-logins").iterdir()
        assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
        answers = await ask(whoami, Call("mcp__mcp__whoami", {"expire": True}), whoami)
        assert answers[:3] == ["token-1", "token-1", "token-3"]
        assert "see ramet mcp login other" in answers[3], "the login is of one address"
        assert server.record() == [["login", entry["url"]], ["refresh"]]
        login = LoginStore(home).read(entry["url"])
        assert login is not None
        assert (login.access_token, login.refresh_token) == ("token-3", "refresh-3")
        assert "token-3" not in repr(login)
        found = await asyncio.to_thread(lambda: [each for each in (tmp_path / "work").rglob("*") if each.is_file()])
        assert [each for each in found if b"refresh-" in each.read_bytes()] == []

        file.chmod(0o644)
        assert "of mode 0600 of this user" in (await ask(whoami))[1]
        assert await command("logout") == 0
        assert list(file.parent.iterdir()) == []

        read, write = os.pipe()
        with os.fdopen(read) as pasted, contextlib.ExitStack() as stack:
            stack.enter_context(monkeypatch.context()).setattr("sys.stdin", pasted)
            capsys.readouterr()
            logging_in = asyncio.create_task(command("login", "--no-browser"))
            os.write(write, (await redirected([])).encode() + b"\n")
            os.close(write)
            assert await logging_in == 0
        assert await command("test") == 0
        assert "mcp__mcp__whoami" in capsys.readouterr().out
