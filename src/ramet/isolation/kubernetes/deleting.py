"""How a pod is deleted that another kernel may take up at any moment: as its owner's, or not at all."""

from __future__ import annotations

from ramet.isolation.kubernetes.api import Api, Missing, Taken
from ramet.isolation.kubernetes.seen import Seen


async def delete(api: Api, pod: Seen, *owners: str) -> bool:
    """Have no pod of that name be one of these owners'; False: it is another kernel's.

    `pod` is what was seen of it last. What is not known for certain is asked for first: a watch says of a pod that has
    got another owner what it says of one that was deleted, with the newest version that there is. Raises Forbidden,
    Unreachable.
    """
    while True:
        if not pod.version:
            try:
                pod = await api.pod(pod.name)
            except Missing:
                return True
        if pod.owner not in owners:
            return False
        try:
            await api.delete_pod(pod.name, uid=pod.uid, version=pod.version)
        except Taken:  # It has changed meanwhile: most likely its status alone.
            pod = pod._replace(version="")
        else:
            return True
