"""The one log of requests: the latest traffic, which numbers them on arrival, and the requests paired from it."""

from segstore.server.traffic.history import History, RecordedRequest
from segstore.server.traffic.traffic import KEPT_BYTES, Traffic, make_traffic

__all__ = ["KEPT_BYTES", "History", "RecordedRequest", "Traffic", "make_traffic"]
