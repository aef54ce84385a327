"""The settings of a server: `ramet.yaml`, the environment and the options."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import sqlite3
from collections.abc import Mapping
from typing import Any

import msgspec
import psycopg
import pytest

import ramet
from ramet.agent.files.trust import trust
from ramet.cli.main import main
from ramet.core.errors import BusyError, InvalidValue, NotYours, RametError, SpawnRefused
from ramet.host.observability.audit_file import verify
from ramet.services.client.client import Client
from ramet.services.config.build import server_of
from ramet.services.config.load import load
from ramet.services.errors import BodyTooLarge
from ramet.services.turns.queue import TurnLimits
from tests.support.echo_agents import EchoType
from tests.support.parrot_agents import user_message
from tests.support.postgres import Server as Postgres
from tests.support.postgres import own_postgres
from tests.support.providers import provider
from tests.support.serve_process import plugin, serve

__all__ = ["own_postgres"]

TOKEN = "a-token-of-my-own-choice"
KEY = "key-that-nobody-is-shown"


def write_settings(folder: pathlib.Path, settings: str) -> pathlib.Path:
    """Write the file of settings of a folder, and return its path."""
    file = folder / "ramet.yaml"
    file.write_text(settings)
    return file


def request_body(text: str) -> bytes:
    """Return the body of a request with one message."""
    return msgspec.json.encode({"messages": [user_message(text)]})


def configured_server(folder: pathlib.Path, settings: str, environ: Mapping[str, str], **options: Any) -> Any:
    """Return a server of these settings, in this process."""
    flags = {"working_dir": str(folder)}
    return server_of(load(write_settings(folder, settings), environ, flags), environ, **options)


async def test_options_override_the_environment_and_the_settings_file(folder: pathlib.Path, home: pathlib.Path) -> None:
    """An option wins over the environment, and the environment over the file. The audit file needs no new trust."""
    settings = "listen: sub/a.sock\nlog_level: debug\naudit_file: audit.jsonl\nlimits: {queue: 3}\n"
    write_settings(folder, f"{settings}teams:\n  red: {{agents: 2}}\n")
    (folder / "sub").mkdir()
    trust(folder, home / ".ramet")
    async with serve(folder) as process:
        assert str(folder / "sub" / "a.sock") in process.line
        log = (await process.end(signal.SIGTERM))[1].splitlines()
    assert (folder / "audit.jsonl").exists()
    assert any(" DEBUG " in line for line in log)
    assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z]+ \w", line) for line in log)
    environment = {"RAMET_LISTEN": str(folder / "b.sock"), "RAMET_LOG_LEVEL": "error"}
    async with serve(folder, "--socket", str(folder / "c.sock"), **environment) as process:
        assert str(folder / "c.sock") in process.line
        assert (await process.end(signal.SIGTERM)) == (0, "")


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ("limits: {que: 3}", (), "ramet: limits.que: 'que' is not accepted; expected a key of limits: "),
        ("", ("--listen", "127.0.0.1:0"), "ramet: token: None is not accepted; expected env:NAME or file:/path"),
        ("", ("--backend", "sun"), "ramet: backend: 'sun' is not accepted; expected one of bwrap, local"),
        ("", ("--config", "no.yaml"), "ramet: config: 'no.yaml' is not accepted; expected a file of settings; "),
    ],
    ids=["key", "no token", "backend", "file"],
)
def test_an_invalid_setting_is_one_line_of_error(
    folder: pathlib.Path, settings: str, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 2, and nothing is created in the folder."""
    file = write_settings(folder, settings)

    assert (
        main(
            ["serve", "--dir", str(folder), *(options if "--config" in options else ("--config", str(file), *options))]
        )
        == 2
    )

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1
    assert not (folder / ".ramet").exists()


async def test_an_invalid_backend_is_one_line_of_error(folder: pathlib.Path) -> None:
    """The line names the entry point of the backend."""
    plugin(folder, "[ramet.backends]\nnothing = tests.support.waiting:eventually\n")
    file = write_settings(folder, "backend: nothing")
    async with serve(folder, "--config", str(file)) as process:
        _, err = await process.process.communicate()
        assert (process.line, process.process.returncode) == ("", 2)
        assert err.decode().startswith("ramet: entry point 'nothing' in 'ramet.backends': ")
        assert err.count(b"\n") == 1
    assert not (folder / ".ramet").exists()


