"""Tests of the pool of zygotes: which zygote serves which run, and the packets between zygote and host."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.isolation.assignment import ZygoteConfig, outermost
from ramet.isolation.zygote import main, packets
from ramet.isolation.zygote.pool import ZygoteKind

COMMON_PATHS = ("/venv", "/project/.ramet/runs")


@pytest.mark.parametrize(
    ("has", "needs", "serves"),
    [
        ((), (), True),
        (("/a",), ("/a",), True),
        (("/a", "/b"), ("/a",), True),
        (("/a", "/b"), (), True),
        (("/a",), ("/b",), False),
        ((), ("/a",), False),
        (("/a", "/a/below"), ("/a",), False),  # What is not granted cannot be taken out of what is.
        (("/a", "/a/below"), ("/a/below",), False),  # Nor the other way round.
        (("/a", "/ab"), ("/a",), True),
        (("/project",), (), False),  # It holds the workspaces.
        (("/venv/share",), (), False),  # It is part of what everybody has.
    ],
)
def test_a_zygote_serves_a_run_whose_mounts_it_has_and_can_hide_the_rest(
    has: tuple[str, ...], needs: tuple[str, ...], serves: bool
) -> None:
    mounted, wanted_mounts = ({path: path for path in each} for each in (has, needs))
    assert ZygoteKind("bare", mounted).serves("bare", wanted_mounts, COMMON_PATHS) is serves
    assert not ZygoteKind("llm", mounted).serves("bare", wanted_mounts, COMMON_PATHS)


def test_a_zygote_with_another_source_of_a_mount_does_not_serve() -> None:
    """Two operators may grant one link, which led to different folders at the two times."""
    kind = ZygoteKind("bare", {"/link": "/first"})

    assert kind.serves("bare", {"/link": "/first"}, COMMON_PATHS)
    assert not kind.serves("bare", {"/link": "/second"}, COMMON_PATHS)


def test_a_zygote_serves_a_run_that_may_write_to_the_same_of_its_mounts() -> None:
    """A mount is shown to the children of a zygote either for reading or for writing."""
    kind = ZygoteKind("bare", {"/a": "/a", "/b": "/b"}, writable=frozenset({"/a"}))

    assert kind.serves("bare", {"/a": "/a", "/b": "/b"}, COMMON_PATHS, ["/a"])
    assert kind.serves("bare", {"/b": "/b"}, COMMON_PATHS)
    assert not kind.serves("bare", {"/a": "/a"}, COMMON_PATHS)
    assert not kind.serves("bare", {"/a": "/a", "/b": "/b"}, COMMON_PATHS, ["/a", "/b"])


@given(st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))))
def test_outermost_paths_cover_every_path_and_not_each_other(paths: list[str]) -> None:
    outer = outermost(tuple(paths))
    assert set(outer) <= set(paths)
    for path in paths:
        assert sum(path == outer or path.startswith(f"{outer}/") for outer in outer) == 1


@pytest.fixture
def packet_sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = packets.pair()
    with one, other:
        yield one, other


@pytest.mark.parametrize("size", [0, 100, 32 * 1024, 5_000_000])
def test_a_packet_arrives_whole_with_its_descriptors(
    packet_sockets: tuple[socket.socket, socket.socket], size: int
) -> None:
    read_end, write = os.pipe()
    try:
        packets.send(packet_sockets[0], "kind", {"text": "x" * size}, [write])
        packets.send(packet_sockets[0], "next")
        packet = packets.receive(packet_sockets[1])
        assert packet is not None
        assert (packet.kind, packet.body) == ("kind", {"text": "x" * size})
        (fd,) = packet.fds
        assert not os.get_inheritable(fd)
        os.write(fd, b"through")
        os.close(fd)
        assert os.read(read_end, 100) == b"through"
        assert packets.receive(packet_sockets[1]) == packets.Packet("next", None)
    finally:
        os.close(read_end)
        os.close(write)


def test_the_end_of_packets_is_none(packet_sockets: tuple[socket.socket, socket.socket]) -> None:
    packet_sockets[0].close()
    assert packets.receive(packet_sockets[1]) is None


def test_a_zygote_config_arrives_equal(packet_sockets: tuple[socket.socket, socket.socket]) -> None:
    config = ZygoteConfig("bwrap", "/runs", ("/venv",), {"/a": "/b/a"}, "bare", identities={"/a": [1, 2]})
    packets.send(packet_sockets[0], "room", config)
    packet = packets.receive(packet_sockets[1])
    assert packet is not None
    decoded_config = ZygoteConfig(*packet.body)
    decoded_config = decoded_config._replace(runtime=tuple(decoded_config.runtime), states=tuple(decoded_config.states))
    assert decoded_config._replace(in_memory=tuple(decoded_config.in_memory)) == config


def test_a_missing_module_of_an_image_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing name would be loaded in every child, and make each of them slow unnoticed."""
    monkeypatch.setitem(main.IMAGES, "bare", ("json", "ramet.tools.no_such_tool"))

    with pytest.raises(ModuleNotFoundError, match="no_such_tool"):
        main.load("bare")


def test_no_image_imports_packages_of_providers() -> None:
    """Such packages double the cost of a fork, and their keys belong to the host."""
    assert set(main.IMAGES["bare"]) < set(main.IMAGES["llm"])
    for name in ("langchain_openai", "langchain_anthropic", "openai", "anthropic"):
        assert not any(each.startswith(name) for image in main.IMAGES.values() for each in image)
