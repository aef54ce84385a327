"""Settings of a server: known settings are accepted with their origin; others are refused with name and place."""

from __future__ import annotations

import pathlib
import string
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from ramet import Watch
from ramet.agent.files.safe_yaml import MAX_NODES
from ramet.core.errors import InvalidValue
from ramet.services.config.build import bundle_limits, installs_of, server_of
from ramet.services.config.load import MAX_FILE, SETTINGS, Config, examine, load, references
from ramet.services.config.settings import (
    MAX_SECRET,
    BundleSettings,
    InstallSettings,
    PostgresUrl,
    SecretReference,
    ServiceLimits,
    TcpAddress,
    UnixSocket,
)
from ramet.services.packaging.bundles.requirements import Installs
from ramet.services.packaging.contract import BundleLimits
from ramet.services.turns.queue import TurnLimits

EXAMPLE = pathlib.Path(__file__).parents[3] / "examples" / "ramet.yaml"
SECRET = "sk-ant-api03-abcdefghijklmnop"


@pytest.fixture
def file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The path of the settings file, in another folder than the working directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "there").mkdir()
    return tmp_path / "there" / "ramet.yaml"


def load_text(file: pathlib.Path, text: str, env: Mapping[str, str] | None = None, **flags: Any) -> Config:
    file.write_text(text)
    return load(file, env or {}, flags)


