"""A tap: forwards a cluster's traffic, records it, and applies fault rules."""

from segstore.server.tap.link import Door
from segstore.server.tap.server import TapServer, TapSettings

__all__ = ["Door", "TapServer", "TapSettings"]
