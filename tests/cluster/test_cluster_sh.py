"""`cluster.sh` finds server programs where README.md says, reports their absence, and ends only its processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NOTHING = "no Kubernetes server programs"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Clone that holds only the script, with nothing beside it."""
    made = tmp_path / "here" / "clone"
    (made / "tests").mkdir(parents=True)
    shutil.copytree(HERE, made / "tests" / "cluster", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    subprocess.run(["git", "init", "-q", str(made)], check=True)
    return made


def sh(clone: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `cluster.sh` of a clone, in an environment that names no cluster."""
    named = ("KUBECONFIG", "REGISTRY", "RAMET_KUBE", "CI")
    base_env = {key: value for key, value in os.environ.items() if key not in named}
    script = clone / "tests" / "cluster" / "cluster.sh"
    return subprocess.run([script, *words], env=base_env | env, capture_output=True, text=True, check=False)


def test_run_without_server_programs_is_skipped_and_fails_in_ci(clone: Path) -> None:
    """`cluster.sh run` without server programs prints one line and succeeds; with CI set it fails."""
    calm, ci = sh(clone, "run", "echo", "ran"), sh(clone, "run", "echo", "ran", CI="true")

    assert (calm.returncode, calm.stdout, calm.stderr.count("\n")) == (0, "", 1)
    assert calm.stderr.startswith("== NOT RUN")
    assert (ci.returncode, ci.stdout) == (1, "")


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_a_file_beside_the_clone_is_used_only_with_its_checksum(clone: Path, tmp_path: Path, hops: int) -> None:
    """A file beside the clone, or beside the clone's origin, is found, and refused when its checksum is wrong."""
    for hop in range(hops):
        further = tmp_path / f"hop-{hop}" / "clone"
        subprocess.run(["git", "clone", "-q", str(clone), str(further)], check=True, capture_output=True)
        shutil.copytree(clone / "tests", further / "tests", dirs_exist_ok=True)
        clone = further
    foreign = tmp_path / "here" / "shared" / "k8s" / "kube-multi.xz"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("something else")

    result = sh(clone, "kube")

    assert result.returncode == 1
    assert "not the expected file" in result.stderr
    assert "here/" in result.stderr or hops == 0
    assert NOTHING in result.stderr


def test_ramet_kube_names_a_file_or_a_folder(clone: Path, tmp_path: Path) -> None:
    """RAMET_KUBE is used as given. A wrong path is refused, and the error lists what would be accepted."""
    file = tmp_path / "kube-multi.xz"
    file.write_text("the user's own")

    assert sh(clone, "kube", RAMET_KUBE=str(file)).stdout.strip() == str(file)
    assert sh(clone, "kube", RAMET_KUBE=str(tmp_path)).stdout.strip() == str(file)
    wrong = sh(clone, "kube", RAMET_KUBE=str(tmp_path / "nothing"))
    assert wrong.returncode == 1
    assert "expected kube-multi.xz, a folder that has it, or the word build" in wrong.stderr


def test_a_given_cluster_is_used_only_with_its_registry(clone: Path) -> None:
    """A command runs unchanged if KUBECONFIG and REGISTRY are set, and is refused without REGISTRY."""
    ran = sh(clone, "run", "sh", "-c", "echo $KUBECONFIG $REGISTRY; exit 7", KUBECONFIG="mine", REGISTRY="r:1")

    assert (ran.returncode, ran.stdout) == (7, "mine r:1\n")
    assert sh(clone, "run", "echo", "ran", KUBECONFIG="mine").returncode == 2


def test_down_ends_no_process_with_a_reused_number(clone: Path, tmp_path: Path) -> None:
    """`cluster.sh down` leaves a process alone whose number was recorded for an earlier process."""
    home = tmp_path / "kube"
    (home / "run").mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as other:
        (home / "run" / "ns.pid").write_text(f"{other.pid} 1\n")

        down = sh(clone, "down", KUBE_HOME=str(home))

        assert (down.returncode, down.stderr) == (0, "")
        assert other.poll() is None
        other.terminate()
    assert not (home / "run").exists()
