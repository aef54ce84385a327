"""`ramet mcp list|test` on a real folder, with a server in a sandbox."""

from __future__ import annotations

import json
import pathlib
import shutil
import sys

import pytest

from ramet.cli.main import main
from tests.trips.kits.mcp import PROGRAMS


def test_a_folder_lists_and_tries_its_servers(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that waits for trust is shown and not started; a trusted one lists its tools, or says why it cannot."""
    folder = tmp_path / "project"
    (folder / ".claude" / "agents").mkdir(parents=True)
    shutil.copy(PROGRAMS / "plain.py", folder)
    plain = {"command": sys.executable, "args": [str(folder / "plain.py"), "changes"]}
    servers = {"plain": plain, "broken": {"command": "no-such-program"}}
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    (folder / ".claude" / "agents" / "x.md").write_text(
        "---\nname: x\ndescription: Uses both\nmcpServers: [plain, own: {command: own, args: [-v]}]\n---\n"
    )

    def ramet(*words: str) -> tuple[int, list[str]]:
        status = main([*words, "--dir", str(folder)])
        printed = capsys.readouterr()
        return status, (printed.out + printed.err).splitlines()

    line = f"plain  .mcp.json  {sys.executable} {folder}/plain.py changes"
    waits = "  (waits for trust: ramet trust DIR)"
    assert ramet("mcp", "list") == (0, [line + waits, f"broken  .mcp.json  no-such-program{waits}"])
    status, [error] = ramet("mcp", "test", "plain")
    assert (status, "the MCP server 'plain' failed: not started: ramet trust " in error) == (1, True)
    assert main(["trust", str(folder)]) == 0
    assert f"{sys.executable}" in capsys.readouterr().out
    assert ramet("mcp", "list") == (0, [line, "broken  .mcp.json  no-such-program", "own  agent x  own -v"])
    assert ramet("mcp", "test", "plain") == (0, ["mcp__plain__work  The tool work."])
    status, [error] = ramet("mcp", "test", "broken")
    assert (status, "could not be started" in error) == (1, True)
    status, [error] = ramet("mcp", "test", "gone")
    assert (status, "plain, broken, own" in error) == (2, True)


def test_a_folder_shows_the_prompts_of_its_servers(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts are listed with their arguments, or printed as text; neither controls a terminal."""
    shutil.copy(PROGRAMS / "plain.py", tmp_path)
    plain = {"command": sys.executable, "args": [str(tmp_path / "plain.py"), "offers"]}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"plain": plain}}))
    assert main(["trust", str(tmp_path)]) == 0
    capsys.readouterr()

    def prompts(*words: str) -> tuple[int, list[str]]:
        status = main(["mcp", "prompts", *words, "--dir", str(tmp_path)])
        printed = capsys.readouterr()
        return status, (printed.out + printed.err).splitlines()

    assert prompts("plain") == (0, ["greet  who=  Greets"])
    assert prompts("plain", "greet", "who=Ada") == (0, ["user:", "Greet Ada.", "", "assistant:", "Hello Ada!"])
    status, [error] = prompts("plain", "greet", "Ada")
    assert (status, "argument: 'Ada' is not accepted; expected NAME=VALUE, each name once" in error) == (2, True)
    status, [error] = prompts("plain", "other")
    assert (status, "the MCP server 'plain' failed: error -32601: no such method" in error) == (1, True)
