"""The trace report: analyses on Spark or on this machine, and an HTML page that shows them."""

from typing import Final

__all__ = ["STEPS"]

STEPS: Final = {
    "reading the traces": 25,
    "requests and replies": 45,
    "broken rules": 3,
    "latencies": 6,
    "pooling": 12,
    "writers": 3,
    "replay plan": 3,
    "the page": 3,
}
"""Steps for a progress bar, in order, and the share of the time that each takes, in percent."""
