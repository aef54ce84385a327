"""Attacks 41 to 54 of the list: using up what others need. Each attack stops by itself at a bound it is given."""

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
    """The limit around the kernel holds: what has no sandbox stops at it, far above any policy here."""
    found = kernel.control(resources.fork_much, 300)
    assert found == {"lived": 300, "stopped": "bound"}
    if kernel.is_bounded:
        found = kernel.control(resources.fork_much, 2 * MOST_PIDS)
        assert found["stopped"] == "BlockingIOError"
        assert found["lived"] < MOST_PIDS


@pytest.mark.usefixtures("outer_limit")
def test_41_forks_stop_at_the_policys_number(kernel: Kernel) -> None:
    """41, 52: the first fork beyond `pids` fails; the control forks ten times as many."""
    result = kernel.run(resources.fork_much, 300, 2, pids=16)

    assert_bounded(kernel, result, "BlockingIOError")


@pytest.mark.usefixtures("outer_limit")
def test_41_a_fork_bomb_leaves_others_alone_and_ends(kernel: Kernel) -> None:
    """41: while a bomb runs, siblings are born and the bomb ends when its time is over, with all it made."""
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
    """42: threads stop at the same number."""
    result = kernel.run(resources.start_threads, 200, 2, pids=16)

    assert_bounded(kernel, result, "RuntimeError")


def assert_bounded(kernel: Kernel, result: dict[str, Any], error: str) -> None:
    """What would be 17 processes fails; where no namespace counts them, the agent is ended, and told why."""
    if kernel.has_namespaces or result["status"] == "completed":
        assert result["output"]["stopped"] == error
        assert 4 <= result["output"]["lived"] <= 16
    else:
        assert "pids" in result["error"]["message"] or "processes" in result["error"]["message"]


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "."])
def test_44_disks_fill_up_at_the_policys_size(kernel: Kernel, folder: str) -> None:
    """44: /tmp, /dev/shm and the workspace take what the policy says and no more; or there is no such folder."""
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


def test_44_one_large_file_stops_there_too(kernel: Kernel) -> None:
    """44: the same for a single file in the workspace."""
    result = kernel.run(resources.fill_one_file, ".", 256, workspace_size_mb=16)

    if result["status"] == "completed":
        assert result["output"]["stopped"] in FULL
        assert result["output"]["written_mb"] <= 20
    else:
        assert result["error"]["message"]


@pytest.mark.parametrize("way", ["mapping", "socket"])
def test_44_removed_files_that_no_descriptor_shows_count(kernel: Kernel, way: str) -> None:
    """44: the same for files without a name that only a mapping or the queue of a socket holds."""
    assert kernel.control(resources.fill_without_names, ".", 64, way)["written_mb"] == 64

    result = kernel.run(resources.fill_without_names, ".", 128, way, 60.0, workspace_size_mb=16, memory_mb=512)

    assert result["status"] != "completed", result["output"]
    assert "policy.workspace_size_mb is 16" in result["error"]["message"]


def test_44_a_folder_that_is_moved_while_it_is_looked_for_counts(kernel: Kernel) -> None:
    """44: a folder that is always moved to where the count has been already is counted all the same."""
    result = kernel.run(disk_hiding.move_folder, 64, 30.0, workspace_size_mb=16)

    assert_full(result)


@pytest.mark.parametrize("way", ["number", "process"])
def test_44_removed_files_whose_descriptors_move_count(kernel: Kernel, way: str) -> None:
    """44: removed files count, though their descriptors change number or process while they are looked for."""
    result = kernel.run(disk_hiding.move_descriptors, 64, 30.0, way, workspace_size_mb=16)

    assert_full(result)


@pytest.mark.parametrize("way", ["itself", "below"])
def test_44_removed_folders_that_are_kept_open_count(kernel: Kernel, way: str) -> None:
    """44: a folder that was large counts, though it is removed and only a descriptor keeps it, or a folder in it."""
    if kernel.control(disk_hiding.keep_folders, 48, 0.0, way)["held_mb"] < 48:
        pytest.skip("this file system takes the room back when entries of a folder are removed")

    result = kernel.run(disk_hiding.keep_folders, 48, 30.0, way, workspace_size_mb=16)

    assert_full(result)


def assert_full(result: dict[str, Any]) -> None:
    """The agent was ended, and told that its workspace is full."""
    assert result["status"] != "completed", result["output"]
    assert "policy.workspace_size_mb is 16" in result["error"]["message"]


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_45_names_run_out_before_the_machines_do(kernel: Kernel, folder: str) -> None:
    """45: empty files in memory end with ENOSPC, long before a million."""
    result = kernel.run(resources.fill_with_names, folder, 300_000, tmpfs_size_mb=4, memory_mb=128)

    if result["status"] == "completed":
        assert result["output"]["stopped"] in {*FULL, "ENOENT", "EACCES", "EROFS"}
    else:
        assert result["status"] == "oom"  # names are memory of the agent's own


@pytest.mark.alone("it compares what it gets of the processors with the time that passes")
def test_47_processors_are_shared_as_the_policy_says(kernel: Kernel) -> None:
    """47: eight spinning processes under a tenth of a processor get about that, where they would get far more."""
    control = kernel.control(resources.spin, 8, 1)
    assert control["processor"] > 0.25 * control["passed"]

    found = kernel.attack(resources.spin, 8, 2, cpu_cores=0.1)

    # Where there is no cgroup a watchdog stops and continues the agent, which is as fine as it looks.
    assert found["processor"] <= (0.2 if kernel.user == "me" else 0.4) * found["passed"]


