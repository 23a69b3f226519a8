"""What is to leave through a tap towards a client, in order, each when its waits are over.

Invariants: what waits keeps back what is behind it, unless it may be overtaken; what is to be done when all before has
left is done then, and not before; after `clear` nothing leaves and nothing waits.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from segstore.server.faults import Wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.server.faults import Faults, FaultWaits, Seen

WAITING_BYTES: Final = 1024
"""What something that waits takes beside its bytes, roughly."""


class _Leaving:
    """Bytes of replies, and what is to be done once these and all before have left."""

    __slots__ = ("data", "ready", "seen", "then")

    def __init__(self, data: bytes, seen: tuple[Seen, ...], then: Callable[[], object] | None, *, ready: bool) -> None:
        self.data = data
        self.seen = seen
        self.then = then
        self.ready = ready


class Line:
    """The replies of a connection. store: its number. write: is given what leaves, in few pieces.

    Attributes:
        bytes: what it holds, roughly.
    """

    def __init__(self, faults: Faults, store: int, waits: FaultWaits, write: Callable[[bytes], object]) -> None:
        self.bytes = 0
        self._faults = faults
        self._store = store
        self._waits = waits
        self._to_client = write
        self._line: deque[_Leaving] = deque()
        self._late = 0

    def __bool__(self) -> bool:
        return bool(self._line or self._late)

    def put(self, data: bytes, then: Callable[[], object] | None = None) -> None:
        """Bytes that have nothing to wait for themselves; then is called when they have left."""
        self._put(_Leaving(data, (), then, ready=True))

    def send(self, frames: list[bytes], seen: tuple[Seen, ...], wait: Wait) -> None:
        """Has frames leave when a wait is over; the time of a round trip runs meanwhile."""
        seconds = wait.seconds + self._faults.round_trip_s(self._store)
        if seconds or wait.holds:
            wait = Wait(seconds, wait.holds, wait.overtake)
        for frame in frames:
            leaving = _Leaving(frame, seen, None, ready=not wait)
            if not wait.overtake:
                self._put(leaving)
            else:
                self._late += 1
                self.bytes += len(frame) + WAITING_BYTES
            if wait:
                self._waits.add(wait, partial(self._is_ready, leaving, last=wait.overtake))

    def _is_ready(self, leaving: _Leaving, *, last: bool) -> None:
        """A reply may leave; one that others could overtake, behind all that are there."""
        leaving.ready = True
        if last:
            self._late -= 1
            self._line.append(leaving)
        self.leave()

    def _put(self, leaving: _Leaving) -> None:
        self._line.append(leaving)
        self.bytes += len(leaving.data) + WAITING_BYTES

    def leave(self) -> None:
        """Writes what is ready, in order."""
        line = self._line
        written: list[bytes] = []
        seen: list[Seen] = []
        while line and line[0].ready and not (line[0].then is not None and self._late):
            first = line.popleft()
            self.bytes -= len(first.data) + WAITING_BYTES
            if first.data:
                written.append(first.data)
                seen += first.seen
            if first.then is not None:
                self._write(written, seen)
                written, seen = [], []
                first.then()
        self._write(written, seen)

    def _write(self, written: list[bytes], seen: list[Seen]) -> None:
        self._to_client(b"".join(written))
        observer = self._faults.observer
        if observer is not None and seen:
            now_s = self._faults.clock.now_s()
            for each in seen:
                observer.replied(each, now_s)

    def clear(self) -> None:
        """Nothing leaves any more; the waits are cleared by whose they are."""
        self._line.clear()
        self._late = self.bytes = 0
