"""The manifests of `deploy/`, as they reach a cluster, with a check that is stricter than the check of a cluster."""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from lightkube.codecs import from_dict

DEPLOY = Path(__file__).parents[2] / "deploy"
Manifest = dict[str, Any]


def build_manifests(folder: Path) -> list[Manifest]:
    """Return what `kubectl apply -k` would send; without kubectl, the content of the files."""
    if shutil.which("kubectl"):
        command = ["kubectl", "kustomize", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout))
    return [each for file in files_of(folder) for each in yaml.safe_load_all(file.read_text())]


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the files of manifests that a kustomization includes, wherever they are."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for name in (*kustomization.get("resources", ()), *kustomization.get("components", ())):
        named = (folder / name).resolve()
        yield from files_of(named) if named.is_dir() else [named]


def unknown_fields(manifest: Manifest) -> list[str]:
    """Return the paths of fields that Kubernetes does not know; lightkube's types follow its schema.

    Raises msgspec.ValidationError if a value has the wrong type.
    """
    read: Any = from_dict(manifest)  # of any kind
    return list(_unknown_paths(manifest, read.to_dict(), manifest["kind"]))


def _unknown_paths(original: Any, read: Any, path: str) -> Iterator[str]:
    if isinstance(original, Mapping) and isinstance(read, Mapping):
        for key, value in original.items():
            yield from _unknown_paths(value, read[key], f"{path}.{key}") if key in read else [f"{path}.{key}"]
    elif isinstance(original, Sequence) and not isinstance(original, str) and isinstance(read, Sequence):
        for number, pair in enumerate(zip(original, read, strict=True)):
            yield from _unknown_paths(*pair, f"{path}[{number}]")
    elif original != read:
        yield path


def find_manifest(manifests: Sequence[Manifest], kind: str, name: str = "ramet") -> Manifest:
    """Return the manifest of this kind and name."""
    (found,) = (each for each in manifests if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def with_namespace(manifests: Sequence[Manifest], namespace: str) -> list[Manifest]:
    """Return the manifests for one other namespace, whose name becomes a prefix of names outside of namespaces."""
    made = copy.deepcopy(list(manifests))
    wide = {each["metadata"]["name"] for each in made if each["kind"] == "ClusterRole"}
    for each in made:
        if "namespace" in each["metadata"]:
            each["metadata"]["namespace"] = namespace
        else:
            each["metadata"]["name"] = f"{namespace}-{each['metadata']['name']}"
        if each.get("roleRef", {}).get("name") in wide:
            each["roleRef"]["name"] = f"{namespace}-{each['roleRef']['name']}"
        for subject in each.get("subjects", ()):
            subject["namespace"] = namespace
        for rule in each.get("rules", ()):
            if "resourceNames" in rule:
                names = rule["resourceNames"]
                rule["resourceNames"] = [f"{namespace}-{name}" if name in wide else name for name in names]
    return made