def refusals(file: pathlib.Path, text: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the refusal of each setting, by the setting's name."""
    file.write_text(text)
    examination = examine(file, env or {}, {})
    assert examination.config is None
    return {each.field: str(each) for each in examination.problems}


def test_without_settings_each_has_its_default(file: pathlib.Path) -> None:
    """No file and an empty file give the defaults, and each origin is "default"."""
    for config in (load(None, {}, {}), load_text(file, "# nothing yet\n"), load_text(file, "limits:\nstore:\n")):
        assert (config.backend, config.store, config.listen, config.working_dir) == (
            None,
            None,
            None,
            pathlib.Path.cwd(),
        )
        assert config.limits == ServiceLimits()
        assert set(config.origins.values()) == {"default"}
        assert set(config.origins) == {each.name for each in SETTINGS if not each.many}


def test_a_watch_is_configured_for_all_runs_of_a_server(file: pathlib.Path) -> None:
    """A file and the environment set its fields, and a wrong value is refused by its name."""
    config = load_text(file, "watch:\n  silent_s: 600\n  on_silent: end\n", {"RAMET_WATCH_SAME_CALL": "3"})
    server = server_of(config, {})
    assert server.runtime._trees._factory.watch == Watch(silent_s=600, on_silent="end", same_call=3)

    wrong = refusals(file, "watch: {silent_s: 0, same_call: 1, on_silent: stop, on_loop: stop, loud_s: 3}")
    assert set(wrong) == {"watch.silent_s", "watch.same_call", "watch.on_silent", "watch.on_loop", "watch.loud_s"}
    assert "report or notify_parent or pause or end" in wrong["watch.on_silent"]


def test_each_kind_of_value_is_accepted(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths begin at the file's folder or at the home folder."""
    monkeypatch.setenv("HOME", "/people/ada")

    config = load_text(
        file,
        """
backend: local
store: data/journal.db
listen: "[::1]:8470"
token: file:~/token
models:
  fast: anthropic:claude-haiku-5-5
  gpt-5.1: {model: gpt-5.1, key: env:OPENAI_API_KEY}
  demo: offline
limits: {body_bytes: 2048, queue: 0}
teams:
  research: {agents: 2, cpu: 1.5, pods: 3}
working_dir: work
log_level: debug
log_format: json
audit_file: logs/audit.jsonl
namespace: ramet-0
base_image: registry.example/ramet:latest
kubeconfig: ~/.kube/config
registry_url: registry.example
registry_username: ada
registry_password: env:REGISTRY_PASSWORD
""",
    )

    folder = file.parent
    assert (config.backend, config.store, config.working_dir) == ("local", folder / "data/journal.db", folder / "work")
    assert config.listen == TcpAddress("::1", 8470)
    assert str(config.listen) == "[::1]:8470"
    assert references(config) == {
        "token": SecretReference("file", "/people/ada/token"),
        "models.gpt-5.1.key": SecretReference("env", "OPENAI_API_KEY"),
        "registry_password": SecretReference("env", "REGISTRY_PASSWORD"),
    }
    assert config.registry_username == "ada"
    assert [str(each) for each in config.models.values()] == [
        "anthropic:claude-haiku-5-5",
        "gpt-5.1, key env:OPENAI_API_KEY",
        "offline",
    ]
    assert (config.limits.body_bytes, config.limits.queue, config.limits.agents) == (2048, 0, ServiceLimits().agents)
    assert config.teams == {"research": {"agents": 2, "cpu": 1.5, "pods": 3}}
    assert (config.log_format, config.audit_file) == ("json", folder / "logs/audit.jsonl")
    assert (config.log_level, config.kubeconfig) == ("DEBUG", pathlib.Path("/people/ada/.kube/config"))
    assert (config.namespace, config.base_image, config.registry_url) == (
        "ramet-0",
        "registry.example/ramet:latest",
        "registry.example",
    )


def test_the_command_line_overrides_the_environment_and_that_the_file(file: pathlib.Path) -> None:
    """Each value has its origin; a relative path begins where it was written."""
    config = load_text(
        file,
        "backend: bwrap\nlog_level: info\nstore: a.db\nlimits:\n  queue: 1\n  agents: 2\n",
        {"RAMET_LOG_LEVEL": "debug", "RAMET_LIMITS_QUEUE": "5", "RAMET_STORE": "b.db", "RAMET_LISTEN": " "},
        log_level="error",
        **{"limits.agents": "7", "backend": None},
    )

    assert (config.backend, config.log_level, config.store) == ("bwrap", "ERROR", pathlib.Path.cwd() / "b.db")
    assert (config.limits.queue, config.limits.agents) == (5, 7)
    assert {name: at for name, at in config.origins.items() if at != "default"} == {
        "backend": f"{file}:1",
        "log_level": "the command line",
        "store": "RAMET_STORE",
        "limits.queue": "RAMET_LIMITS_QUEUE",
        "limits.agents": "the command line",
    }


def test_each_named_model_and_team_is_a_setting_of_its_own(file: pathlib.Path) -> None:
    """A model or team of the environment is added to the file's, and replaces the one of its name."""
    config = load_text(
        file,
        "models:\n  fast: openai:gpt-5\n  smart: openai:gpt-5.1\nteams:\n  a: {agents: 1}\n",
        {"RAMET_MODELS": '{"fast": "offline", "big": "openai:gpt-6"}', "RAMET_TEAMS": "b: {agents: 2}"},
    )

    assert {name: each.model for name, each in config.models.items()} == {
        "fast": "offline",
        "smart": "openai:gpt-5.1",
        "big": "openai:gpt-6",
    }
    assert (config.origins["models.fast"], config.origins["models.smart"]) == ("RAMET_MODELS", f"{file}:3")
    assert (list(config.teams), config.origins["teams.b"]) == (["a", "b"], "RAMET_TEAMS")


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("bakend: x", "bakend", "'bakend' is not accepted; expected a key: backend, store, listen, token"),
        ("backend: docker", "backend", "'docker' is not accepted; expected one of bwrap, local, kubernetes"),
        ("backend: [local]", "backend", "'a list' is not accepted"),
        ("store: 7", "store", "7 is not accepted; expected the path of a SQLite file, or postgresql://"),
        ("store: mysql://h/d", "store", "the path of a SQLite file, or postgresql://"),
        ("store: host=h dbname=d", "store", "the path of a SQLite file, or postgresql://"),
        ("store: .", "store", "this is a folder"),
        ("store: ~nobody-of-this-name/x", "store", "there is no such home folder"),
        ("listen: 8080", "listen", "8080 is not accepted; expected the path of a Unix socket"),
        ("listen: ':8080'", "listen", "host:port"),
        ("listen: localhost:65536", "listen", "a port from 0 to 65535"),
        ("listen: '::1:80'", "listen", "an IPv6 address is in brackets"),
        ("listen: '[::g]:80'", "listen", "an IPv6 address is in brackets"),
        ("listen: a b:80", "listen", "host:port"),
        (f"listen: /{'x' * 100}", "listen", "at most 100 bytes"),
        ("token: env:a-b", "token", "env:NAME or file:/path"),
        ("token: 'file: '", "token", "env:NAME or file:/path"),
        ("listen: localhost:80", "token", "others can reach localhost:80"),
        ("models: [a]", "models", "a mapping"),
        ("models:\n  inherit: offline", "models.inherit", "this one has its own meaning"),
        ("models:\n  a b: offline", "models.a b", "letters, digits"),
        ("models:\n  on: offline", "models key", "True is not accepted; expected text; YAML reads on, off"),
        ("models:\n  a: nobody:x", "models.a", "'nobody:x' is not accepted; expected provider:model"),
        ("models:\n  a: inherit", "models.a", "provider:model"),
        ("models:\n  a:", "models.a", "None is not accepted; expected provider:model"),
        ("models:\n  a: {key: env:K}", "models.a.model", "provider:model"),
        ("models:\n  a: {model: offline, kee: env:K}", "models.a.kee", "a key of models.a: model, key"),
        ("limits:\n  que: 1", "limits.que", "a key of limits: body_bytes, queue"),
        ("limits: 5", "limits", "5 is not accepted; expected a mapping"),
        ("limits:\n  queue: -1", "limits.queue", "-1 is not accepted; expected a whole number from 0 to 10000"),
        ("limits:\n  queue: true", "limits.queue", "True is not accepted"),
        ("limits:\n  queue: '1'", "limits.queue", "'1' is not accepted"),
        ("limits:\n  agents: 1.5", "limits.agents", "1.5 is not accepted"),
        ("teams:\n  a: {cpu: 1}", "teams.a", "agents among them"),
        ("teams:\n  a: {agents: 0}", "teams.a.agents", "0 is not accepted; expected a whole number from 1"),
        ("teams:\n  a: {agents: 1.5}", "teams.a.agents", "1.5 is not accepted; expected a whole number"),
        ("teams:\n  a: {agents: 1, 2: 1}", "teams.a key", "2 is not accepted; expected text"),
        ("teams:\n  a: {agents: 1, usd: .nan}", "teams.a.usd", "a number from 0 to 2^53"),
        ("teams:\n  a: {agents: 1, cpu: -1}", "teams.a.cpu", "-1 is not accepted"),
        ("teams:\n  a: {agents: 1, 'c p': 1}", "teams.a", "letters, digits"),
        ("teams:\n  a: 4", "teams.a", "amounts by the names of resources"),
        ("teams:\n  a/b: {agents: 1}", "teams.a/b", "letters, digits"),
        ("working_dir: ramet.yaml", "working_dir", "a folder, not a file"),
        ("log_level: loud", "log_level", "'loud' is not accepted; expected CRITICAL, "),
        ("log_format: xml", "log_format", "'xml' is not accepted; expected text or json"),
        ("namespace: ''", "namespace", "1 to 63 lowercase letters"),
        ("namespace: My_Agents", "namespace", "1 to 63 lowercase letters"),
        ("token: [1]", "token", "'***' is not accepted"),
        ("kubeconfig: 2026-01-01", "kubeconfig", "'a date' is not accepted"),
        (f"? {hex(10**4999)}\n: 1", "config key", "is not accepted; expected text"),
        (f"limits:\n  queue: {hex(10**4999)}", "limits.queue", "a value of type int"),
    ],
)
def test_an_invalid_setting_is_refused_by_name_and_place(
    file: pathlib.Path, text: str, field: str, message: str
) -> None:
    """One sentence gives the dotted name, the value, the accepted values, the file and the line."""
    messages = refusals(file, text)

    assert list(messages) == [field]
    assert message in messages[field]
    line = None if field == "config key" else 1 + text.count("\n") if field != "models key" else 1
    assert messages[field].endswith(f"({file})" if line is None else f"({file}:{line})")