@pytest.mark.parametrize(
    ("token", "message"),
    [("env:NOT_THERE", "env:NOT_THERE: 'nothing' is not accepted; expected a secret"), ("env:SHORT", "token: ")],
    ids=["none", "weak"],
)
async def test_a_missing_or_weak_token_is_refused(folder: pathlib.Path, token: str, message: str) -> None:
    """The error names the reference and does not show the token. The server does not listen."""
    with pytest.raises(InvalidValue) as refusal:
        async with configured_server(folder, f"listen: 127.0.0.1:0\ntoken: {token}\n", {"SHORT": "12345"}):
            pytest.fail("it listens")
    assert str(refusal.value).startswith(message)
    assert "12345" not in str(refusal.value)


async def test_the_token_can_come_from_a_referenced_file(folder: pathlib.Path) -> None:
    """The server reads the token from that file, and creates no key of its own."""
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "token").chmod(0o600)
    file = write_settings(folder, "listen: 127.0.0.1:0\ntoken: file:token\n")
    async with serve(folder, "--config", str(file)) as process:
        url = next(word for word in process.line.split() if word.startswith("http://"))
        async with ramet.connect(url, TOKEN) as client:
            assert await client.list_teams() == []
        async with ramet.connect(url, "another-token-of-somebody") as client:
            with pytest.raises(NotYours):
                await client.create_team({"agents": 1})
        assert TOKEN not in process.line
        assert not (folder / ".ramet" / "operator-token").exists()


async def test_the_key_of_a_model_alias_stays_secret(folder: pathlib.Path) -> None:
    """Each request uses the key that the reference holds now. No log, answer or file contains the key.

    The log is JSON, and what the agents did is in the audit file.
    """
    settings = "log_level: debug\nlog_format: json\naudit_file: logs/audit.jsonl\n"
    file = write_settings(folder, f"{settings}models:\n  smart: {{model: 'openai:gpt-5.4-mini', key: 'file:key'}}\n")
    (folder / "key").write_text(KEY)
    (folder / "key").chmod(0o600)
    async with provider(["Hello.", "Hello again."]) as server:
        async with (
            serve(
                folder, "--config", str(file), OPENAI_BASE_URL=f"{server.url}/v1", OPENAI_API_KEY="another"
            ) as process,
            ramet.connect(folder / ".ramet" / "serve.sock") as client,
        ):
            team = await client.create_team({"agents": 3}, name="red")
            for number, key in enumerate((KEY, f"{KEY}-rotated")):
                (folder / "key").write_text(key)
                info = {"model": "smart"}
                spawned_agent = await client.spawn_agent("red", f"bob{number}", "llm", spawn_info=info, key=team.key)
                answer = await client.say(spawned_agent.agent.id, request_body("Hi."), key=spawned_agent.nonce)
                assert b"Hello" in answer
                assert server.requests[-1].headers["authorization"] == f"Bearer {key}"
            (folder / "key").unlink()
            with pytest.raises(RametError, match="file:"):
                await client.spawn_agent("red", "eve", "llm", spawn_info={"model": "smart"}, key=team.key)
            words = (await process.end(signal.SIGTERM))[1]
    assert "DEBUG" in {json.loads(line)["level"] for line in words.splitlines()}
    audit_file = folder / "logs" / "audit.jsonl"
    assert verify(audit_file).ok
    assert "run_spawned" in audit_file.read_text()
    assert KEY not in audit_file.read_text()
    assert KEY not in words
    files = [each for each in (folder / ".ramet").rglob("*") if each.is_file()]
    assert files
    assert not any(KEY.encode() in each.read_bytes() for each in files)


