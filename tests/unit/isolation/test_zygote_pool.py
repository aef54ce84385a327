"""Which zygote serves whom, and what goes between them and the host."""

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

KEPT = ("/venv", "/project/.ramet/runs")


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
def test_a_zygote_serves_who_needs_no_more_than_it_has_and_can_do_without_the_rest(
    has: tuple[str, ...], needs: tuple[str, ...], serves: bool
) -> None:
    mounted, wanted = ({path: path for path in each} for each in (has, needs))
    assert ZygoteKind("bare", mounted).serves("bare", wanted, KEPT) is serves
    assert not ZygoteKind("llm", mounted).serves("bare", wanted, KEPT)


def test_a_zygote_whose_mount_lies_elsewhere_does_not_serve() -> None:
    """The operator of one run granted a link there, and that of another one what the link leads to now."""
    shelf = ZygoteKind("bare", {"/link": "/first"})

    assert shelf.serves("bare", {"/link": "/first"}, KEPT)
    assert not shelf.serves("bare", {"/link": "/second"}, KEPT)


@given(st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))))
def test_the_outermost_of_paths_cover_all_and_not_each_other(paths: list[str]) -> None:
    found = outermost(tuple(paths))
    assert set(found) <= set(paths)
    for path in paths:
        assert sum(path == outer or path.startswith(f"{outer}/") for outer in found) == 1


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = packets.pair()
    with one, other:
        yield one, other


@pytest.mark.parametrize("size", [0, 100, 32 * 1024, 5_000_000])
def test_a_packet_arrives_whole_with_its_descriptors(ends: tuple[socket.socket, socket.socket], size: int) -> None:
    read, write = os.pipe()
    try:
        packets.send(ends[0], "kind", {"text": "x" * size}, [write])
        packets.send(ends[0], "next")
        packet = packets.receive(ends[1])
        assert packet is not None
        assert (packet.kind, packet.body) == ("kind", {"text": "x" * size})
        (fd,) = packet.fds
        assert not os.get_inheritable(fd)
        os.write(fd, b"through")
        os.close(fd)
        assert os.read(read, 100) == b"through"
        assert packets.receive(ends[1]) == packets.Packet("next", None)
    finally:
        os.close(read)
        os.close(write)


def test_the_end_of_packets_is_told(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].close()
    assert packets.receive(ends[1]) is None


def test_a_room_and_its_like_cross_as_they_are(ends: tuple[socket.socket, socket.socket]) -> None:
    room = ZygoteConfig("bwrap", "/runs", ("/venv",), {"/a": "/b/a"}, "bare", identities={"/a": [1, 2]})
    packets.send(ends[0], "room", room)
    packet = packets.receive(ends[1])
    assert packet is not None
    crossed = ZygoteConfig(*packet.body)
    crossed = crossed._replace(runtime=tuple(crossed.runtime), states=tuple(crossed.states))
    assert crossed._replace(in_memory=tuple(crossed.in_memory)) == room


def test_what_an_image_cannot_import_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that no longer exists would be loaded in every child, and nobody would know why they are slow."""
    monkeypatch.setitem(main.IMAGES, "bare", ("json", "ramet.tools.no_such_tool"))

    with pytest.raises(ModuleNotFoundError, match="no_such_tool"):
        main.load("bare")


def test_no_image_holds_the_software_of_a_provider() -> None:
    """They double what a fork costs, and their keys are the host's business."""
    assert set(main.IMAGES["bare"]) < set(main.IMAGES["llm"])
    for name in ("langchain_openai", "langchain_anthropic", "openai", "anthropic"):
        assert not any(each.startswith(name) for image in main.IMAGES.values() for each in image)