def test_every_problem_is_reported_with_its_source(file: pathlib.Path) -> None:
    """An error in a file counts even if a later source has a good value. `load` raises the first problem."""
    env = {"RAMET_BACKEND": "local", "RAMET_LIMITS_QUEUE": "many", "RAMET_TEAMS": "[1", "RAMET_MODELS": "7"}

    messages = refusals(file, "backend: docker\nteams:\n  a: {agents: x}\n  b: {agents: -1}\n", env)

    assert [message.rpartition("(")[2] for message in messages.values()] == [
        f"{file}:1)",
        f"{file}:3)",
        f"{file}:4)",
        "RAMET_MODELS)",
        "RAMET_LIMITS_QUEUE)",
        "RAMET_TEAMS)",
    ]
    with pytest.raises(InvalidValue, match="'docker'"):
        load(file, env, {})
    with pytest.raises(InvalidValue, match=r"nothing.at.all.*the command line"):
        load(None, {}, {"nothing.at.all": 1})


@pytest.mark.parametrize(
    "text",
    [
        f"models:\n  a: {SECRET}",
        f"models:\n  a: openai:{SECRET}",
        f"models:\n  a: {{model: openai:gpt-5, key: {SECRET}}}",
        f"models:\n  a: {{model: openai:gpt-5, key: 'env:{SECRET}'}}",
        "models:\n  a: {model: openai:gpt-5, key: env:AKIAABCDEFGHIJKLMNOP}",
        f"models:\n  a: {{model: openai:gpt-5, api_key: {SECRET}}}",
        f"models:\n  a: {{model: {{x: {SECRET}}}}}",
        f"token: {SECRET}",
        "token: hunter2",
        f"token: [{SECRET}]",
        f"backend: {SECRET}",
        f"listen: {SECRET}",
        f"registry_url: https://me:{SECRET}@registry.example",
        f"{SECRET}: 1",
        f"teams:\n  {SECRET}: 1",
        f"teams:\n  a: {{{SECRET}: x}}",
        f"working_dir: ~{SECRET}/x",
        "store: postgresql://me:hunter2@h:port/d",
        "store: postgresql://me:hun/ter2@h/d",
        "store: postgresql://me:hun?ter2@h/d",
        "store: postgresql://me:123/abcdefgh@h/d",
        "store: postgresql://me:hun#ter2@h/d",
        "store: postgresql://me:hun[ter2@h/d",
        "store: password=hunter2 host=h",
        "store: mysql://me:hunter2@h/d",
        'store: "postgresql://me:hunter2@h/d\\t\\x01"',
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(file: pathlib.Path, text: str) -> None:
    """A file may only name the place of a secret; no message contains a secret that was written into the file."""
    for message in refusals(file, text).values():
        assert not any(part in message for part in ("abcdefgh", "ABCDEFGH", "hunter2", "ter2"))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:hunter2@h/d", "postgresql://me:***@h/d"),
        ("postgres://h:5432,[::1]:5433/d?password=hunter2", "postgres://h:5432,[::1]:5433/d?***"),
        ("postgresql://me:hunter2@hunter2@h/d", "postgresql://me:***@h/d"),
        ("postgresql://me@/d?host=/run", "postgresql://me@/d?***"),
        ("postgresql://", "postgresql://"),
    ],
)
def test_the_password_of_a_store_is_never_shown(file: pathlib.Path, url: str, expected: str) -> None:
    """Parameters of the URL are hidden too, since one may be the password; the store gets the whole URL."""
    config = load(None, {"RAMET_STORE": url}, {})

    assert isinstance(config.store, PostgresUrl)
    assert config.store.url == url
    assert str(config.store) == expected
    assert "hunter2" not in repr(config)


