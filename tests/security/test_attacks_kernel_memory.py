"""Memory that the kernel holds for a guest and charges to no process: bounded with control groups and without."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from tests.security.attacks import kernel_memory
from tests.security.kit import Kernel, assert_refused, assert_works, worked

MEMORY_MB = 96
BOUND_MB = 256  #: what an attack takes if nothing stops it
HOLD_S = 20.0  #: how long it waits to be found; it never takes this long where it is found

needs_memory = pytest.mark.skipif(
    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 2 << 30, reason="the controls need 256 MiB to spare"
)


def assert_bounded(result: dict[str, Any]) -> None:
    """It ended for its memory, or never had as much as its policy allows."""
    if result["status"] == "completed":
        assert result["output"]["held_mb"] <= MEMORY_MB
    else:
        assert (result["status"], result["exit_code"]) == ("oom", 137), result["error"]


@needs_memory
def test_socket_buffers_stay_within_the_memory_limit_without_control_groups(kernel: Kernel) -> None:
    """One process that asks for large buffers does not get them."""
    assert kernel.control(kernel_memory.fill_sockets, BOUND_MB)["held_mb"] >= BOUND_MB

    assert_bounded(kernel.run(kernel_memory.fill_sockets, BOUND_MB, HOLD_S, memory_mb=MEMORY_MB))


@needs_memory
def test_sockets_of_several_processes_count_as_memory(kernel: Kernel) -> None:
    """Eight processes with buffers of the default size are ended together as out of memory."""
    arguments = (BOUND_MB, HOLD_S, 8, False)

    assert kernel.control(kernel_memory.fill_sockets, BOUND_MB, 0, 8, False)["held_mb"] >= BOUND_MB // 2
    result = kernel.run(kernel_memory.fill_sockets, *arguments, memory_mb=MEMORY_MB, pids=32)

    assert (result["status"], result["exit_code"]) == ("oom", 137), result


@needs_memory
def test_sockets_of_a_process_whose_first_thread_has_ended_count_as_memory(kernel: Kernel) -> None:
    """A process that looks as if it had ended is no way to hide what its network holds."""
    result = kernel.run(
        kernel_memory.fill_sockets_without_a_first_thread, BOUND_MB, HOLD_S, memory_mb=MEMORY_MB, pids=32
    )

    assert (result["status"], result["exit_code"]) == ("oom", 137), result


@needs_memory
def test_memory_of_a_process_that_is_no_child_of_the_agents_is_bounded(kernel: Kernel) -> None:
    """The agent gets no process beside itself whose memory nobody counts."""
    assert_bounded(kernel.run(kernel_memory.fill_beside, MEMORY_MB + 32, HOLD_S, memory_mb=MEMORY_MB))


@needs_memory
def test_sockets_hidden_in_the_queue_of_another_count_as_memory(kernel: Kernel) -> None:
    """A socket that is only in flight has no descriptor; its buffer counts all the same."""
    control = kernel.control(kernel_memory.fill_sockets_in_flight, BOUND_MB)
    assert control["held_mb"] > MEMORY_MB

    assert_bounded(kernel.run(kernel_memory.fill_sockets_in_flight, MEMORY_MB + 16, HOLD_S, memory_mb=MEMORY_MB))


@needs_memory
def test_page_tables_count_as_memory(kernel: Kernel) -> None:
    """A process that only reads, sparsely, is ended for the page tables that it needs."""
    bound_mb = MEMORY_MB + 32
    assert kernel.control(kernel_memory.fill_page_tables, bound_mb)["held_mb"] == bound_mb

    result = kernel.run(kernel_memory.fill_page_tables, bound_mb, HOLD_S, memory_mb=MEMORY_MB)

    assert (result["status"], result["exit_code"]) == ("oom", 137), result


@needs_memory
def test_shared_memory_that_was_unmapped_counts_as_memory(kernel: Kernel) -> None:
    """Of each shared area one page stays mapped; the area holds its memory, and is charged with it."""
    bound_mb = MEMORY_MB + 32
    assert kernel.control(kernel_memory.hide_shared_memory, bound_mb)["held_mb"] == bound_mb

    result = kernel.run(kernel_memory.hide_shared_memory, bound_mb, HOLD_S, memory_mb=MEMORY_MB)

    assert (result["status"], result["exit_code"]) == ("oom", 137), result


def test_without_a_control_group_shared_areas_are_small(kernel: Kernel) -> None:
    """An area as large as what is charged for one is mapped; none is larger, and `/dev/zero` makes none."""
    assert_works(kernel.control(kernel_memory.map_shared_areas), "huge page")
    if has_memory_cgroup(kernel):
        pytest.skip("a control group counts them")

    tried = kernel.attack(kernel_memory.map_shared_areas)

    assert worked(tried.pop("small"))
    assert_refused(tried, "ENOMEM", "EACCES")


def test_a_buffer_is_not_made_larger_and_asking_is_no_error(kernel: Kernel) -> None:
    """Programs that set the size of a buffer go on; the buffer stays as it is."""
    control = kernel.control(kernel_memory.buffers)
    assert control["SO_SNDBUF"] > 0
    assert control["SO_RCVBUF"] > 0

    assert kernel.attack(kernel_memory.buffers) == dict.fromkeys(control, 0)


def has_memory_cgroup(kernel: Kernel) -> bool:
    """Whether memory of a guest of this kernel is bounded by a control group, as root can have one."""
    return kernel.user == "me" and worked(kernel.attack(kernel_memory.make_queues)["memory"])


def test_without_a_control_group_no_memory_is_kept_outside_of_processes(kernel: Kernel) -> None:
    """Message queues, semaphores and pages that a pipe pins belong to no process and have no bound of their own."""
    assert_works(kernel.control(kernel_memory.pin_pages))
    assert_works(kernel.control(kernel_memory.make_queues))
    if has_memory_cgroup(kernel):
        pytest.skip("a control group counts them")

    assert_refused(kernel.attack(kernel_memory.make_queues), "EPERM")
    assert_refused(kernel.attack(kernel_memory.pin_pages), "EPERM", "EINVAL")


def test_buffers_of_tcp_stay_small_in_a_sandbox_with_endpoints(kernel: Kernel) -> None:
    """Without a control group they do not grow with the traffic, as they do in the control."""
    policy: dict[str, Any] = {"network": "allow_list", "allowed_endpoints": ["127.0.0.1:1"]}
    if not kernel.has_namespaces or has_memory_cgroup(kernel):
        pytest.skip("no endpoints without namespaces; a control group counts buffers")
    assert kernel.control(kernel_memory.fill_tcp, 64)["held_mb"] > 2

    assert kernel.attack(kernel_memory.fill_tcp, 64, **policy)["held_mb"] < 1


def test_programs_that_copy_files_go_on_without_sendfile(kernel: Kernel) -> None:
    """Copying a file falls back to reading and writing."""
    assert kernel.attack(copy_a_file) == 3 << 20


def copy_a_file() -> int:
    """Copy a file as the standard library does; says how large the copy is."""
    with open("first", "wb") as file:  # noqa: PTH123
        file.write(b"x" * (3 << 20))
    shutil.copyfile("first", "second")
    return os.stat("second").st_size  # noqa: PTH116
