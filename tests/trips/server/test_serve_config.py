"""What `ramet.yaml`, the environment and the options say is what a server does."""

from __future__ import annotations

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
from ramet.services.client.client import Client
from ramet.services.config.build import server_of
from ramet.services.config.load import load
from ramet.services.errors import BodyTooLarge
from ramet.services.turns.queue import TurnLimits
from tests.support.echo_agents import EchoType
from tests.support.parrot_agents import said
from tests.support.postgres import Server as Postgres
from tests.support.postgres import own_postgres
from tests.support.providers import provider
from tests.support.serve_process import plugin, serve

__all__ = ["own_postgres"]

TOKEN = "a-token-of-my-own-choice"
KEY = "key-that-nobody-is-shown"


def written(folder: pathlib.Path, settings: str) -> pathlib.Path:
    """The file of settings in a folder."""
    file = folder / "ramet.yaml"
    file.write_text(settings)
    return file


def body(text: str) -> bytes:
    """A message in the format of OpenAI's clients, or Anthropic's."""
    return msgspec.json.encode({"messages": [said(text)]})


def configured(folder: pathlib.Path, settings: str, environ: Mapping[str, str], **options: Any) -> Any:
    """A server of these settings, in this process."""
    flags = {"working_dir": str(folder)}
    return server_of(load(written(folder, settings), environ, flags), environ, **options)


