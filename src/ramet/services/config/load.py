"""Loading the configuration of a server: a file, the environment, and the command line. Later sources take precedence.

Unknown keys, values of a wrong type and duplicate keys are refused, each by its dotted name and with the place where it
was written. Values that a later source overrides are checked, too.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from ramet.agent.files import safe_yaml
from ramet.agent.files.bounded_read import Unreadable, read_text
from ramet.agent.files.trust import SERVER_SETTINGS
from ramet.core.errors import InvalidValue
from ramet.core.ids import checked_name
from ramet.core.liveness.watch_settings import ACTIONS, MAX_SAME_CALL
from ramet.services.config import validators
from ramet.services.config.external_programs import ExternalSettings, external_of
from ramet.services.config.mcp_servers import SETTING as MCP_SERVERS
from ramet.services.config.mcp_servers import McpServerSettings, mcp_server_of
from ramet.services.config.notification_targets import NotifySettings, notify_of
from ramet.services.config.settings import (
    TOKEN_VARIABLE,
    BundleSettings,
    InstallSettings,
    ModelAlias,
    PodSettings,
    PostgresUrl,
    RetentionSettings,
    RuleSettings,
    SecretReference,
    ServiceLimits,
    StoreAdapter,
    TcpAddress,
    UnixSocket,
    WatchSettings,
)

DEFAULT_FILE: Final = SERVER_SETTINGS
MAX_FILE: Final = 64 * 1024
DEFAULT: Final = "default"
COMMAND_LINE: Final = "the command line"

_CAPITAL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")

Check = Callable[[str, Any, pathlib.Path], Any]  #: called with name, value, and the base folder of relative paths


class Config(Struct, frozen=True, kw_only=True):
    """The settings of a server, and the origin of each.

    An origin is "default", "ramet.yaml:3", "RAMET_LISTEN" or "the command line".
    """

    working_dir: pathlib.Path
    backend: str | None = None  #: None: bwrap, where it works
    store: pathlib.Path | PostgresUrl | StoreAdapter | None = None  #: None: SQLite in the working directory
    policy_adapter: str | None = None  #: None: no policy adapter is asked about new runs
    policy_timeout_s: int = 10  #: the time in which the policy adapter must answer
    listen: UnixSocket | TcpAddress | None = None  #: None: a Unix socket in the working directory
    token: SecretReference | None = None
    kernel: str | None = None  #: None: derived from the listening address
    address: str | None = None  #: None: the listening address
    models: Mapping[str, ModelAlias] = {}
    external: Mapping[str, ExternalSettings] = {}  #: programs of other makers, by name
    mcp_servers: Mapping[str, McpServerSettings] = {}  #: MCP servers that agents name, by name
    limits: ServiceLimits = ServiceLimits()
    retention: RetentionSettings = RetentionSettings()
    bundles: BundleSettings = BundleSettings()
    installs: InstallSettings = InstallSettings()
    teams: Mapping[str, Mapping[str, float]] = {}  #: the resources that each team reserves at the start, by team name
    watch: WatchSettings = WatchSettings()
    notify: Mapping[str, NotifySettings] = {}  #: the targets of notifications, by name
    log_level: str | None = None
    log_format: str = "text"  #: text | json
    audit_file: pathlib.Path | None = None  #: None: no audit log
    metrics: str = "operator"  #: who may see them: operator | public
    page_hosts: tuple[str, ...] = ()  #: further hosts by which browsers reach the page
    stall_s: int = 5  #: seconds of a stalled event loop before it is reported; 0: not watched
    namespace: str | None = None
    base_image: str | None = None
    kubeconfig: pathlib.Path | None = None
    registry_url: str | None = None
    registry_username: str | None = None  #: None: the user of Docker's configuration
    registry_password: SecretReference | None = None
    pods: PodSettings = PodSettings()
    rules: RuleSettings = RuleSettings()
    origins: Mapping[str, str] = {}  #: by dotted name: `limits.queue`, `models.fast`


class Setting(NamedTuple):
    """A setting, by its dotted name."""

    name: str
    check: Check
    many: bool = False  #: whether it is a mapping of names to values, each a setting of its own
    number: bool = False

    @property
    def variable(self) -> str:
        return "RAMET_" + _CAPITAL.sub("_", self.name).upper().replace(".", "_")

    @property
    def attribute(self) -> str:
        """The dotted name of its attribute of a configuration."""
        return _CAPITAL.sub("_", self.name).lower()


def _plain_check(check: Callable[[str, Any], Any]) -> Check:
    return lambda name, value, base: check(name, value)


SETTINGS: Final = (
    Setting("backend", _plain_check(validators.backend_of)),
    Setting("store", validators.store_of),
    Setting("listen", validators.address_of),
    Setting("token", validators.reference_of),
    Setting("kernel", _plain_check(checked_name)),
    Setting("address", _plain_check(validators.reachable_of)),
    Setting("policy_adapter", _plain_check(validators.policy_adapter_of)),
    Setting("policy_timeout_s", _plain_check(validators.parse_int(1, 3_600)), number=True),
    Setting("models", validators.model_of, many=True),
    Setting("external", external_of, many=True),
    Setting(MCP_SERVERS, mcp_server_of, many=True),
    Setting("limits.body_bytes", _plain_check(validators.parse_int(1_024, 2**31)), number=True),
    Setting("limits.queue", _plain_check(validators.parse_int(0, 10_000)), number=True),
    Setting("limits.agents", _plain_check(validators.parse_int(1, 1_000_000)), number=True),
    Setting("limits.keep_failed_s", _plain_check(validators.parse_int(0, 366 * 86_400)), number=True),
    Setting("retention.results_s", _plain_check(validators.parse_int(0, 100 * 366 * 86_400)), number=True),
    Setting("retention.folder_days", _plain_check(validators.parse_int(0, 36_600)), number=True),
    Setting("retention.folder_count", _plain_check(validators.parse_int(0, 10_000_000)), number=True),
    Setting("retention.folder_bytes", _plain_check(validators.parse_int(0, 2**50)), number=True),
    Setting("retention.memory_trees", _plain_check(validators.parse_int(0, 100_000)), number=True),
    Setting("bundles.upload_bytes", _plain_check(validators.parse_int(1_024, 2**40)), number=True),
    Setting("bundles.total_bytes", _plain_check(validators.parse_int(1_024, 2**40)), number=True),
    Setting("bundles.kept_bytes", _plain_check(validators.parse_int(0, 2**50)), number=True),
    Setting("installs.allowed", _plain_check(validators.parse_bool)),
    Setting("installs.pip_args", _plain_check(validators.list_of(validators.plain_text, "arguments"))),
    Setting("installs.timeout_s", _plain_check(validators.parse_int(1, 86_400)), number=True),
    Setting("teams", validators.team_of, many=True),
    Setting("notify", notify_of, many=True),
    Setting("watch.silent_s", _plain_check(validators.parse_int(1, 366 * 86_400)), number=True),
    Setting("watch.same_call", _plain_check(validators.parse_int(2, MAX_SAME_CALL)), number=True),
    Setting("watch.on_silent", _plain_check(validators.choice_of(*ACTIONS))),
    Setting("watch.on_loop", _plain_check(validators.choice_of(*ACTIONS))),
    Setting("working_dir", validators.folder_of),
    Setting("log_level", _plain_check(validators.level_of)),
    Setting("log_format", _plain_check(validators.choice_of("text", "json"))),
    Setting("audit_file", validators.path_of),
    Setting("metrics", _plain_check(validators.choice_of("operator", "public"))),
    Setting("page_hosts", _plain_check(validators.list_of(validators.page_host_of, "hosts"))),
    Setting("stall_s", _plain_check(validators.parse_int(0, 86_400)), number=True),
    Setting("namespace", _plain_check(validators.namespace_of)),
    Setting("base_image", _plain_check(validators.plain_text)),
    Setting("kubeconfig", validators.path_of),
    Setting("registry_url", _plain_check(validators.plain_text)),
    Setting("registry_username", _plain_check(validators.plain_text)),
    Setting("registry_password", validators.reference_of),
    Setting("pods.per", _plain_check(validators.choice_of("run", "team"))),
    Setting("pods.warm", _plain_check(validators.parse_int(0, 100)), number=True),
    Setting("pods.dial", _plain_check(validators.parse_dial_address)),
    Setting("pods.listen", _plain_check(validators.tcp_of)),
    Setting("pods.certificate", validators.path_of),
    Setting("pods.key", validators.path_of),
    Setting("pods.ca", validators.path_of),
    Setting("pods.pull_secret", _plain_check(validators.plain_text)),
    Setting("rules.sandboxed", _plain_check(validators.parse_bool)),
    Setting("rules.mounts", validators.mounts_of),
    Setting("rules.writable_mounts", validators.mounts_of),
    Setting("rules.variables", _plain_check(validators.list_of(validators.variable_of))),
    Setting("rules.endpoints", _plain_check(validators.list_of(validators.endpoint_of, "endpoints"))),
    Setting("rules.backends", _plain_check(validators.list_of(validators.backend_of))),
    Setting("rules.models", _plain_check(validators.list_of(validators.plain_text))),
    Setting("rules.tools", _plain_check(validators.list_of(validators.tool_of))),
    Setting("rules.bundles", _plain_check(validators.choice_of("operator", "teams"))),
)
_BY_NAME: Final = {each.name: each for each in SETTINGS}
_DIGITS: Final = re.compile(r"\s*[0-9]{1,18}\s*\Z", re.ASCII)
#: The groups of settings, each with the structure that holds them.
_GROUPS: Final[Mapping[str, type[Struct]]] = {
    "limits": ServiceLimits,
    "retention": RetentionSettings,
    "bundles": BundleSettings,
    "installs": InstallSettings,
    "watch": WatchSettings,
    "pods": PodSettings,
    "rules": RuleSettings,
}
_TOP: Final = tuple(dict.fromkeys(name.partition(".")[0] for name in _BY_NAME))


class ConfigReport(NamedTuple):
    """A configuration, or all problems of its sources."""

    config: Config | None
    problems: tuple[InvalidValue, ...]


def references(config: Config) -> Mapping[str, SecretReference]:
    """Return the references to secrets in a configuration, by dotted name."""
    keys = {f"models.{name}.key": each.key for name, each in config.models.items() if each.key is not None}
    if config.registry_password is not None:
        keys["registry_password"] = config.registry_password
    for name, target in config.notify.items():
        keys |= {f"notify.{name}.{setting}": reference for setting, reference in target.references()}
    return keys if config.token is None else {"token": config.token, **keys}


def load(path: pathlib.Path | None, env: Mapping[str, str], flags: Mapping[str, Any]) -> Config:
    """Return the configuration. `flags` are by dotted names, None for absent ones.

    Raises InvalidValue for the first problem.
    """
    report = examine(path, env, flags)
    if report.config is None:
        raise report.problems[0]
    return report.config


def examine(path: pathlib.Path | None, env: Mapping[str, str], flags: Mapping[str, Any]) -> ConfigReport:
    """Return the configuration like `load`, or every problem of its sources."""
    sources = _Sources()
    if path is not None:
        sources.take_file(path)
    sources.take_environment(env)
    sources.take_flags(flags)
    return sources.build_report()


class _Place(NamedTuple):
    """The place where values were written, and the folder that relative paths begin at."""

    location: str
    base: pathlib.Path
    lines: Mapping[str, int] = {}  #: the line numbers in a file, by dotted name
    texts: bool = True  #: whether numbers are texts there

    def origin(self, name: str) -> str:
        """Return the place of a setting, or of its nearest parent that has a line."""
        while name and name not in self.lines:
            name = name.rpartition(".")[0]
        return f"{self.location}:{self.lines[name]}" if name else self.location


class _Sources:
    """The values of the sources so far, by dotted name, and the refused ones."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._origins: dict[str, str] = {}
        self._problems: list[InvalidValue] = []

    def take_file(self, path: pathlib.Path) -> None:
        try:
            data, lines = safe_yaml.read(read_text(path, limit=MAX_FILE).text, lines=True)
        except Unreadable as error:
            self._problems.append(InvalidValue("config", str(path), f"a file of settings; {error.reason}"))
            return
        except safe_yaml.NotPlain as error:
            line = "" if error.line is None else f"line {error.line}: "
            self._problems.append(InvalidValue("config", str(path), f"YAML as plain data; {line}{error.reason}"))
            return

        source = _Place(str(path), path.absolute().parent, lines, texts=False)
        for key, value in self._mapping("", {} if data is None else data, source):
            if key in _GROUPS:
                for name, amount in self._mapping(key, {} if value is None else value, source):
                    self._take_if_known(f"{key}.{name}", amount, source, key, name, _GROUPS[key].__struct_fields__)
            else:
                self._take_if_known(key, value, source, "", key, _TOP)

    def take_environment(self, env: Mapping[str, str]) -> None:
        if env.get(TOKEN_VARIABLE, "").strip():
            self._take(_BY_NAME["token"], f"env:{TOKEN_VARIABLE}", _Place(TOKEN_VARIABLE, pathlib.Path.cwd()))
        for setting in SETTINGS:
            text = env.get(setting.variable, "")
            if not text.strip():
                continue
            source = _Place(setting.variable, pathlib.Path.cwd())
            value: Any = text
            if setting.many:
                try:
                    value = safe_yaml.read(text).data if len(text) <= MAX_FILE else None
                except safe_yaml.NotPlain:
                    value = None
                if not isinstance(value, dict):
                    accepted = "a mapping, as YAML or JSON: {name: value}"
                    self._refuse(InvalidValue(setting.name, "another text", accepted), source)
                    continue
            self._take(setting, value, source)

    def take_flags(self, flags: Mapping[str, Any]) -> None:
        source = _Place(COMMAND_LINE, pathlib.Path.cwd())
        for name, value in flags.items():
            if value is not None:
                self._take_if_known(name, value, source, "", name, tuple(_BY_NAME))

    def build_report(self) -> ConfigReport:
        values = {name: value for name, value in self._values.items() if "." not in name}
        groups: dict[str, Any] = {name: kind(**self._group_values(name)) for name, kind in _GROUPS.items()}
        listen = values.get("listen")
        was_token_given = "token" in values or any(each.field == "token" for each in self._problems)
        if isinstance(listen, TcpAddress) and not was_token_given:
            accepted = f"env:NAME or file:/path; others can reach {listen} ({self._origins['listen']})"
            self._problems.append(InvalidValue("token", None, accepted))
        rules, backend = groups["rules"], values.get("backend") or "bwrap"
        if rules.backends is not None and backend not in rules.backends:
            accepted = f"a backend of rules.backends: {', '.join(rules.backends)} ({self._origins['rules.backends']})"
            self._problems.append(InvalidValue("backend", backend, accepted))
        if self._problems:
            return ConfigReport(None, tuple(self._problems))
        values.setdefault("working_dir", pathlib.Path.cwd())
        origins = {each.name: DEFAULT for each in SETTINGS if not each.many} | self._origins
        values["mcp_servers"] = values.pop(MCP_SERVERS, {})
        return ConfigReport(Config(**values, **groups, origins=origins), ())

    def _group_values(self, group: str) -> dict[str, Any]:
        return {
            name.partition(".")[2]: value for name, value in self._values.items() if name.partition(".")[0] == group
        }

    def _take_if_known(
        self, name: str, value: Any, place: _Place, parent: str, key: str, known_names: tuple[str, ...]
    ) -> None:
        if name not in _BY_NAME:
            self._refuse(validators.unknown_key(parent, key, known_names), place)
        elif value is not None:
            self._take(_BY_NAME[name], value, place)

    def _take(self, setting: Setting, value: Any, place: _Place) -> None:
        if not setting.many:
            if setting.number and place.texts and isinstance(value, str) and _DIGITS.match(value):
                value = int(value)
            self._check_value(setting, setting.name, value, place)
            return
        for name, each in self._mapping(setting.name, value, place):
            result = self._check_value(setting, f"{setting.name}.{name}", each, place)
            if result is not None:
                self._values.setdefault(setting.name, {})[name] = result

    def _check_value(self, setting: Setting, name: str, value: Any, place: _Place) -> Any:
        try:
            checked_value = setting.check(name, value, place.base)
        except InvalidValue as problem:
            self._refuse(problem, place)
            return None
        self._origins[name] = place.origin(name)
        if not setting.many:
            self._values[name] = checked_value
        return checked_value

    def _mapping(self, name: str, value: Any, place: _Place) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            accepted = "a mapping, as lines of `name: value`"
            self._refuse(InvalidValue(name or "config", value, accepted), place)
            return []
        for key in value:
            if not isinstance(key, str):
                self._refuse(validators.no_name(name or "config", key), place)
        return [(key, each) for key, each in value.items() if isinstance(key, str)]

    def _refuse(self, problem: InvalidValue, place: _Place) -> None:
        accepted = f"{problem.accepted} ({place.origin(problem.field.removesuffix(' key'))})"
        self._problems.append(
            InvalidValue(validators.redact(problem.field), validators.redact(problem.value), accepted)
        )