async def test_configured_teams_are_created_once(folder: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """A team that exists is kept as it is if the settings differ later, and the log says so."""
    caplog.set_level("INFO", "ramet.serve")
    async with configured_server(folder, "teams:\n  red: {agents: 2, usd: 1.5}\n", {}) as server:
        [first] = await server.spawner.list_teams(server.operator)
        assert (first.name, first.resources) == ("red", {"agents": 2, "usd": 1.5})
    assert f"team red: reserved as {first.id}: agents 2, usd 1.5" in caplog.messages

    settings = "teams:\n  red: {agents: 9}\n  blue: {agents: 1}\n"
    async with configured_server(folder, settings, {}) as server:
        teams = {each.name: each for each in await server.spawner.list_teams(server.operator)}
    assert set(teams) == {"red", "blue"}
    assert (teams["red"].id, teams["red"].resources) == (first.id, first.resources)
    assert "team red: not changed; it has agents 2, usd 1.5, but the settings have agents 9" in caplog.messages


async def test_configured_limits_hold_for_the_server(folder: pathlib.Path) -> None:
    """The limits are the bytes of a message, the queued turns, and the agents of all teams."""
    settings = "limits: {body_bytes: 1024, queue: 1, agents: 2}\nteams:\n  red: {agents: 5}\n  blue: {agents: 5}\n"
    types = {"echo": EchoType()}
    async with (
        configured_server(folder, settings, {}, types=types) as server,
        ramet.connect(server.listen_address) as client,
    ):
        agent, nonce = await new_agent(client, server.operator, "red")
        await new_agent(client, server.operator, "blue")
        with pytest.raises(SpawnRefused, match="which is its limit"):
            await client.spawn_agent("blue", "eve", "echo", key=server.operator)
        assert (await client.say(agent, b"x" * 1024, key=nonce)) == b"x" * 1024
        with pytest.raises(BodyTooLarge, match="1024"):
            await client.say(agent, b"x" * 1025, key=nonce)
        server.agents.turn(agent, nonce, b"wait")
        server.agents.turn(agent, nonce, b"next")
        with pytest.raises(BusyError):
            server.agents.turn(agent, nonce, b"one too many")


async def test_settings_can_raise_the_limit_of_a_message(folder: pathlib.Path) -> None:
    """A large message passes from the client to the agent."""
    settings, types = "limits: {body_bytes: 9000000}\nteams:\n  red: {agents: 1}\n", {"echo": EchoType()}
    async with (
        configured_server(folder, settings, {}, types=types) as server,
        ramet.connect(server.listen_address) as client,
    ):
        agent, nonce = await new_agent(client, server.operator, "red")
        large = b" " * 8_999_990 + b"word"
        assert len(large) > TurnLimits().body_bytes
        assert (await client.say(agent, large, key=nonce)) == b"word"


async def new_agent(client: Client, key: str, team: str) -> tuple[str, str]:
    """Spawn an agent, and return its id and nonce."""
    spawned_agent = await client.spawn_agent(team, "bob", "echo", key=key)
    return spawned_agent.agent.id, spawned_agent.nonce


async def test_a_configured_store_holds_the_journal(folder: pathlib.Path) -> None:
    """The working directory has no journal, and the next server finds its agents."""
    settings, types = "store: elsewhere/all.db\n", {"echo": EchoType()}
    (folder / "elsewhere").mkdir()
    async with (
        configured_server(folder, settings, {}, types=types) as server,
        ramet.connect(server.listen_address) as client,
    ):
        await client.create_team({"agents": 1}, name="red")
        agent, nonce = await new_agent(client, server.operator, "red")
    assert not (folder / ".ramet" / "journal.db").exists()
    with sqlite3.connect(folder / "elsewhere" / "all.db") as database:
        assert database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0
    database.close()
    async with (
        configured_server(folder, settings, {}, types=types) as server,
        ramet.connect(server.listen_address) as client,
    ):
        assert (await client.get_agent(agent, key=nonce)).path == "red/bob"


async def test_the_store_can_be_postgresql(folder: pathlib.Path, own_postgres: Postgres) -> None:
    """A URL names the store."""
    url = f"postgresql://ramet@/postgres?host={own_postgres.socket.parent}"
    for start in range(2):
        async with configured_server(folder, "", {"RAMET_STORE": url, "RAMET_TEAMS": "{red: {agents: 1}}"}) as server:
            assert [each.name for each in await server.spawner.list_teams(server.operator)] == ["red"], start
    assert not (folder / ".ramet" / "journal.db").exists()
    with psycopg.connect(own_postgres.dsn) as connection:
        assert connection.execute("SELECT to_regnamespace('ramet') IS NOT NULL").fetchone() == (True,)


async def test_agents_work_in_a_backend_of_another_package(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings name the backend, and its entry point loads it."""
    monkeypatch.syspath_prepend(
        str(plugin(folder, "[ramet.backends]\nmoon = tests.support.moon_backend:MoonBackend\n"))
    )
    async with configured_server(folder, "backend: moon\n", {}) as server:
        assert (await server.runtime.sandboxes.backend()).name == "moon"
        handle = await server.runtime.spawn(abs, args=(-3,), policy=ramet.Policy())
        assert (await handle.result()).value == 3


def test_the_error_names_the_entry_point_of_a_broken_backend(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings are refused before a server is made."""
    monkeypatch.syspath_prepend(str(plugin(folder, "[ramet.backends]\nmoon = no_such_module:Moon\n")))
    with pytest.raises(InvalidValue, match="ModuleNotFoundError") as refusal:
        configured_server(folder, "backend: moon\n", {})
    assert refusal.value.field == "entry point 'moon' in 'ramet.backends'"