async def test_the_file_of_the_folder_is_found_and_options_go_before_it(
    folder: pathlib.Path, home: pathlib.Path
) -> None:
    """The last word on each setting holds: an option's, else the environment's, else the file's."""
    written(folder, "listen: sub/a.sock\nlog_level: debug\nlimits: {queue: 3}\nteams:\n  red: {agents: 2}\n")
    (folder / "sub").mkdir()
    trust(folder, home / ".ramet")
    async with serve(folder) as process:
        assert str(folder / "sub" / "a.sock") in process.line
        log = (await process.end(signal.SIGTERM))[1].splitlines()
    assert any(" DEBUG " in line for line in log)
    assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z]+ \w", line) for line in log)
    environment = {"RAMET_LISTEN": str(folder / "b.sock"), "RAMET_LOG_LEVEL": "error"}
    async with serve(folder, "--socket", str(folder / "c.sock"), **environment) as process:
        assert str(folder / "c.sock") in process.line
        assert (await process.end(signal.SIGTERM)) == (0, "")


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ("limits: {que: 3}", (), "ramet: limits.que: 'que' is not accepted; expected a key of limits: "),
        ("", ("--listen", "127.0.0.1:0"), "ramet: token: None is not accepted; expected env:NAME or file:/path"),
        ("", ("--backend", "sun"), "ramet: backend: 'sun' is not accepted; expected one of bwrap, local"),
        ("", ("--config", "no.yaml"), "ramet: config: 'no.yaml' is not accepted; expected a file of settings; "),
    ],
    ids=["key", "no token", "backend", "file"],
)
def test_what_is_wrong_is_one_line(
    folder: pathlib.Path, settings: str, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, as for any other bad input, and nothing is made in the folder."""
    file = written(folder, settings)

    assert (
        main(
            ["serve", "--dir", str(folder), *(options if "--config" in options else ("--config", str(file), *options))]
        )
        == 2
    )

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(said)
    assert err.count("\n") == 1
    assert not (folder / ".ramet").exists()


async def test_so_is_a_backend_that_is_none(folder: pathlib.Path) -> None:
    """Its entry point is named."""
    plugin(folder, "[ramet.backends]\nnothing = tests.support.waiting:eventually\n")
    file = written(folder, "backend: nothing")
    async with serve(folder, "--config", str(file)) as process:
        _, err = await process.process.communicate()
        assert (process.line, process.process.returncode) == ("", 2)
        assert err.decode().startswith("ramet: entry point 'nothing' in 'ramet.backends': ")
        assert err.count(b"\n") == 1
    assert not (folder / ".ramet").exists()


@pytest.mark.parametrize(
    ("token", "said"),
    [("env:NOT_THERE", "env:NOT_THERE: 'nothing' is not accepted; expected a secret"), ("env:SHORT", "token: ")],
    ids=["none", "weak"],
)
async def test_a_token_that_is_none_opens_nothing(folder: pathlib.Path, token: str, said: str) -> None:
    """It is refused by its name, and not shown; nobody listens then."""
    with pytest.raises(InvalidValue) as refused:
        async with configured(folder, f"listen: 127.0.0.1:0\ntoken: {token}\n", {"SHORT": "12345"}):
            pytest.fail("it listens")
    assert str(refused.value).startswith(said)
    assert "12345" not in str(refused.value)


async def test_an_address_is_opened_by_the_token_of_a_reference(folder: pathlib.Path) -> None:
    """Which is read where it lies; no key is made beside it."""
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "token").chmod(0o600)
    file = written(folder, "listen: 127.0.0.1:0\ntoken: file:token\n")
    async with serve(folder, "--config", str(file)) as process:
        url = next(word for word in process.line.split() if word.startswith("http://"))
        async with ramet.connect(url, TOKEN) as client:
            assert await client.list_teams() == []
        async with ramet.connect(url, "another-token-of-somebody") as client:
            with pytest.raises(NotYours):
                await client.create_team({"agents": 1})
        assert TOKEN not in process.line
        assert not (folder / ".ramet" / "operator-token").exists()


async def test_an_alias_has_its_key_and_nobody_is_shown_it(folder: pathlib.Path) -> None:
    """The provider is asked with the key of the reference, as it is now; no log, answer or record holds it."""
    settings = "log_level: debug\nmodels:\n  smart: {model: 'openai:gpt-5.4-mini', key: 'file:key'}\n"
    file = written(folder, settings)
    (folder / "key").write_text(KEY)
    (folder / "key").chmod(0o600)
    async with provider(["Hello.", "Hello again."]) as asked:
        async with (
            serve(
                folder, "--config", str(file), OPENAI_BASE_URL=f"{asked.url}/v1", OPENAI_API_KEY="another"
            ) as process,
            ramet.connect(folder / ".ramet" / "serve.sock") as client,
        ):
            team = await client.create_team({"agents": 3}, name="red")
            for number, key in enumerate((KEY, f"{KEY}-rotated")):
                (folder / "key").write_text(key)
                info = {"model": "smart"}
                spawned = await client.spawn_agent("red", f"bob{number}", "llm", spawn_info=info, key=team.key)
                answer = await client.say(spawned.agent.id, body("Hi."), key=spawned.nonce)
                assert b"Hello" in answer
                assert asked.requests[-1].headers["authorization"] == f"Bearer {key}"
            (folder / "key").unlink()
            with pytest.raises(RametError, match="file:"):
                await client.spawn_agent("red", "eve", "llm", spawn_info={"model": "smart"}, key=team.key)
            words = (await process.end(signal.SIGTERM))[1]
    assert "DEBUG" in words
    assert KEY not in words
    kept = [each for each in (folder / ".ramet").rglob("*") if each.is_file()]
    assert kept
    assert not any(KEY.encode() in each.read_bytes() for each in kept)


async def test_teams_are_there_from_the_start_and_once(folder: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the settings say later: one that is there is kept as it is, and the log says so."""
    caplog.set_level("INFO", "ramet.serve")
    async with configured(folder, "teams:\n  red: {agents: 2, usd: 1.5}\n", {}) as server:
        [first] = await server.spawner.list_teams(server.operator)
        assert (first.name, first.resources) == ("red", {"agents": 2, "usd": 1.5})
    assert f"team red: reserved as {first.id}: agents 2, usd 1.5" in caplog.messages

    settings = "teams:\n  red: {agents: 9}\n  blue: {agents: 1}\n"
    async with configured(folder, settings, {}) as server:
        teams = {each.name: each for each in await server.spawner.list_teams(server.operator)}
    assert set(teams) == {"red", "blue"}
    assert (teams["red"].id, teams["red"].resources) == (first.id, first.resources)
    assert "team red: not changed; it has agents 2, usd 1.5, but the settings have agents 9" in caplog.messages


async def test_limits_are_the_servers(folder: pathlib.Path) -> None:
    """Bytes of a message, turns that wait, agents of all teams together; what is over is refused by its name."""
    settings = "limits: {body_bytes: 1024, queue: 1, agents: 2}\nteams:\n  red: {agents: 5}\n  blue: {agents: 5}\n"
    types = {"echo": EchoType()}
    async with configured(folder, settings, {}, types=types) as server, ramet.connect(server.where) as client:
        agent, nonce = await an_agent(client, server.operator, "red")
        await an_agent(client, server.operator, "blue")
        with pytest.raises(SpawnRefused, match="which is its limit"):
            await client.spawn_agent("blue", "eve", "echo", key=server.operator)
        assert (await client.say(agent, b"x" * 1024, key=nonce)) == b"x" * 1024
        with pytest.raises(BodyTooLarge, match="1024"):
            await client.say(agent, b"x" * 1025, key=nonce)
        server.agents.turn(agent, nonce, b"wait")
        server.agents.turn(agent, nonce, b"next")
        with pytest.raises(BusyError):
            server.agents.turn(agent, nonce, b"one too many")


async def test_a_message_may_be_larger_than_usual_where_the_settings_say_so(folder: pathlib.Path) -> None:
    """The whole way from a client to the agent."""
    settings, types = "limits: {body_bytes: 9000000}\nteams:\n  red: {agents: 1}\n", {"echo": EchoType()}
    async with configured(folder, settings, {}, types=types) as server, ramet.connect(server.where) as client:
        agent, nonce = await an_agent(client, server.operator, "red")
        large = b" " * 8_999_990 + b"word"
        assert len(large) > TurnLimits().body_bytes
        assert (await client.say(agent, large, key=nonce)) == b"word"


async def an_agent(client: Client, key: str, team: str) -> tuple[str, str]:
    """Its id and nonce."""
    spawned = await client.spawn_agent(team, "bob", "echo", key=key)
    return spawned.agent.id, spawned.nonce


async def test_a_store_elsewhere_is_where_everything_is_on_record(folder: pathlib.Path) -> None:
    """In a file that is named, and none in the working directory; its agents are there again."""
    settings, types = "store: elsewhere/all.db\n", {"echo": EchoType()}
    (folder / "elsewhere").mkdir()
    async with configured(folder, settings, {}, types=types) as server, ramet.connect(server.where) as client:
        await client.create_team({"agents": 1}, name="red")
        agent, nonce = await an_agent(client, server.operator, "red")
    assert not (folder / ".ramet" / "journal.db").exists()
    with sqlite3.connect(folder / "elsewhere" / "all.db") as database:
        assert database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0
    database.close()
    async with configured(folder, settings, {}, types=types) as server, ramet.connect(server.where) as client:
        assert (await client.get_agent(agent, key=nonce)).path == "red/bob"


async def test_a_store_may_be_postgresql(folder: pathlib.Path, own_postgres: Postgres) -> None:
    """Named by a URL."""
    url = f"postgresql://ramet@/postgres?host={own_postgres.socket.parent}"
    for start in range(2):
        async with configured(folder, "", {"RAMET_STORE": url, "RAMET_TEAMS": "{red: {agents: 1}}"}) as server:
            assert [each.name for each in await server.spawner.list_teams(server.operator)] == ["red"], start
    assert not (folder / ".ramet" / "journal.db").exists()
    with psycopg.connect(own_postgres.dsn) as connection:
        assert connection.execute("SELECT to_regnamespace('ramet') IS NOT NULL").fetchone() == (True,)


async def test_agents_work_in_a_backend_of_another_package(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the settings name, and its entry point leads to."""
    monkeypatch.syspath_prepend(
        str(plugin(folder, "[ramet.backends]\nmoon = tests.support.moon_backend:MoonBackend\n"))
    )
    async with configured(folder, "backend: moon\n", {}) as server:
        assert (await server.runtime.sandboxes.backend()).name == "moon"
        handle = await server.runtime.spawn(abs, args=(-3,), policy=ramet.Policy())
        assert (await handle.result()).value == 3


def test_a_backend_that_is_none_names_its_entry_point(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is made of the settings."""
    monkeypatch.syspath_prepend(str(plugin(folder, "[ramet.backends]\nmoon = no_such_module:Moon\n")))
    with pytest.raises(InvalidValue, match="ModuleNotFoundError") as refused:
        configured(folder, "backend: moon\n", {})
    assert refused.value.field == "entry point 'moon' in 'ramet.backends'"
