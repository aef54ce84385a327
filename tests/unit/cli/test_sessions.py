"""`ramet sessions`: recorded conversations and their removal."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ramet import ScriptedModel, Session
from ramet.cli.main import main

Captured = pytest.CaptureFixture[str]


def _talk(folder: Path, session: str, *prompts: str) -> None:
    async def talk() -> None:
        async with Session(
            ScriptedModel(["Sure.\x1b[2J"] * len(prompts)), cwd=folder, session_id=session
        ) as guest_session:
            for each in prompts:
                await guest_session.ask(each)

    asyncio.run(talk())


def test_conversations_are_listed_the_newest_first(tmp_path: Path, capsys: Captured) -> None:
    """Each has its state, turns and first prompt; the number of older ones is printed."""
    _talk(tmp_path, "chat-1", "What is new?", "And now?")
    _talk(tmp_path, "chat-2", "Hello\nthere")

    assert main(["sessions", "list", "--dir", str(tmp_path)]) == 0
    heads, newest, oldest = capsys.readouterr().out.splitlines()
    assert heads.split("  ")[0] == "SESSION"
    assert newest.split()[:3] == ["chat-2", "closed", "1"]
    assert newest.endswith("Hello there")
    assert oldest.split()[:3] == ["chat-1", "closed", "2"]
    assert oldest.endswith("What is new?")

    assert main(["sessions", "list", "--dir", str(tmp_path), "--limit", "1", "--json"]) == 0
    [row] = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["id"], row["state"], row["turns"]) == ("chat-2", "closed", 1)
    assert main(["sessions", "list", "--dir", str(tmp_path), "--limit", "1"]) == 0
    assert "1 older" in capsys.readouterr().err


def test_a_conversation_is_shown_without_terminal_sequences(tmp_path: Path, capsys: Captured) -> None:
    """The session's id selects it."""
    _talk(tmp_path, "chat-1", "What is new?")

    assert main(["sessions", "show", "chat-1", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "user:\nWhat is new?\nagent:\nSure.\n"
    assert main(["sessions", "show", "chat-1", "--dir", str(tmp_path), "--json"]) == 0
    row, *messages = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["id"] == "chat-1"
    assert [each["type"] for each in messages] == ["human", "ai"]


def test_a_removed_conversation_frees_its_id(tmp_path: Path, capsys: Captured) -> None:
    """Nothing of it is left, and the next session of that id starts anew."""
    _talk(tmp_path, "chat-1", "What is new?")
    _talk(tmp_path, "chat-2", "Other.")
    before = len(list((tmp_path / ".ramet/transcripts").iterdir()))

    assert main(["sessions", "rm", "chat-1", "--dir", str(tmp_path)]) == 0
    assert len(list((tmp_path / ".ramet/transcripts").iterdir())) == before - 1
    capsys.readouterr()
    assert main(["sessions", "show", "chat-1", "--dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "ramet: unknown session 'chat-1'; known: chat-2\n"

    _talk(tmp_path, "chat-1", "Again.")
    assert main(["sessions", "show", "chat-1", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "user:\nAgain.\nagent:\nSure.\n"


def test_a_kept_conversation_is_not_removed(tmp_path: Path, capsys: Captured) -> None:
    """The error names the command that allows it."""
    _talk(tmp_path, "chat-1", "What is new?")
    main(["sessions", "list", "--dir", str(tmp_path), "--json"])
    root = json.loads(capsys.readouterr().out)["root"]
    assert main(["keep", root, "--dir", str(tmp_path)]) == 0
    capsys.readouterr()

    assert main(["sessions", "rm", "chat-1", "--dir", str(tmp_path)]) == 1
    assert f"ramet keep --off {root}" in capsys.readouterr().err
    assert main(["sessions", "show", "chat-1", "--dir", str(tmp_path)]) == 0


def test_gc_frees_the_ids_of_removed_conversations(tmp_path: Path, capsys: Captured) -> None:
    """An old conversation is removed together with its id."""
    _talk(tmp_path, "chat-1", "What is new?")

    assert main(["gc", "--older-than", "0", "--dir", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["sessions", "show", "chat-1", "--dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "ramet: unknown session 'chat-1'; there are none\n"
