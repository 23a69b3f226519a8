"""A tap: passes a cluster's traffic on, records it, and applies fault rules."""

from segstore.server.tap.server import (
    TapServer,
    TapSettings,
)

__all__ = [
    "TapServer",
    "TapSettings",
]