def test_the_default_limits_are_those_of_a_conversation() -> None:
    """The documented defaults hold without any configuration."""
    assert (ServiceLimits().body_bytes, ServiceLimits().queue) == (TurnLimits().body_bytes, TurnLimits().waiting)


def test_a_reference_leads_to_the_secret(tmp_path: pathlib.Path) -> None:
    """The secret is read when it is needed, without its line end; an invalid secret is refused without being shown."""
    secret = tmp_path / "token"
    secret.write_text("hunter2\n")
    secret.chmod(0o600)

    assert (
        SecretReference("file", str(secret)).read({}) == SecretReference("env", "T").read({"T": "hunter2"}) == "hunter2"
    )
    for reference, environ in (
        (SecretReference("env", "T"), {}),
        (SecretReference("env", "T"), {"T": " "}),
        (SecretReference("env", "T"), {"T": "hunter2\nhunter2"}),
        (SecretReference("env", "T"), {"T": "hunter2" * MAX_SECRET}),
        (SecretReference("file", str(tmp_path)), {}),
        (SecretReference("file", str(tmp_path / "none")), {}),
    ):
        with pytest.raises(InvalidValue) as refusal:
            reference.read(environ)
        assert refusal.value.field == str(reference)
        assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "a mapping"),
        ("backend: local\nbackend: bwrap", "line 2: a key occurs twice"),
        ("a: &a 1\nb: *a", "line 1: anchors"),
        ("backend: !!python/name:os.system", "line 1: tags"),
        ("backend: [", "line 1: "),
        ("a: [" + "1," * MAX_NODES + "]", f"more than {MAX_NODES} values"),
        ("a: " + "[" * 20_000, "nested deeper"),
        ("a: " + "x" * MAX_FILE, f"larger than {MAX_FILE} bytes"),
        ("backend: local\n---\nbackend: local", "line 2: "),
    ],
)
def test_a_file_that_is_not_plain_data_is_refused(file: pathlib.Path, text: str, message: str) -> None:
    """The whole file is refused, with its name and the line."""
    messages = refusals(file, text)

    assert list(messages) == ["config"]
    assert str(file) in messages["config"]
    assert message in messages["config"]


