"""Memory that the kernel holds for a guest and charges to no process is bounded, with control groups and without."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from tests.security.attacks import kernel_memory
from tests.security.kit import Kernel, assert_refused, assert_works, has_succeeded

MEMORY_MB = 96
BOUND_MB = 256  #: what an attack takes if nothing stops it
HOLD_S = 20.0  #: how long it waits to be found; it never takes this long where it is found

needs_memory = pytest.mark.skipif(
    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 2 << 30, reason="the controls need 256 MiB to spare"
)


def assert_bounded(result: dict[str, Any]) -> None:
    """Assert that a run ended as out of memory, or held no more memory than its policy allows."""
    if result["status"] == "completed":
        assert result["output"]["held_mb"] <= MEMORY_MB
    else:
        assert (result["status"], result["exit_code"]) == ("oom", 137), result["error"]


@needs_memory
def test_large_socket_buffers_stay_within_the_memory_limit(kernel: Kernel) -> None:
    """One process that asks for large socket buffers stays within `memory_mb`, or ends as out of memory."""
    assert kernel.control(kernel_memory.fill_sockets, BOUND_MB)["held_mb"] >= BOUND_MB

    assert_bounded(kernel.run(kernel_memory.fill_sockets, BOUND_MB, HOLD_S, memory_mb=MEMORY_MB))


@needs_memory
def test_sockets_of_several_processes_count_as_memory(kernel: Kernel) -> None:
    """A run of eight processes with socket buffers of the default size ends as out of memory."""
    arguments = (BOUND_MB, HOLD_S, 8, False)

    assert kernel.control(kernel_memory.fill_sockets, BOUND_MB, 0, 8, False)["held_mb"] >= BOUND_MB // 2
    result = kernel.run(kernel_memory.fill_sockets, *arguments, memory_mb=MEMORY_MB, pids=32)

    assert (result["status"], result["exit_code"]) == ("oom", 137), result


@needs_memory
def test_sockets_of_a_process_without_its_first_thread_count_as_memory(kernel: Kernel) -> None:
    """A process whose first thread has ended cannot hide its socket buffers: the run ends as out of memory."""
    result = kernel.run(
        kernel_memory.fill_sockets_without_a_first_thread, BOUND_MB, HOLD_S, memory_mb=MEMORY_MB, pids=32
    )

    assert (result["status"], result["exit_code"]) == ("oom", 137), result


@needs_memory
def test_memory_of_a_process_that_is_no_child_of_the_agent_is_bounded(kernel: Kernel) -> None:
    """An agent cannot hide memory in a process that is not its child."""
    assert_bounded(kernel.run(kernel_memory.fill_beside, MEMORY_MB + 32, HOLD_S, memory_mb=MEMORY_MB))


@needs_memory
def test_sockets_hidden_in_the_queue_of_a_socket_count_as_memory(kernel: Kernel) -> None:
    """The buffer of a socket in flight counts as memory, although no process has a descriptor of the socket."""
    control = kernel.control(kernel_memory.fill_sockets_in_flight, BOUND_MB)
    assert control["held_mb"] > MEMORY_MB

    assert_bounded(kernel.run(kernel_memory.fill_sockets_in_flight, MEMORY_MB + 16, HOLD_S, memory_mb=MEMORY_MB))


@needs_memory
def test_page_tables_count_as_memory(kernel: Kernel) -> None:
    """A process that reads one page in each 2 MiB ends as out of memory, for its page tables."""
    bound_mb = MEMORY_MB + 32
    assert kernel.control(kernel_memory.fill_page_tables, bound_mb)["held_mb"] == bound_mb

    result = kernel.run(kernel_memory.fill_page_tables, bound_mb, HOLD_S, memory_mb=MEMORY_MB)

    assert (result["status"], result["exit_code"]) == ("oom", 137), result


@needs_memory
def test_unmapped_shared_memory_counts_as_memory(kernel: Kernel) -> None:
    """A shared area of which one page stays mapped counts with all the memory that it holds."""
    bound_mb = MEMORY_MB + 32
    assert kernel.control(kernel_memory.hide_shared_memory, bound_mb)["held_mb"] == bound_mb

    result = kernel.run(kernel_memory.hide_shared_memory, bound_mb, HOLD_S, memory_mb=MEMORY_MB)

    assert (result["status"], result["exit_code"]) == ("oom", 137), result


def test_without_a_control_group_shared_areas_are_small(kernel: Kernel) -> None:
    """An agent without a control group can map a small shared area, but neither a larger one nor `/dev/zero`."""
    assert_works(kernel.control(kernel_memory.map_shared_areas), "huge page")
    if has_memory_cgroup(kernel):
        pytest.skip("a control group counts them")

    tried = kernel.attack(kernel_memory.map_shared_areas)

    assert has_succeeded(tried.pop("small"))
    assert_refused(tried, "ENOMEM", "EACCES")


def test_a_request_for_a_larger_buffer_succeeds_and_changes_nothing(kernel: Kernel) -> None:
    """Programs that set the size of a socket buffer get no error, and the buffer keeps its size."""
    control = kernel.control(kernel_memory.buffers)
    assert control["SO_SNDBUF"] > 0
    assert control["SO_RCVBUF"] > 0

    assert kernel.attack(kernel_memory.buffers) == dict.fromkeys(control, 0)


def has_memory_cgroup(kernel: Kernel) -> bool:
    """Return whether a control group bounds the memory of guests of this kernel, as root can have one."""
    return kernel.user == "me" and has_succeeded(kernel.attack(kernel_memory.make_queues)["memory"])


def test_without_a_control_group_memory_outside_of_processes_is_refused(kernel: Kernel) -> None:
    """Message queues, semaphores and pages pinned by a pipe belong to no process, so a sandbox refuses them."""
    assert_works(kernel.control(kernel_memory.pin_pages))
    assert_works(kernel.control(kernel_memory.make_queues))
    if has_memory_cgroup(kernel):
        pytest.skip("a control group counts them")

    assert_refused(kernel.attack(kernel_memory.make_queues), "EPERM")
    assert_refused(kernel.attack(kernel_memory.pin_pages), "EPERM", "EINVAL")


def test_tcp_buffers_stay_small_in_a_sandbox_with_endpoints(kernel: Kernel) -> None:
    """TCP buffers do not grow with the traffic, as they do in the control, where there is no control group."""
    policy: dict[str, Any] = {"network": "allow_list", "allowed_endpoints": ["127.0.0.1:1"]}
    if not kernel.has_namespaces or has_memory_cgroup(kernel):
        pytest.skip("no endpoints without namespaces; a control group counts buffers")
    assert kernel.control(kernel_memory.fill_tcp, 64)["held_mb"] > 2

    assert kernel.attack(kernel_memory.fill_tcp, 64, **policy)["held_mb"] < 1


def test_a_file_is_copied_without_sendfile(kernel: Kernel) -> None:
    """Copying a file works by reading and writing where sendfile is refused."""
    assert kernel.attack(copy_a_file) == 3 << 20


def copy_a_file() -> int:
    """Copy a file as the standard library does, and return the size of the copy in bytes."""
    with open("first", "wb") as file:  # noqa: PTH123
        file.write(b"x" * (3 << 20))
    shutil.copyfile("first", "second")
    return os.stat("second").st_size  # noqa: PTH116
