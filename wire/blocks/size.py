"""Chooses the size of the next append block from what the writer sends and the server acknowledges.

A block delays its appends, so one is opened only when it will fill: with at most one append in flight the size is 0 and
every append travels at once. Otherwise it is what half the outstanding appends take, at least one append, at most what
`BATCH_MS` bring and `MAX_BLOCK_BYTES`.

Invariant: the answer depends on the calls alone; time is an argument, in milliseconds of any clock that does not matter
where it starts, and a clock that goes back counts as one that stands still. Nothing is refused: a tracker only advises.

Follows `AppendBatchSizeTrackerImpl` and `ExponentialMovingAverage` (Pravega's client) with its settings as shipped.
"""

from math import copysign, sqrt
from typing import Final, Protocol

BATCH_MS: Final = 20.0
MAX_BLOCK_BYTES: Final = 2 * 256 * 1024 - 1024

_OUTSTANDING_FRACTION: Final = 0.5


class BlockSizing(Protocol):
    """What `AppendBlockEncoder` asks about one flow."""

    @property
    def timeout_ms(self) -> float:
        """How long a block may stay open."""
        ...

    def record_append(self, event_number: int, size: int, now_ms: float) -> None:
        """An append of `size` bytes is about to be sent."""
        ...

    def block_size(self) -> int:
        """Bytes that the next block should hold; a block that the first append fills is never kept open."""
        ...


class FixedBlockSize:
    """Always the same size and timeout, whatever is sent."""

    def __init__(self, size: int, timeout_ms: float = BATCH_MS) -> None:
        self._size = size
        self.timeout_ms = timeout_ms

    def record_append(self, event_number: int, size: int, now_ms: float) -> None:
        """Makes no difference."""

    def block_size(self) -> int:
        return self._size


class BlockSizeTracker:
    """The sizes of one flow's blocks. `now_ms` at creation counts as the time of an append before the first."""

    def __init__(self, now_ms: float) -> None:
        self._last_append = 0
        self._last_ack = 0
        self._last_ms = now_ms
        self._size = _RootAverage(1024.0, 0.01)
        self._gap_ms = _Average(10.0, 0.001)
        self._outstanding = _Average(20.0, 0.001)

    @property
    def timeout_ms(self) -> float:
        return BATCH_MS

    @property
    def outstanding(self) -> int:
        """Events sent and not yet acknowledged."""
        return self._last_append - self._last_ack

    def record_append(self, event_number: int, size: int, now_ms: float) -> None:
        gap = max(now_ms - self._last_ms, 0.0)
        self._last_ms += gap
        self._last_append = event_number
        self._gap_ms.add(gap)
        self._size.add(size)

    def record_ack(self, event_number: int) -> int:
        """The server has stored all events up to this number; returns how many are still outstanding."""
        self._last_ack = event_number
        outstanding = self.outstanding
        self._outstanding.add(outstanding)
        return outstanding

    def block_size(self) -> int:
        if self.outstanding <= 1:
            return 0
        gap = self._gap_ms.value
        most = max(1.0, BATCH_MS / gap) if gap > 0 else float("inf")
        appends = max(min(self._outstanding.value * _OUTSTANDING_FRACTION, most), 1.0)
        return max(min(int(appends * self._size.value), MAX_BLOCK_BYTES), 0)


class _Average:
    """An exponential moving average: each sample counts with its weight, all before it with the rest."""

    __slots__ = ("_weight", "value")

    def __init__(self, initial: float, weight: float) -> None:
        self.value = initial
        self._weight = weight

    def add(self, sample: float) -> None:
        self.value = sample * self._weight + (1.0 - self._weight) * self.value


class _RootAverage:
    """The same over square roots, so that a rare huge sample moves it less."""

    __slots__ = ("_roots",)

    def __init__(self, initial: float, weight: float) -> None:
        self._roots = _Average(sqrt(initial), weight)

    @property
    def value(self) -> float:
        return self._roots.value * abs(self._roots.value)

    def add(self, sample: float) -> None:
        self._roots.add(copysign(sqrt(abs(sample)), sample))
