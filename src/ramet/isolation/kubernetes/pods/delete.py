"""How a pod is deleted that another kernel may take up at any moment: as its owner's, or not at all.

A deletion without a grace that depends on the version of a pod is half done: the API server changes the pod, and then
finds that it has. The kubelet does the rest, seconds later. So the pod is made nobody's first, on that condition.
"""

from __future__ import annotations

from ramet.isolation.kubernetes.api import labels, manifest
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.errors import Missing, Taken
from ramet.isolation.kubernetes.api.pod_status import ObservedPod


async def delete(api: Api, pod: ObservedPod, *owners: str) -> bool:
    """Have no pod of that name be one of these owners'; False: it is another kernel's.

    `pod` is what was seen of it last. What is not known for certain is asked for first: a watch says of a pod that has
    got another owner what it says of one that was deleted, with the newest version that there is. Raises Forbidden,
    Unreachable.
    """
    while True:
        try:
            if not pod.version:
                pod = await api.pod(pod.name)
            if pod.owner not in (*owners, labels.NOBODY):
                return False
            if pod.outlives_s and pod.owner != labels.NOBODY:
                await api.patch_pod(pod.name, manifest.adopt_patch(labels.NOBODY, uid=pod.uid, version=pod.version))
            await api.delete_pod(pod.name, uid=pod.uid)
        except Missing:
            return True
        except Taken:  # It has changed meanwhile: most likely its status alone.
            pod = pod._replace(version="")
        else:
            return True
