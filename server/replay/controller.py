"""A controller for clients that a trace answers: it knows the streams that the trace names.

Clients of Pravega ask a controller first. This is the controller that runs beside a store, but its requests about
segments succeed without effect: the trace has their outcome. Scopes and streams come from the names in the trace, each
with the segments of its first epoch and equal key ranges, which is all that names contain; transaction ids are assigned
as in the trace. Creating a known stream reports that it exists; any other stream is created.

Refused: nothing. Unknown, because names do not contain them: streams with segments of later epochs only, the ranges of
a scaled stream, configurations, tags, stream cuts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final, cast

from segstore.server.clock import SteadyTime
from segstore.server.controller import REPLIES, Controller, ScalingPolicy, SegmentAdmin, StreamConfig
from segstore.server.controller.state import TABLE_SUFFIX, Core, State
from segstore.server.controller.state import operations as op
from segstore.wire import Command, WireError, decode
from segstore.wire import commands as c
from segstore.wire.blocks import Append
from segstore.wire.endpoint import Endpoint
from segstore.wire.names import SegmentName
from segstore.wire.trace import segments_of

if TYPE_CHECKING:
    from segstore.server.replay.script import Step

_LAST_NUMBER: Final = 2**63 - 1
_MOST_SEGMENTS: Final = 20_000
"""Maximum number of segments of all streams together. It is derived from numbers in names, which may be arbitrary."""


def replay_controller(steps: Sequence[Step], host: str, port: int) -> Controller:
    """A controller that sends clients to host:port, where a `TraceServer` answers from these steps."""
    segments = dict.fromkeys(name for step in steps for name in segments_of(step.item))
    names = [SegmentName.parse(name) for name in segments if name]
    transactions = list(dict.fromkeys(name.transaction_id for name in names if name.transaction_id is not None))
    state, now_ms = State(), SteadyTime().now_ms()
    sizes: dict[tuple[str, str], int] = {}
    for segment in names:
        scope, stream, number = segment.scope, segment.stream, segment.number
        if scope is None or stream is None or number is None or segment.epoch or number >= _MOST_SEGMENTS:
            continue
        if stream.startswith("_") or stream.endswith(TABLE_SUFFIX):
            continue  # internal streams, created with the streams they belong to
        sizes[scope, stream] = max(sizes.get((scope, stream), 0), number + 1)
    total = 0
    for (scope, stream), number in sizes.items():
        if total + number > _MOST_SEGMENTS:
            continue
        total += number
        if scope not in state.scopes:
            op.ScopeCreated(scope, now_ms).apply(state)
        op.StreamCreated(scope, stream, StreamConfig(scaling=ScalingPolicy(min_segments=number)), 0, now_ms).apply(
            state
        )
    known = [transaction.int & (1 << 96) - 1 for transaction in transactions]
    others = count(1 + max((number & (1 << 64) - 1 for number in known), default=0))
    admin = ReplayedSegments(Endpoint(host, port), _lengths(steps))
    return Controller(Core(admin, state=state, transaction_ids=chain(known, others)))


def _lengths(steps: Iterable[Step]) -> dict[str, int]:
    """The final length of each segment, as far as the trace shows it."""
    lengths: dict[str, int] = {}
    for step in steps:
        for scripted in step.replies:
            try:
                reply = decode(scripted.frame)
            except WireError:
                continue  # it contains no length
            match reply:
                case c.DataAppended() if isinstance(step.item, Append):
                    name, length = step.item.segment, reply.current_segment_write_offset
                case c.StreamSegmentInfo():
                    name, length = reply.segment_name, reply.write_offset
                case c.SegmentRead():
                    name, length = reply.segment, reply.offset + len(reply.data)
                case c.SegmentsBatchMerged(new_target_write_offset=offsets) if offsets:
                    name, length = reply.target, offsets[-1]
                case _:
                    continue
            lengths[name] = max(lengths.get(name, 0), length)
    return lengths


class ReplayedSegments(SegmentAdmin):
    """`SegmentAdmin` for segments that exist only in a trace: every request succeeds without effect."""

    def __init__(self, endpoint: Endpoint, lengths: Mapping[str, int]) -> None:
        self._endpoint = endpoint
        self._lengths = lengths

    def owner_of(self, segment: str) -> Endpoint:
        return self._endpoint

    async def ask(self, segment: str, did: str, request: Command) -> Command:
        match request:
            case c.GetStreamSegmentInfo():
                return c.StreamSegmentInfo(0, segment, True, False, False, 0, self._lengths.get(segment, 0), 0)
            case c.SetupAppend():
                return c.AppendSetup(0, segment, request.writer_id, _LAST_NUMBER)
            case c.MergeSegmentsBatch():
                return c.SegmentsBatchMerged(0, segment, request.source_segment_ids, ())
            case c.GetSegmentAttribute():
                return c.NoSuchSegment(0, segment, "", -1)
            case _:
                done: Any = REPLIES[type(request)][0]
                return cast("Command", done(0, segment))
