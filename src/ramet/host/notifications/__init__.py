"""Notifications: messages to people about questions, limits, ends of runs and lost kernels, sent until delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ramet.host.notifications.notification import Notification as Notification
    from ramet.host.notifications.targets import CallbackTarget as CallbackTarget
    from ramet.host.notifications.targets import CommandTarget as CommandTarget
    from ramet.host.notifications.targets import WebhookTarget as WebhookTarget

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "host.notifications.notification": ("Notification",),
        "host.notifications.targets": ("CallbackTarget", "CommandTarget", "WebhookTarget"),
    },
)
