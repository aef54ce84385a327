"""JSON on a terminal."""

from __future__ import annotations

import asyncio
import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet.cli
from ramet import ScriptedModel, Session
from ramet.cli.main import main
from ramet.cli.render.json_output import escape_json
from ramet.cli.render.sanitize import sanitize
from ramet.cli.render.views import JsonView
from ramet.core.events import Notice
from tests.unit.cli.story import TreeEventWriter

HOSTILE = "a\x9b2Jb\x7f\x85\u202ec\u2066\u200e\u061c\u2028\u2029\U000e0041é\U0001f600"
_TEXTS = st.text(st.one_of(st.sampled_from(HOSTILE), st.characters(codec="utf-8")), max_size=40)
_VALUES = st.recursive(_TEXTS, lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner), max_leaves=8)


@given(_VALUES)
def test_escaped_json_is_the_same_value_and_safe_to_print(value: Any) -> None:
    """Nothing is left that a reader of plain text would not get, and other characters stay as they are."""
    for encoded in (msgspec.json.encode(value), json.dumps(value, ensure_ascii=False)):
        line = escape_json(encoded)

        assert msgspec.json.decode(line) == json.loads(line) == value
        assert sanitize(line.decode()) == line.decode()
    assert escape_json('"é\U0001f600"').decode() == '"é\U0001f600"'


def test_commands_print_json_that_cannot_control_a_terminal(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The prompt and the answer are hostile; programs get them unchanged."""

    async def talk() -> None:
        async with Session(ScriptedModel([HOSTILE]), cwd=tmp_path, session_id="chat") as session:
            await session.ask(HOSTILE)

    asyncio.run(talk())
    assert main(["ps", "--all", "--json", "--dir", str(tmp_path)]) == 0
    run = json.loads(capfdbinary.readouterr().out)["id"]

    for command in ("ps --all", "sessions list", "sessions show chat", f"show {run}", f"logs {run}", f"replay {run}"):
        assert main([*command.split(), "--json", "--dir", str(tmp_path)]) == 0
        text = capfdbinary.readouterr().out.decode()
        assert sanitize(text) == text, command
        assert command == "ps --all" or HOSTILE in "\n".join(map(texts_of, map(json.loads, text.splitlines()))), command


def test_a_view_of_events_prints_safe_json() -> None:
    """The view of `ramet ask --json` writes to its own stream."""
    out = io.BytesIO()

    JsonView(out).show_event(TreeEventWriter().add(Notice, "main", 0.0, text=HOSTILE))

    text = out.getvalue().decode()
    assert (sanitize(text), json.loads(text)["text"]) == (text, HOSTILE)


def texts_of(value: Any) -> str:
    """Return all texts of a value, one after the other."""
    if isinstance(value, dict):
        value = list(value.values())
    return "\n".join(map(texts_of, value)) if isinstance(value, list) else str(value)


def test_one_module_prints_json() -> None:
    """Another `print` of JSON would print foreign text as it is."""
    [folder] = ramet.cli.__path__
    direct = re.compile(r"(?:print|write)\((?:Text\()?(?:json\.dumps|msgspec\.json\.\w+|value_json|encode)\(")

    assert [path.name for path in Path(folder).rglob("*.py") if direct.search(path.read_text())] == []
