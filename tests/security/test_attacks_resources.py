"""Attacks 41 to 54 of the list: using up resources of others. Each attack stops by itself at a given bound."""

from __future__ import annotations

from typing import Any

import pytest

from tests.security.attacks import channel, disk_hiding, hopping, resources, spawning
from tests.security.kit import Kernel
from tests.security.outer import MOST_PIDS

#: What a full disk, or a sandbox that ends who fills it, may be called.
FULL = {"ENOSPC", "EDQUOT", "EFBIG"}


@pytest.fixture(scope="session")
def outer_limit(kernel: Kernel) -> None:
    """Assert that processes without a sandbox stop at the limit around the kernel, far above the policies here."""
    found = kernel.control(resources.fork_much, 300)
    assert found == {"lived": 300, "stopped": "bound"}
    if kernel.is_bounded:
        found = kernel.control(resources.fork_much, 2 * MOST_PIDS)
        assert found["stopped"] == "BlockingIOError"
        assert found["lived"] < MOST_PIDS


@pytest.mark.usefixtures("outer_limit")
def test_41_forks_stop_at_the_policys_limit(kernel: Kernel) -> None:
    """41, 52: a fork beyond `pids` fails, or ends the agent. The control makes 300 processes."""
    result = kernel.run(resources.fork_much, 300, 2, pids=16)

    assert_bounded(kernel, result, "BlockingIOError")


@pytest.mark.usefixtures("outer_limit")
def test_41_a_fork_bomb_ends_and_other_agents_run(kernel: Kernel) -> None:
    """41: other agents run during a fork bomb. The bomb ends at its timeout, with its processes."""
    before = kernel.play("facts")["pids"]
    agent = "tests.security.attacks.resources:fork_for_ever"
    kernel.play("begin", key="bomb", agent=agent, args=[60], policy={"pids": 32, "timeout_seconds": 2})
    if not kernel.has_namespaces:  # Until it is seen it may have all processes that there are, and nobody is born.
        assert kernel.play("result", key="bomb")["status"] in ("timeout", "crashed")

    assert [kernel.attack(spawning.say, str(number)) for number in range(5)] == list("01234")

    assert not kernel.has_namespaces or kernel.play("result", key="bomb")["status"] == "timeout"
    assert kernel.play("facts")["pids"] <= before + 8  # parked children may be refilled, a bomb's would be 32


@pytest.mark.usefixtures("outer_limit")
def test_42_threads_count_as_processes(kernel: Kernel) -> None:
    """42: threads stop at `pids`, as processes do."""
    result = kernel.run(resources.start_threads, 200, 2, pids=16)

    assert_bounded(kernel, result, "RuntimeError")


def assert_bounded(kernel: Kernel, result: dict[str, Any], error: str) -> None:
    """Assert that at most 16 processes lived, or that the agent ended with an error that names processes."""
    if kernel.has_namespaces or result["status"] == "completed":
        assert result["output"]["stopped"] == error
        assert 4 <= result["output"]["lived"] <= 16
    else:
        assert "pids" in result["error"]["message"] or "processes" in result["error"]["message"]


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "."])
def test_44_folders_fill_up_at_the_policys_size(kernel: Kernel, folder: str) -> None:
    """44: /tmp, /dev/shm and the workspace hold what the policy allows, or are missing."""
    if folder != ".":
        assert kernel.control(resources.fill, folder, 64) == {"written_mb": 64, "stopped": "bound"}

    before = kernel.play("facts")["disk_mb"]
    result = kernel.run(
        resources.fill,
        folder,
        256,
        90 if folder == "." else 0,
        tmpfs_size_mb=16,
        workspace_size_mb=16,
        memory_mb=512,
        max_output_bytes=1 << 20,
    )

    if result["status"] == "completed":
        found = result["output"]
        assert found["stopped"] in FULL or (folder != "." and found["stopped"] in {"ENOENT", "EACCES", "EROFS"})
        assert found["written_mb"] <= 20
    else:  # a watchdog that ends who fills the disk says so
        assert result["status"] in {"failed", "crashed", "oom"}
        assert result["error"]["message"]
        assert kernel.play("facts")["disk_mb"] < before + 270  # It looks once in a while; a disk is quick.


def test_44_one_large_file_stops_at_the_policys_size(kernel: Kernel) -> None:
    """44: a single large file in the workspace stops at `workspace_size_mb`, or ends the run."""
    result = kernel.run(resources.fill_one_file, ".", 256, workspace_size_mb=16)

    if result["status"] == "completed":
        assert result["output"]["stopped"] in FULL
        assert result["output"]["written_mb"] <= 20
    else:
        assert result["error"]["message"]


