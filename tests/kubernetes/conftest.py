"""What tests with a real cluster use."""

from tests.support.cluster import base_image, cluster, namespace

__all__ = ["base_image", "cluster", "namespace"]
