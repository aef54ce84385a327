"""Tests of `core/policy/rights.py`: one spelling for each right, and no ambiguous one."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.core.policy import rights


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("api.example.org:443", "api.example.org:443"),
        ("API.Example.ORG:443", "api.example.org:443"),
        ("api.example.org.:443", "api.example.org:443"),
        ("*.Example.org.:443", "*.example.org:443"),
        ("localhost:1", "localhost:1"),
        ("my_db:65535", "my_db:65535"),
        ("bücher.example:443", "xn--bcher-kva.example:443"),
        ("*.bücher.example:443", "*.xn--bcher-kva.example:443"),
        ("XN--BCHER-KVA.example:443", "xn--bcher-kva.example:443"),
        ("192.0.2.1:80", "192.0.2.1:80"),
        ("192.0.2.1.:80", "192.0.2.1:80"),
        ("[2001:DB8:0:0::1]:443", "[2001:db8::1]:443"),
        ("[::]:1", "[::]:1"),
        ("1.example:1", "1.example:1"),
        ("*", "*"),
    ],
)
def test_an_endpoint_has_one_spelling(text: str, canonical: str) -> None:
    """The canonical form of an endpoint is its own canonical form."""
    assert rights.endpoints("f", [text]) == (canonical,)
    assert rights.endpoints("f", [canonical]) == (canonical,)


@pytest.mark.parametrize(
    "text",
    [
        "example.org",
        "example.org:",
        ":443",
        "example.org:0",
        "example.org:65536",
        "example.org:0443",
        "example.org:+443",
        "example.org:4_43",
        "example.org:٤٤٣",
        "example.org:443 ",
        " example.org:443",
        "example.org :443",
        "example.org:443\n",
        "example.org\n:443",
        "example\0.org:443",
        "example.org\r\nx:443",
        "https://example.org:443",
        "user@example.org:443",
        "user:pass@example.org:443",
        "example.org:443/",
        "example.org/path:443",
        "example.org%2e:443",
        "example.org..:443",
        ".example.org:443",
        "example..org:443",
        "-example.org:443",
        "example-.org:443",
        "a" * 64 + ".org:443",
        ".".join(["a" * 60] * 5) + ":443",
        "*:443",
        "*.:443",
        "**.example.org:443",
        "*example.org:443",
        "a.*.org:443",
        "*.*.org:443",
        "example.*:443",
        "127.1:80",
        "1.2.3:80",
        "1.2.3.4.5:80",
        "256.0.0.1:80",
        "0127.0.0.1:80",
        "127.0.0.01:80",
        "0x7f.0.0.1:80",
        "127.0.0.0x1:80",
        "0x7f000001:80",
        "2130706433:80",
        "1.2.3.0x:80",
        "*.2.3.4:80",
        "*.4:80",
        "example.1:80",
        "127.0.0.１:80",
        "①.example.org:80",
        "::1:80",
        "[::1]",
        "[::1:80",
        "[]:80",
        "[:80",
        "[::1%eth0]:80",
        "[::g]:80",
        "[::ffff:127.0.0.1]:80",
        "[::ffff:7f00:1]:80",
        "[127.0.0.1]:80",
        "[example.org]:80",
        "*.[::1]:80",
        # What a reader takes for another host: full width, an ideographic stop, a Kelvin sign, ß, a joiner.
        "ｅxample.org:443",
        "example。org:443",
        "example.or\u212a:443",
        "straße.example:443",
        "a\u200db.example:443",
        "BÜCHER.example:443",
        "bu\u0308cher.example:443",
        "\ud800.example:443",
        "exam\u00adple.org:443",
    ],
    ids=lambda text: repr(text)[:40],
)
def test_an_ambiguous_endpoint_is_refused(text: str) -> None:
    """Endpoints are not normalised, because the connecting program may read them differently."""
    with pytest.raises(InvalidValue, match="host:port") as refusal:
        rights.endpoints("policy.allowed_endpoints", ["good.org:1", text])

    assert (refusal.value.field, refusal.value.value) == ("policy.allowed_endpoints", text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("/data", "/data"),
        ("/data/", "/data"),
        ("//data///sets/./one/.", "/data/sets/one"),
        ("/data/a~b/1.0~rc1", "/data/a~b/1.0~rc1"),
        ("/data/...", "/data/..."),
        ("/tmp/mine", "/tmp/mine"),
        ("/devices", "/devices"),
        ("/données", "/données"),
        ("/" + "/".join(["x" * 100] * 40), "/" + "/".join(["x" * 100] * 40)),
    ],
    ids=lambda text: repr(text)[:24],
)
def test_a_mount_has_one_spelling(text: str, canonical: str) -> None:
    """Paths are normalised as text; links are resolved when a run starts."""
    assert rights.mounts("f", [text, canonical]) == (canonical,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "data",
        "./data",
        "~",
        "~/data",
        "/~",
        "/home/~root",
        "/..",
        "/data/..",
        "/data/../etc",
        "../../x",
        "/",
        "//",
        "/.",
        "/tmp",
        "/tmp/",
        "/proc",
        "/proc/1/root",
        "/./proc//self",
        "/sys",
        "/sys/fs/cgroup",
        "/dev",
        "/dev/shm",
        "/run",
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/data\0/x",
        "/data\n",
        "/data\x7f",
        "/\ud800",
        "/" + "x" * 256,
        "/" + "ü" * 128,
        "/" + "/".join(["x" * 100] * 41),
        "/x" * 5000,
    ],
    ids=lambda text: repr(text)[:24],
)
def test_a_path_that_is_no_mount_is_refused(text: str) -> None:
    """The check does not look at the disk."""
    with pytest.raises(InvalidValue) as refusal:
        rights.mounts("policy.readonly_mounts", [text])

    assert refusal.value.field == "policy.readonly_mounts"


LOADER_VARIABLES = (
    "LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT DYLD_INSERT_LIBRARIES PYTHONPATH PYTHONSTARTUP PYTHONHOME BASH_ENV ENV IFS "
    "GCONV_PATH NODE_OPTIONS PERL5LIB PERL5OPT RUBYOPT RUBYLIB HTTP_PROXY https_proxy All_Proxy NO_PROXY FTP_PROXY "
    "GLIBC_TUNABLES MALLOC_CHECK_ PS4 SHELLOPTS BASHOPTS PROMPT_COMMAND PERLLIB NODE_PATH LOCPATH NLSPATH GETCONF_DIR "
    "HOSTALIASES LOCALDOMAIN RES_OPTIONS RESOLV_HOST_CONF JAVA_TOOL_OPTIONS _JAVA_OPTIONS LUA_INIT OPENSSL_CONF"
).split()


@pytest.mark.parametrize("name", LOADER_VARIABLES)
def test_a_variable_that_loaders_read_is_refused(name: str) -> None:
    """The name and the value of such a variable are refused."""
    for ask in (lambda: rights.variables("f", ["LANG", name]), lambda: rights.variable_values("f", {name: ""})):
        with pytest.raises(InvalidValue, match=name):
            ask()


@pytest.mark.parametrize("name", ["LANG", "_", "a1", "ENVIRONMENT", "IFS2", "MY_LD_PRELOAD", "PROXY", "A" * 255])
def test_other_variables_are_accepted(name: str) -> None:
    """The patterns match whole names."""
    assert rights.variables("f", [name]) == (name,)
    assert rights.variable_values("f", {name: "x\n=ü"}) == {name: "x\n=ü"}


@pytest.mark.parametrize(
    "name", ["", "1A", "A-B", "A B", "A=B", "A\0", "A\n", "Ä", "BASH_FUNC_x%%", "A" * 256, "\ud800"]
)
def test_an_invalid_name_of_a_variable_is_refused(name: str) -> None:
    """A name with '=' would set a value, and one with a newline would be two lines."""
    for ask in (lambda: rights.variables("f", [name]), lambda: rights.variable_values("f", {name: "x"})):
        with pytest.raises(InvalidValue, match="names of variables"):
            ask()


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/a", "a\0", "a\n", "a b", "ä", "-a", "a" * 129])
def test_a_secret_without_a_valid_file_name_is_refused(name: str) -> None:
    """The file of a secret cannot leave its folder."""
    with pytest.raises(InvalidValue, match="file names"):
        rights.secrets("f", {name: "x"})


def test_an_empty_secret_is_refused() -> None:
    """Masking an empty text would mask everything."""
    assert rights.secrets("f", {"a.b-c_1": "x\0\ny", "d": None}) == {"a.b-c_1": "x\0\ny", "d": None}
    with pytest.raises(InvalidValue, match="not empty"):
        rights.secrets("f", {"a": ""})


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (rights.endpoints, [f"a{number}.org:1" for number in range(257)]),
        (rights.endpoints, [f"ü{number}.org:1" for number in range(17)]),
        (rights.mounts, [f"/data/{number}" for number in range(257)]),
        (rights.variables, [f"A{number}" for number in range(257)]),
        (rights.variable_values, {f"A{number}": "" for number in range(257)}),
        (rights.variable_values, {"A": "x" * 65_536, "B": "ü" * 32_768}),
        (rights.secrets, [f"a{number}" for number in range(257)]),
        (rights.secrets, {"a": "x" * 2**19, "b": "ü" * 2**18 + "x"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_size_of_requested_rights_is_bounded(check: Any, value: Any) -> None:
    """A guest writes these lists."""
    with pytest.raises(InvalidValue, match="at most"):
        check("f", value)


def test_requested_rights_at_the_bounds_are_accepted() -> None:
    """The bounds hold to the byte."""
    assert len(rights.variables("f", [f"A{number}" for number in range(256)])) == 256
    assert len(rights.endpoints("f", [f"ü{number}.org:1" for number in range(16)])) == 16
    assert rights.variable_values("f", {"A": "x" * (128 * 1024 - 1)})
    assert rights.secrets("f", {"a": "x" * 2**20})


def test_an_endpoint_covers_itself_and_a_wildcard_the_names_below() -> None:
    """A wildcard does not cover its own domain; '*' covers every name and every public address."""
    endpoints = ["a.org:1", "*.b.org:2", "[2606:4700::1]:3"]
    covered = ["a.org:1", "x.b.org:2", "x.y.b.org:2", "*.b.org:2", "*.x.b.org:2", "[2606:4700::1]:3"]
    uncovered = ["b.org:2", "x.b.org:1", "x.a.org:1", "xb.org:2", "*.org:2", "*", "[2606:4700::2]:3", "*.a.org:1"]

    assert rights.uncovered_endpoints(endpoints, covered) == []
    assert rights.uncovered_endpoints(endpoints, uncovered) == uncovered
    assert rights.uncovered_endpoints(["*"], [*covered, *uncovered]) == []
    assert rights.uncovered_endpoints([], ["a.org:1"]) == ["a.org:1"]
    assert rights.uncovered_endpoints(["*", "10.0.0.1:1"], ["10.0.0.1:1", "10.0.0.1:2"]) == ["10.0.0.1:2"]