@pytest.mark.parametrize("holder", ["mapping", "socket"])
def test_44_removed_files_without_a_descriptor_count(kernel_with_disk: Kernel, holder: str) -> None:
    """44: removed files that only a mapping or the queue of a socket holds count for the workspace.

    Those in a queue are seen by the growth of the file system alone, as are mapped ones for an ordinary user's kernel.
    """
    kernel = kernel_with_disk
    assert kernel.control(resources.fill_without_names, ".", 64, holder)["written_mb"] == 64

    result = kernel.run(resources.fill_without_names, ".", 128, holder, 60.0, workspace_size_mb=16, memory_mb=512)

    assert_full(result)


def test_44_a_folder_that_moves_during_the_count_is_counted(kernel: Kernel) -> None:
    """44: a folder that always moves to a place that the watchdog has counted already counts for the workspace."""
    result = kernel.run(disk_hiding.move_folder, 64, 30.0, workspace_size_mb=16)

    assert_full(result)


@pytest.mark.parametrize("change", ["number", "process"])
def test_44_removed_files_whose_descriptors_move_count(kernel: Kernel, change: str) -> None:
    """44: removed files count, although their descriptors change number or process during the count."""
    result = kernel.run(disk_hiding.move_descriptors, 64, 30.0, change, workspace_size_mb=16)

    assert_full(result)


@pytest.mark.parametrize("position", ["itself", "below"])
def test_44_removed_folders_with_an_open_descriptor_count(kernel: Kernel, position: str) -> None:
    """44: a removed large folder counts while a descriptor holds the folder, or a folder in it."""
    if kernel.control(disk_hiding.keep_folders, 48, 0.0, position)["held_mb"] < 48:
        pytest.skip("this file system takes the room back when entries of a folder are removed")

    result = kernel.run(disk_hiding.keep_folders, 48, 30.0, position, workspace_size_mb=16)

    assert_full(result)


def assert_full(result: dict[str, Any]) -> None:
    """Assert that the run ended with an error which says that its workspace is full."""
    assert result["status"] != "completed", result["output"]
    assert "policy.workspace_size_mb is 16" in result["error"]["message"]


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_45_empty_files_run_out_at_the_policys_size(kernel: Kernel, folder: str) -> None:
    """45: empty files in memory stop at an error, or end the agent as `oom`, before 300,000."""
    result = kernel.run(resources.fill_with_names, folder, 300_000, tmpfs_size_mb=4, memory_mb=128)

    if result["status"] == "completed":
        assert result["output"]["stopped"] in {*FULL, "ENOENT", "EACCES", "EROFS"}
    else:
        assert result["status"] == "oom"  # names are memory of the agent's own


@pytest.mark.alone("it compares its processor time with the time that passes")
def test_47_processor_time_stays_within_the_policys_share(kernel: Kernel) -> None:
    """47: eight spinning processes with a tenth of a processor get about that share."""
    control = kernel.control(resources.spin, 8, 1)
    assert control["processor"] > 0.25 * control["passed"]

    found = kernel.attack(resources.spin, 8, 2, cpu_cores=0.1)

    # Where there is no cgroup a watchdog stops and continues the agent, which is as fine as it looks.
    assert found["processor"] <= (0.2 if kernel.user == "me" else 0.4) * found["passed"]


def test_47_101_a_spinning_agent_ends_at_its_timeout(kernel: Kernel) -> None:
    """47, 101: a spinning agent with threads that ignores signals ends as `timeout`, and leaves no process."""
    before = kernel.play("facts")["pids"]

    result = kernel.run(resources.spin_for_ever, timeout_seconds=0.5)

    assert (result["status"], result["exit_code"], result["output"]) == ("timeout", 124, None)
    assert kernel.play("facts")["pids"] <= before + 8


def test_48_an_agent_runs_out_of_descriptors_alone(kernel: Kernel) -> None:
    """48: the agent gets EMFILE, and the host holds as many descriptors as before."""
    kernel.attack(spawning.one)
    before = kernel.play("facts")["fds"]

    found = kernel.attack(resources.open_files, 30_000)

    assert found["stopped"] == "EMFILE"
    assert found["opened"] <= 4096
    assert kernel.play("facts")["fds"] <= before + 8


def test_49_neg_9_a_flood_of_output_does_not_grow_the_host(kernel: Kernel) -> None:
    """49, NEG-9: a gigabyte on stdout and stderr does not grow memory and disk of the host. The result is bounded."""
    before = kernel.play("facts")

    result = kernel.run(resources.flood_output, 1024, max_output_bytes=1 << 20)

    after = kernel.play("facts")
    if result["status"] == "completed":
        assert result["output"] == 1024
    else:
        assert "output" in result["error"]["message"]
    assert len(result["stdout"]) <= 1 << 20
    assert len(result["stderr"]) <= 1 << 20
    assert after["peak_mb"] - before["peak_mb"] < 64
    assert after["disk_mb"] - before["disk_mb"] <= 16
    assert kernel.attack(spawning.one) == 1


