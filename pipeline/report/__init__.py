"""The trace report: analyses on Spark or on this machine, and an HTML page that shows them."""

from typing import Final

__all__ = ["STEPS"]

STEPS: Final = {
    "reading the traces": 28,
    "requests and replies": 16,
    "broken rules": 48,
    "latencies": 1,
    "pooling": 3,
    "writers": 1,
    "replay plan": 2,
    "the page": 1,
}
"""Steps for a progress bar, in order, and the share of the time that each takes, in percent."""
