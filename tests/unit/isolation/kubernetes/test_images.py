"""Tests of images: which mounts of a run an image contains, and which are copied all the same."""

from __future__ import annotations

from ramet.isolation.kubernetes.images import ImageWithMounts, PlainImage


def test_a_mount_below_a_copied_mount_is_copied_with_it() -> None:
    """A link cannot replace a copied folder; a name that merely begins alike is no folder below."""
    image = PlainImage("ramet")
    image_paths = {"/data/bundles/one": "/opt/one", "/data/bundles/other": "/opt/other"}
    image_mounts = ImageWithMounts(image, image_paths)

    assert (
        image_mounts.without_nested([*image_paths, "/data/bundles/one/skills", "/data/bundles/on", "/srv"])
        == image_mounts
    )
    assert image_mounts.without_nested(["/data/bundles/one", "/data"]) == ImageWithMounts(image, {})