def test_a_file_that_cannot_be_read_is_refused(file: pathlib.Path) -> None:
    """A missing file, a folder and a file that is not text are refused."""
    file.write_bytes(b"\xff")
    for path in (file, file.parent, file.parent / "none.yaml"):
        with pytest.raises(InvalidValue, match="a file of settings"):
            load(path, {}, {})


def test_a_unix_socket_needs_no_token(file: pathlib.Path) -> None:
    """The file's permissions protect the socket; a wrong token is one problem, not two."""
    assert load_text(file, "listen: run/it.sock").listen == UnixSocket(file.parent / "run" / "it.sock")
    assert list(refusals(file, "listen: localhost:80\ntoken: x")) == ["token"]


def test_the_operators_token_may_be_in_the_environment_itself(file: pathlib.Path) -> None:
    """The variable overrides a token of the file; a variable that names a place overrides both."""
    environ = {"RAMET_OPERATOR_TOKEN": "a-token-of-my-own-choice"}
    config = load_text(file, "listen: localhost:80\ntoken: env:MINE", environ)
    assert config.token == SecretReference("env", "RAMET_OPERATOR_TOKEN")
    assert config.origins["token"] == "RAMET_OPERATOR_TOKEN"
    assert load_text(file, "", {**environ, "RAMET_TOKEN": "env:OTHER"}).token == SecretReference("env", "OTHER")
    assert load_text(file, "", {"RAMET_OPERATOR_TOKEN": " "}).token is None


