"""The synchronous classes of `segstore.client.watermarks`.

Written by tools/make_sync.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from segstore.client import TimeWindows as AsyncTimeWindows
from segstore.client.controller import StreamCut
from segstore.client.sync.proxies import EnteredProxy
from segstore.client.watermarks import TimeWindow


class TimeWindows(EnteredProxy[AsyncTimeWindows]):
    """The time windows of one stream. Use with `with`, or call `close`."""

    @property
    def scope(self) -> str:
        return self._inner.scope

    @property
    def stream(self) -> str:
        return self._inner.stream

    def at(self, cut: Mapping[int, int]) -> TimeWindow:
        """Returns the time window of a position, which must not lie before an earlier call's.

        cut: of a reader, or of its group, whose other readers count. Raises CutError for a cut of another stream,
        ProtocolViolation, and the errors of requests.
        """
        return self._lease.run(self._inner.at, cut)

    def cut_before(self, timestamp: int) -> StreamCut | None:
        """Returns the position of the last watermark whose upper bound is at most `timestamp`, or None.

        Everything before it is of that time or before. Independent of `at`. Raises ProtocolViolation, and the errors
        of requests.
        """
        return self._lease.run(self._inner.cut_before, timestamp)

    def close(self) -> None:
        """Releases the flows. Can be called twice."""
        self._lease.run(self._inner.aclose)