def test_47_101_who_never_comes_back_is_ended_at_its_time(kernel: Kernel) -> None:
    """47, 101: a deaf, spinning agent with threads ends as `timeout`, and no process of it is left."""
    before = kernel.play("facts")["pids"]

    result = kernel.run(resources.spin_for_ever, timeout_seconds=0.5)

    assert (result["status"], result["exit_code"], result["output"]) == ("timeout", 124, None)
    assert kernel.play("facts")["pids"] <= before + 8


def test_48_descriptors_run_out_inside_only(kernel: Kernel) -> None:
    """48: EMFILE for the agent; the host holds as many as before."""
    kernel.attack(spawning.one)
    before = kernel.play("facts")["fds"]

    found = kernel.attack(resources.open_files, 30_000)

    assert found["stopped"] == "EMFILE"
    assert found["opened"] <= 4096
    assert kernel.play("facts")["fds"] <= before + 8


def test_49_a_flood_of_output_stalls_and_fills_nothing(kernel: Kernel) -> None:
    """49, NEG-9: a gigabyte on stdout and stderr: memory and disk of the host are flat, the result is bounded."""
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


def test_49_the_newest_output_is_kept_and_nothing_is_lost_before_the_bound(kernel: Kernel) -> None:
    """166: the last words of both streams are in the result, whole lines in order."""
    result = kernel.run(resources.print_lines, 1000)

    assert result["stdout"].splitlines()[-3:] == ["line 998", "line 999", "last word"]
    assert result["stdout"].splitlines()[0] == "line 0"
    assert result["stderr"].strip() == "last complaint"


def test_51_descriptors_sent_to_the_host_stay_away(kernel: Kernel) -> None:
    """51: a flood of descriptors through the channel, and in circles, leaves the host's number flat."""
    kernel.attack(spawning.one)
    before = kernel.play("facts")["fds"]

    kernel.run(channel.pass_descriptors, 2000)

    assert kernel.attack(channel.find) >= 3
    assert kernel.play("facts")["fds"] <= before + 8


def test_52_what_one_agent_hoards_others_still_get(kernel: Kernel) -> None:
    """52: timers, watches, pipes and queued signals: one agent's hoard leaves the host and other agents enough."""
    if not kernel.has_namespaces:
        pytest.skip("timers are counted per user, and without user namespaces all agents are one")
    agent = "tests.security.attacks.resources:hoard"
    kernel.play("start", key="miser", agent=agent, args=[100_000, 60], policy={"timeout_seconds": 60})

    took = kernel.play("said", key="miser")
    host = kernel.control(resources.hoard, 15, 0)
    other = kernel.attack(resources.hoard, 15, 0)
    kernel.play("cancel", key="miser")

    assert took.startswith("took")
    assert [name for name, number in host.items() if not number] == [], took
    refused = {"watches", "instances"} if kernel.backend == "local" else {"watches"}  # Landlock hides no events.
    assert [name for name, number in other.items() if not number and name not in refused] == []


def test_52_many_short_sleeps_harm_nobody(kernel: Kernel) -> None:
    """52: ten thousand of them, and a sibling beside."""
    agent = "tests.security.attacks.resources:sleep_often"
    kernel.play("begin", key="restless", agent=agent, args=[10_000])

    assert kernel.attack(spawning.one) == 1
    assert kernel.play("result", key="restless")["status"] == "completed"


@pytest.mark.parametrize("megabytes", [60, 120, 400])
def test_54_a_result_at_the_memory_limit_is_whole_or_none(kernel: Kernel, megabytes: int) -> None:
    """54: what needs more memory to be sent than there is comes as an error, never in part."""
    result = kernel.run(resources.answer_at_the_limit, megabytes, memory_mb=128, max_output_bytes=63 << 20)

    if result["status"] == "completed":
        assert result["output"]["@bytes"] == megabytes << 20
    else:
        assert result["output"] is None
        assert result["status"] in {"oom", "failed"}
        assert result["error"]["message"]


def test_memory_is_bounded_and_the_end_is_called_oom(kernel: Kernel) -> None:
    """52, AC-S0-12: who uses four times its memory ends as `oom`; who stays below does not."""
    assert kernel.control(resources.eat_memory, 300) == 300

    within = kernel.run(resources.eat_memory, 30, memory_mb=96)
    beyond = kernel.run(resources.eat_memory, 400, 3, memory_mb=96)

    assert (within["status"], within["output"]) == ("completed", 30)
    assert (beyond["status"], beyond["exit_code"], beyond["output"]) == ("oom", 137, None)


@pytest.mark.alone("where there is no control group, it counts how soon the watchdog gets to look")
def test_memory_of_children_counts_too(kernel: Kernel) -> None:
    """52: six processes of 60 MB each do not live under 128 MB together."""
    assert kernel.control(resources.eat_memory_in_children, 6, 60)["held_by"] == 6

    result = kernel.run(resources.eat_memory_in_children, 6, 60, 20, memory_mb=128, pids=32)

    assert result["status"] == "oom" or result["output"]["megabytes"] <= 160


def test_memory_that_is_handed_on_all_the_time_counts_too(kernel: Kernel) -> None:
    """52: processes that give their address space to a child and end, a thousand times a second, hide none of it."""
    assert len(kernel.control(hopping.hold, 2, 90, 0.1)) == 2

    result = kernel.run(hopping.hold, 2, 90, 8, memory_mb=96, pids=32)  # A busy machine looks late.

    assert result["status"] == "oom" or sum(result["output"]) <= 96