def test_a_backend_of_another_package_can_be_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any backend that is installed under the entry point group of backends is accepted."""
    info = tmp_path / "moon-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moon\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[ramet.backends]\nmoon = moon:Backend\n")
    with pytest.raises(InvalidValue, match="bwrap, local, kubernetes "):
        load(None, {"RAMET_BACKEND": "moon"}, {})

    monkeypatch.syspath_prepend(str(tmp_path))

    assert load(None, {"RAMET_BACKEND": "moon"}, {}).backend == "moon"


def test_bundles_and_installs_are_taken_from_a_file_and_the_environment(file: pathlib.Path) -> None:
    """Arguments of pip may be a list, or a text that is split as a shell does."""
    config = load_text(
        file, "bundles: {kept_bytes: 5000}\ninstalls:\n  allowed: true\n  pip_args: [--no-index, -f, a b]\n"
    )
    assert bundle_limits(config.bundles).quota == 5000
    assert bundle_limits(BundleSettings()) == BundleLimits()
    assert installs_of(config.installs) == Installs(pip_args=("--no-index", "-f", "a b"))
    assert installs_of(InstallSettings()) is None
    environ = {
        "RAMET_INSTALLS_ALLOWED": "True",
        "RAMET_INSTALLS_PIP_ARGS": "-f 'a b'",
        "RAMET_BUNDLES_UPLOAD_BYTES": "2048",
    }
    config = load(None, environ, {})
    assert (config.installs.allowed, config.installs.pip_args, config.bundles.upload_bytes) == (
        True,
        ("-f", "a b"),
        2048,
    )
    for text, field in (
        ("installs: {allowed: 1}", "installs.allowed"),
        ("installs: {allowed: perhaps}", "installs.allowed"),
        ("installs: {pip_args: 5}", "installs.pip_args"),
        ("installs: {pip_args: [5]}", "installs.pip_args"),
        ('installs: {pip_args: "\'"}', "installs.pip_args"),
        ("installs: {allow: true}", "installs.allow"),
        ("bundles: {kept_bytes: -1}", "bundles.kept_bytes"),
        ("bundles: 5", "bundles"),
    ):
        with pytest.raises(InvalidValue) as refusal:
            load_text(file, text)
        assert refusal.value.field == field


def test_the_example_settings_are_accepted() -> None:
    """The suggestions in its comments are accepted too."""
    assert set(load(EXAMPLE, {}, {}).models) == {"fast", "smart"}
    suggested = [line.removeprefix("# ") for line in EXAMPLE.read_text().splitlines() if line.startswith("# ")]
    settings = "\n".join(line for line in suggested if line.partition(":")[0] in Config.__struct_fields__)
    settings_given = yaml.safe_load(settings)
    of_pods = {"namespace", "base_image", "registry_url", "kubeconfig", "pods"}
    assert set(settings_given) == {"working_dir", "store", "listen", "token", "notify"} | of_pods
    settings_given |= {f"pods.{name}": value for name, value in settings_given.pop("pods").items()}
    config = load(EXAMPLE, {}, settings_given)
    assert (config.token, config.pods.dial) == (SecretReference("env", "MY_TOKEN"), TcpAddress("10.0.0.7", 8471))


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.dates()
    | st.text(max_size=12)
    | st.sampled_from(["local", "kubernetes", "a.db", "postgresql://u:p@h/d", "h:80", "/s", "env:T", "offline", SECRET])
)
names = st.sampled_from([*Config.__struct_fields__, *ServiceLimits.__struct_fields__, "model", "key", "cpu", "a"])
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | scalars, inner, max_size=5),
    max_leaves=20,
)
documents = st.dictionaries(names, anything, max_size=8).map(
    lambda data: yaml.dump(data, allow_unicode=True, sort_keys=False)
)
scribbles = st.text(alphabet=string.ascii_letters + "0123456789:-[]{}&*!|>\"'#,? \n\t%@`<~._")


@given(text=documents | scribbles)
@example(text="a: !!bool foo")
@example(text="a: " + hex(10**4999))
@example(text="? [1]\n: 2")
@example(text="\ud800")
def test_any_text_is_a_configuration_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """No other error escapes, from a file or from the environment, and no message is too long to read."""
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text, errors="surrogatepass")
    env = {each.variable: text for each in SETTINGS}
    for path, environ in ((file, {}), (None, env)):
        examination = examine(path, environ, {})
        assert (examination.config is None) == bool(examination.problems)
        assert all(type(each) is InvalidValue and len(str(each)) < 2_000 for each in examination.problems)
        assert "abcdefgh" not in repr(examination.problems)
