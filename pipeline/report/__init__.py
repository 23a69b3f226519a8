"""The trace report: analyses on Spark or on this machine, and an HTML page that shows them."""

from typing import Final

__all__ = ["STEPS"]

STEPS: Final = {
    "reading the traces": 54,
    "requests and replies": 30,
    "broken rules": 2,
    "latencies": 2,
    "pooling": 6,
    "writers": 2,
    "replay plan": 2,
    "the page": 2,
}
"""Steps for a progress bar, in order, and the share of the time that each takes, in percent."""
