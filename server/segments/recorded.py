"""A SegmentAdmin wrapper that records the controller's requests to stores in this process.

Pravega's controller uses connections of its own; here it calls the stores. So that a recording holds all requests of
its store and can be replayed to another, these calls are recorded as the requests and replies of one connection per
store, whose opening record has `"role": "controller"`.

Invariants: a query or a failed request changes nothing and is not recorded; without a recorder everything is just
forwarded. Deliberate difference: such requests carry no delegation token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from segstore.server.controller import SegmentAdmin
from segstore.wire import (
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    GetTableSegmentInfo,
    LocateOffset,
    ReadSegment,
    ReadTableEntries,
    encode,
)
from segstore.wire.protocol import HELLO
from segstore.wire.trace import Direction

if TYPE_CHECKING:
    from segstore.server.controller import Endpoint
    from segstore.server.recording import Recorder
    from segstore.wire import Command

ROLE: Final = "controller"
_QUERIES: Final = (
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    GetTableSegmentInfo,
    LocateOffset,
    ReadSegment,
    ReadTableEntries,
)


class RecordedSegments(SegmentAdmin):
    """Wraps a `SegmentAdmin` and records its calls. recorder: returns the current recorder, or None."""

    def __init__(self, segments: SegmentAdmin, recorder: Callable[[], Recorder | None]) -> None:
        self._segments = segments
        self._recorder = recorder
        self._open: dict[Endpoint, tuple[Recorder, int]] = {}
        self._count = 0

    def close(self) -> None:
        """Records that the connections close. May be called twice."""
        while self._open:
            _, (recorder, number) = self._open.popitem()
            recorder.closed(number, Direction.REQUEST)

    def owner_of(self, segment: str) -> Endpoint:
        return self._segments.owner_of(segment)

    async def ask(self, segment: str, did: str, request: Command) -> Command:
        reply = await self._segments.ask(segment, did, request)
        recorder = self._recorder()
        if recorder is None or reply.is_failure or isinstance(request, _QUERIES):
            return reply
        number = self._connection(recorder, self._segments.owner_of(segment))
        self._count += 1
        recorder.received(number, encode(msgspec.structs.replace(request, request_id=self._count)))
        recorder.sent(number, [encode(msgspec.structs.replace(reply, request_id=self._count))])
        return reply

    def _connection(self, recorder: Recorder, store: Endpoint) -> int:
        known = self._open.get(store)
        if known is not None and known[0] is recorder:
            return known[1]
        number = recorder.opened(peer=ROLE, role=ROLE, store=f"{store.host}:{store.port}")
        self._open[store] = recorder, number
        hello = encode(HELLO)
        recorder.received(number, hello)
        recorder.sent(number, [hello])
        return number