def test_49_output_below_the_bound_is_whole(kernel: Kernel) -> None:
    """166: the result holds the first and last lines of stdout in order, and the last line of stderr."""
    result = kernel.run(resources.print_lines, 1000)

    assert result["stdout"].splitlines()[-3:] == ["line 998", "line 999", "last word"]
    assert result["stdout"].splitlines()[0] == "line 0"
    assert result["stderr"].strip() == "last complaint"


def test_51_the_host_keeps_no_descriptor_that_a_guest_sends(kernel: Kernel) -> None:
    """51: a flood of descriptors through the channel, and in circles, does not raise the host's number."""
    kernel.attack(spawning.one)
    before = kernel.play("facts")["fds"]

    kernel.run(channel.pass_descriptors, 2000)

    assert kernel.attack(channel.find) >= 3
    assert kernel.play("facts")["fds"] <= before + 8


def test_52_one_agents_hoard_leaves_enough_for_others(kernel: Kernel) -> None:
    """52: an agent that hoards timers, watches, pipes and signals leaves enough for the host and other agents."""
    if not kernel.has_namespaces:
        pytest.skip("timers are counted per user, and without user namespaces all agents are one")
    agent = "tests.security.attacks.resources:hoard"
    kernel.play("start", key="miser", agent=agent, args=[100_000, 60], policy={"timeout_seconds": 60})

    took = kernel.play("output_of", key="miser")
    host = kernel.control(resources.hoard, 15, 0)
    other = kernel.attack(resources.hoard, 15, 0)
    kernel.play("cancel", key="miser")

    assert took.startswith("took")
    assert [name for name, number in host.items() if not number] == [], took
    refused = {"watches", "instances"} if kernel.backend == "local" else {"watches"}  # Landlock hides no events.
    assert [name for name, number in other.items() if not number and name not in refused] == []


def test_52_many_short_sleeps_leave_other_agents_running(kernel: Kernel) -> None:
    """52: another agent runs during ten thousand short sleeps of the first one."""
    agent = "tests.security.attacks.resources:sleep_often"
    kernel.play("begin", key="restless", agent=agent, args=[10_000])

    assert kernel.attack(spawning.one) == 1
    assert kernel.play("result", key="restless")["status"] == "completed"


@pytest.mark.parametrize("megabytes", [60, 120, 400])
def test_54_a_result_at_the_memory_limit_is_whole_or_missing(kernel: Kernel, megabytes: int) -> None:
    """54: a result that needs too much memory to send gives an error, and never a part of the result."""
    result = kernel.run(resources.answer_at_the_limit, megabytes, memory_mb=128, max_output_bytes=63 << 20)

    if result["status"] == "completed":
        assert result["output"]["@bytes"] == megabytes << 20
    else:
        assert result["output"] is None
        assert result["status"] in {"oom", "failed"}
        assert result["error"]["message"]


def test_an_agent_above_its_memory_ends_as_oom(kernel: Kernel) -> None:
    """52, AC-S0-12: an agent that uses four times its memory ends as `oom`. An agent below its limit completes."""
    assert kernel.control(resources.eat_memory, 300) == 300

    within = kernel.run(resources.eat_memory, 30, memory_mb=96)
    beyond = kernel.run(resources.eat_memory, 400, 3, memory_mb=96)

    assert (within["status"], within["output"]) == ("completed", 30)
    assert (beyond["status"], beyond["exit_code"], beyond["output"]) == ("oom", 137, None)


@pytest.mark.alone("without a control group its result depends on how soon the watchdog looks")
def test_memory_of_child_processes_counts(kernel: Kernel) -> None:
    """52: six processes of 60 MB each do not live within 128 MB together."""
    assert kernel.control(resources.eat_memory_in_children, 6, 60)["held_by"] == 6

    result = kernel.run(resources.eat_memory_in_children, 6, 60, 20, memory_mb=128, pids=32)

    assert result["status"] == "oom" or result["output"]["megabytes"] <= 160


def test_memory_that_moves_between_processes_counts(kernel: Kernel) -> None:
    """52: processes that pass their address space to a child and end cannot hide memory."""
    assert len(kernel.control(hopping.hold, 2, 90, 0.1)) == 2

    result = kernel.run(hopping.hold, 2, 90, 8, memory_mb=96, pids=32)  # A busy machine looks late.

    assert result["status"] == "oom" or sum(result["output"]) <= 96
