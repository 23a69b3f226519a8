"""What a controller in this process asks of the stores, told to whoever records their traffic.

With Pravega a controller asks over connections of its own; here it calls the stores. So that a recording holds all that
its store was told, and can be replayed to another, these calls are recorded as the requests and replies that they
would have been, on a connection whose beginning says `"role": "controller"`, one for each store.

Invariants: what fails is not recorded, for nothing has changed; without a recorder this passes everything on.
Deliberate difference: such requests carry no delegation token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from segstore.server.controller import CONTROLLER_WRITER, ControllerError
from segstore.server.store import NULL_VALUE
from segstore.wire import (
    OLDEST_COMPATIBLE_VERSION,
    WIRE_VERSION,
    AppendBlockEnd,
    AppendSetup,
    CreateSegment,
    CreateTableSegment,
    DataAppended,
    DeleteSegment,
    DeleteTableSegment,
    Hello,
    MergeSegmentsBatch,
    SealSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentPolicyUpdated,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentTruncated,
    SetupAppend,
    TruncateSegment,
    UpdateSegmentPolicy,
    encode,
)
from segstore.wire.trace import Direction

if TYPE_CHECKING:
    from segstore.server.connection import Recorder
    from segstore.server.controller import Endpoint, Load, ScalingPolicy, SegmentAdmin
    from segstore.wire import Command

ROLE: Final = "controller"


class RecordedSegments:
    """A `SegmentAdmin` before another. recorder: gives the recorder that there is now, None for none."""

    def __init__(self, segments: SegmentAdmin, recorder: Callable[[], Recorder | None]) -> None:
        self._segments = segments
        self._recorder = recorder
        self._open: dict[Endpoint, tuple[Recorder, int]] = {}
        self._count = 0

    def close(self) -> None:
        """The connections end. May be called twice."""
        while self._open:
            _, (recorder, number) = self._open.popitem()
            recorder.closed(number, Direction.REQUEST)

    def _note(self, segment: str, make: Callable[[int], tuple[Command, Command]]) -> None:
        recorder = self._recorder()
        if recorder is None:
            return
        store = self._segments.owner_of(segment)
        known = self._open.get(store)
        if known is None or known[0] is not recorder:
            number = recorder.opened(peer=ROLE, role=ROLE, store=f"{store.host}:{store.port}")
            known = self._open[store] = recorder, number
            hello = encode(Hello(WIRE_VERSION, OLDEST_COMPATIBLE_VERSION))
            recorder.received(number, hello)
            recorder.sent(number, [hello])
        self._count += 1
        request, reply = make(self._count)
        recorder.received(known[1], encode(request))
        recorder.sent(known[1], [encode(reply)])

    # --- as SegmentAdmin ------------------------------------------------------------------------------------------

    def owner_of(self, segment: str) -> Endpoint:
        return self._segments.owner_of(segment)

    async def create_segment(self, segment: str, scaling: ScalingPolicy, rollover_bytes: int) -> None:
        await self._segments.create_segment(segment, scaling, rollover_bytes)
        kind, rate = scaling.kind, scaling.target_rate
        self._note(
            segment,
            lambda id_: (CreateSegment(id_, segment, kind, rate, "", rollover_bytes), SegmentCreated(id_, segment)),
        )

    async def update_policy(self, segment: str, scaling: ScalingPolicy) -> None:
        await self._segments.update_policy(segment, scaling)
        kind, rate = scaling.kind, scaling.target_rate
        self._note(
            segment,
            lambda id_: (UpdateSegmentPolicy(id_, segment, kind, rate, ""), SegmentPolicyUpdated(id_, segment)),
        )

    async def seal_segment(self, segment: str) -> int:
        length = await self._segments.seal_segment(segment)
        self._note(segment, lambda id_: (SealSegment(id_, segment, ""), SegmentSealed(id_, segment)))
        return length

    async def segment_length(self, segment: str) -> int:
        return await self._segments.segment_length(segment)

    async def append_event(self, segment: str, number: int, event: bytes) -> None:
        await self._segments.append_event(segment, number, event)
        if self._recorder() is None:
            return
        length, previous = await self._segments.segment_length(segment), number - 1 or NULL_VALUE
        self._note(
            segment,
            lambda id_: (
                SetupAppend(id_, CONTROLLER_WRITER, segment, ""),
                AppendSetup(id_, segment, CONTROLLER_WRITER, previous),
            ),
        )
        self._note(
            segment,
            lambda id_: (
                AppendBlockEnd(CONTROLLER_WRITER, len(event), event, 1, number, id_),
                DataAppended(id_, CONTROLLER_WRITER, number, previous, length),
            ),
        )

    async def truncate_segment(self, segment: str, offset: int) -> None:
        await self._segments.truncate_segment(segment, offset)
        self._note(segment, lambda id_: (TruncateSegment(id_, segment, offset, ""), SegmentTruncated(id_, segment)))

    async def delete_segment(self, segment: str) -> None:
        await self._segments.delete_segment(segment)
        self._note(segment, lambda id_: (DeleteSegment(id_, segment, ""), SegmentDeleted(id_, segment)))

    async def merge_segments(self, target: str, sources: Sequence[str]) -> None:
        lengths: list[int] = []
        if self._recorder() is not None:
            end = await self._segments.segment_length(target)
            for source in sources:
                end += await self._length(source)
                lengths.append(end)
        await self._segments.merge_segments(target, sources)
        self._note(
            target,
            lambda id_: (
                MergeSegmentsBatch(id_, target, tuple(sources), ""),
                SegmentsBatchMerged(id_, target, tuple(sources), tuple(lengths)),
            ),
        )

    async def _length(self, segment: str) -> int:
        try:
            return await self._segments.segment_length(segment)
        except ControllerError:
            return 0  # it was merged before

    async def create_table(self, segment: str, key_bytes: int, rollover_bytes: int) -> None:
        await self._segments.create_table(segment, key_bytes, rollover_bytes)
        self._note(
            segment,
            lambda id_: (
                CreateTableSegment(id_, segment, bool(key_bytes), key_bytes, "", rollover_bytes),
                SegmentCreated(id_, segment),
            ),
        )

    async def delete_table(self, segment: str) -> None:
        await self._segments.delete_table(segment)
        self._note(segment, lambda id_: (DeleteTableSegment(id_, segment, False, ""), SegmentDeleted(id_, segment)))

    async def loads(self, segments: Sequence[str]) -> Mapping[str, Load]:
        return await self._segments.loads(segments)
