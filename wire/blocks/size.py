"""Chooses the size of the next append block from the writer's appends and the server's acknowledgements.

A block delays its appends, so it is only opened if it will fill: with at most one append in flight the size is 0 and
each append is sent at once. Otherwise it is the size of half the outstanding appends, at least one append, and at most
`MAX_BLOCK_BYTES` and the bytes that arrive in `BATCH_MS`.

Invariant: the result depends only on the calls. Time is an argument, in milliseconds of any clock; a clock that goes
backwards counts as standing still. Nothing is refused: a tracker only advises.

Follows `AppendBatchSizeTrackerImpl` and `ExponentialMovingAverage` (Pravega's client) with its settings as shipped.
"""

from math import sqrt
from typing import Final

BATCH_MS: Final = 20.0
MAX_BLOCK_BYTES: Final = 2 * 256 * 1024 - 1024

_OUTSTANDING_FRACTION: Final = 0.5


class BlockSizeTracker:
    """The block sizes of one flow, for `AppendBlockEncoder`. now_ms: time of creation; counts as that of an append."""

    timeout_ms = BATCH_MS
    """Maximum time that a block may stay open."""

    def __init__(self, now_ms: float) -> None:
        self._last_append = 0
        self._last_ack = 0
        self._last_ms = now_ms
        self._root_size = _Average(sqrt(1024.0), 0.01)  # of roots: rare large appends have less effect
        self._gap_ms = _Average(10.0, 0.001)
        self._outstanding = _Average(20.0, 0.001)

    @property
    def outstanding(self) -> int:
        """Number of events sent but not yet acknowledged."""
        return self._last_append - self._last_ack

    def record_append(self, event_number: int, size: int, now_ms: float) -> None:
        """Records that an append of `size` bytes is about to be sent."""
        gap = max(now_ms - self._last_ms, 0.0)
        self._last_ms += gap
        self._last_append = event_number
        self._gap_ms.add(gap)
        self._root_size.add(sqrt(size))

    def record_ack(self, event_number: int) -> int:
        """Records that all events up to this number are stored; returns the number still outstanding."""
        self._last_ack = event_number
        outstanding = self.outstanding
        self._outstanding.add(outstanding)
        return outstanding

    def block_size(self) -> int:
        """Returns the size of the next block in bytes; a block that its first append fills is never kept open."""
        if self.outstanding <= 1:
            return 0
        gap = self._gap_ms.value
        most = max(1.0, BATCH_MS / gap) if gap > 0 else float("inf")
        appends = max(min(self._outstanding.value * _OUTSTANDING_FRACTION, most), 1.0)
        return min(int(appends * self._root_size.value**2), MAX_BLOCK_BYTES)


class _Average:
    """An exponential moving average; weight: the weight of a new sample."""

    def __init__(self, initial: float, weight: float) -> None:
        self.value = initial
        self._weight = weight

    def add(self, sample: float) -> None:
        self.value = sample * self._weight + (1.0 - self._weight) * self.value
