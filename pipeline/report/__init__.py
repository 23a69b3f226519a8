"""The trace report: analyses on Spark or on this machine, and an HTML page that shows them."""

from typing import Final

__all__ = ["STEPS"]

STEPS: Final = (
    "reading the traces",
    "requests and replies",
    "broken rules",
    "latencies",
    "pooling",
    "writers",
    "replay plan",
    "the page",
)
"""The steps of a report, in order."""
