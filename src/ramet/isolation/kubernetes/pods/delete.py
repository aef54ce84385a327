"""The deletion of a pod that another kernel may adopt at any moment: as its owner's pod, or not at all.

A deletion without a grace period that depends on the version of a pod is not atomic: the API server changes the pod,
and then finds that the version differs. The kubelet completes the deletion seconds later. Therefore the pod's owner is
first set to NOBODY, on the condition that the version is unchanged.
"""

from __future__ import annotations

from ramet.isolation.kubernetes.api import labels, manifest
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.errors import ApiConflict, Missing
from ramet.isolation.kubernetes.api.pod_status import ObservedPod


async def delete(api: Api, pod: ObservedPod, *owners: str) -> bool:
    """Delete the pod if one of `owners` owns it; return False if it belongs to another kernel.

    `pod` is its last observed state. An uncertain state is read again first: a watch reports a pod that changed its
    owner exactly like a deleted pod, with the newest version that exists. Raises Forbidden, Unreachable.
    """
    while True:
        try:
            if not pod.version:
                pod = await api.pod(pod.name)
            if pod.owner not in (*owners, labels.NO_OWNER):
                return False
            if pod.outlives_s and pod.owner != labels.NO_OWNER:
                await api.patch_pod(pod.name, manifest.adopt_patch(labels.NO_OWNER, uid=pod.uid, version=pod.version))
            await api.delete_pod(pod.name, uid=pod.uid)
        except Missing:
            return True
        except ApiConflict:  # The pod has changed meanwhile: most likely only its status.
            pod = pod._replace(version="")
        else:
            return True
