"""Conversions between protobuf messages and the controller's values, one function for each type."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from segstore.server.controller import policies as p
from segstore.server.controller.errors import InvalidArgument, Malformed
from segstore.server.controller.policies import Cut
from segstore.server.controller.state import KeyRange, StreamSegment
from segstore.wire.controller_api import messages as m

_HALVES: Final = struct.Struct(">qq")

_TAGS_MAX: Final = 127
_TAG_CHARACTERS_MAX: Final = 255
"""Pravega's limits: it refuses the 128th tag, and the 256th character of a tag."""


def stream_info(scope: str, stream: str) -> m.StreamInfo:
    return m.StreamInfo(scope=scope, stream=stream)


def segment_id(scope: str, stream: str, identifier: int) -> m.SegmentId:
    return m.SegmentId(streamInfo=stream_info(scope, stream), segmentId=identifier)


def segment_range(scope: str, stream: str, segment: StreamSegment) -> m.SegmentRange:
    return m.SegmentRange(segmentId=segment_id(scope, stream, segment.id), minKey=segment.start, maxKey=segment.end)


def segment_ranges(scope: str, stream: str, segments: Iterable[StreamSegment]) -> list[m.SegmentRange]:
    return [segment_range(scope, stream, segment) for segment in segments]


def page_token(token: str) -> m.ContinuationToken:
    """Returns a message that sets the token even if it is "", because clients treat its absence as an error."""
    message = m.ContinuationToken(token=token)
    message.SetInParent()
    return message


# Streams ---------------------------------------------------------------------------------------------------------


def to_stream_config(message: m.StreamConfig) -> p.StreamConfig:
    """Returns a stream's configuration; a retention type of UNKNOWN means no retention."""
    scaling = message.scalingPolicy
    retention = message.retentionPolicy
    if message.rolloverSizeBytes < 0:
        raise Malformed(f"the rollover size of {message.rolloverSizeBytes} bytes is negative")
    if len(message.tags.tag) > _TAGS_MAX:
        raise Malformed(f"{len(message.tags.tag)} tags are more than {_TAGS_MAX}")
    for tag in message.tags.tag:
        if len(tag) > _TAG_CHARACTERS_MAX:
            raise Malformed(f"a tag of {len(tag)} characters is longer than {_TAG_CHARACTERS_MAX}: {tag[:80]!r}…")
    try:
        return p.StreamConfig(
            scaling=p.ScalingPolicy(
                p.ScalingType(scaling.scaleType), scaling.targetRate, scaling.scaleFactor, scaling.minNumSegments
            ),
            retention=p.RetentionPolicy(
                p.RetentionType(retention.retentionType), retention.retentionParam, retention.retentionMax
            )
            if retention.retentionType
            else None,
            tags=tuple(sorted(set(message.tags.tag))),
            timestamp_aggregation_timeout_ms=message.timestampAggregationTimeout,
            rollover_bytes=message.rolloverSizeBytes,
        )
    except ValueError as error:
        raise Malformed(f"this is not a stream configuration: {error}") from error


def from_stream_config(scope: str, stream: str, config: p.StreamConfig) -> m.StreamConfig:
    """Sets stream info, scaling policy and tags always, because clients read them; sets retention only if present."""
    scaling, retention = config.scaling, config.retention
    return m.StreamConfig(
        streamInfo=stream_info(scope, stream),
        scalingPolicy=m.ScalingPolicy(
            scaleType=scaling.kind,
            targetRate=scaling.target_rate,
            scaleFactor=scaling.factor,
            minNumSegments=scaling.min_segments,
        ),
        retentionPolicy=None
        if retention is None
        else m.RetentionPolicy(
            retentionType=retention.kind, retentionParam=retention.limit, retentionMax=retention.maximum
        ),
        tags=m.Tags(tag=config.tags),
        timestampAggregationTimeout=config.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=config.rollover_bytes,
    )


def to_key_ranges(messages: Iterable[m.ScaleRequest.KeyRangeEntry]) -> list[KeyRange]:
    """Returns new key ranges in the order in which new segments are numbered.

    It is the order of a Java hash map keyed by their starts: by bucket, then by insertion. Pravega's controller uses
    such a map, so the same ranges get the same numbers here.
    """
    ranges = [(keys.start, keys.end) for keys in messages]
    if len(dict(ranges)) < len(ranges):
        raise Malformed("two of the new key ranges have the same start")
    buckets = 16
    while len(ranges) > buckets * 3 // 4:
        buckets *= 2
    return sorted(ranges, key=lambda keys: _spread_hash(keys[0]) & (buckets - 1))


def _spread_hash(value: float) -> int:
    bits = int.from_bytes(struct.pack(">d", value))
    folded = (bits >> 32 ^ bits) & 0xFFFFFFFF
    return folded ^ folded >> 16


# Transactions ----------------------------------------------------------------------------------------------------


def to_transaction_id(message: m.TxnId) -> UUID:
    return UUID(bytes=_HALVES.pack(message.highBits, message.lowBits))


def from_transaction_id(identifier: UUID) -> m.TxnId:
    high, low = _HALVES.unpack(identifier.bytes)
    return m.TxnId(highBits=high, lowBits=low)


# Reader groups ---------------------------------------------------------------------------------------------------


def to_reader_group(message: m.ReaderGroupConfiguration) -> p.ReaderGroupConfig:
    """Returns a reader group's configuration. Refuses the same values as Pravega's `ReaderGroupConfig`.

    The client's rollover size is ignored, as in Pravega.
    """
    if message.maxOutstandingCheckpointRequest < 1:
        raise Malformed(f"a reader group needs at least 1 checkpoint, not {message.maxOutstandingCheckpointRequest}")
    starting, ending = _cuts(message.startingStreamCuts), _cuts(message.endingStreamCuts)
    if not starting:
        raise Malformed("the reader group reads no stream")
    for stream, start in starting.items():
        _check_order(stream, start, ending.get(stream, {}))
    try:
        return p.ReaderGroupConfig(
            group_id=str(p.parse_group_id(message.readerGroupId)),
            generation=message.generation,
            refresh_ms=message.groupRefreshTimeMillis,
            checkpoint_interval_ms=message.automaticCheckpointIntervalMillis,
            max_outstanding_checkpoints=message.maxOutstandingCheckpointRequest,
            retention=p.SubscriberRetention(message.retentionType),
            starting_cuts=starting,
            ending_cuts=ending,
        )
    except (ValueError, InvalidArgument) as error:
        raise Malformed(f"this is not a reader group configuration: {error}") from error


def from_reader_group(scope: str, name: str, config: p.ReaderGroupConfig) -> m.ReaderGroupConfiguration:
    return m.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName=name,
        groupRefreshTimeMillis=config.refresh_ms,
        automaticCheckpointIntervalMillis=config.checkpoint_interval_ms,
        maxOutstandingCheckpointRequest=config.max_outstanding_checkpoints,
        retentionType=config.retention,
        generation=config.generation,
        readerGroupId=config.group_id,
        startingStreamCuts=[_stream_cut(stream, cut) for stream, cut in config.starting_cuts.items()],
        endingStreamCuts=[_stream_cut(stream, cut) for stream, cut in config.ending_cuts.items()],
    )


def _stream_cut(full_name: str, cut: Mapping[int, int]) -> m.StreamCut:
    scope, _, stream = full_name.partition("/")
    return m.StreamCut(streamInfo=stream_info(scope, stream), cut=cut)


def _cuts(messages: Iterable[m.StreamCut]) -> dict[str, Cut]:
    cuts: dict[str, Cut] = {}
    for message in messages:
        scope, stream = message.streamInfo.scope, message.streamInfo.stream
        if not scope or not stream:
            raise Malformed(f"a stream cut of {scope}/{stream}, which cannot be the name of a stream")
        if f"{scope}/{stream}" in cuts:
            raise Malformed(f"two stream cuts of {scope}/{stream}")
        cuts[f"{scope}/{stream}"] = dict(message.cut)
    return cuts


def _check_order(stream: str, start: Cut, end: Cut) -> None:
    """Refuses a start after the end, as far as the cuts show without their stream; an empty cut is unbounded."""
    if not start or not end:
        return
    behind = any(
        end[segment] != -1 and (start[segment] == -1 or start[segment] > end[segment]) for segment in start.keys() & end
    )
    if behind or min(start) > min(end) or max(start) > max(end):
        raise Malformed(f"the stream cut from which {stream} is read lies behind the one up to which it is")


# Key-value tables ------------------------------------------------------------------------------------------------


def to_table(message: m.KeyValueTableConfig) -> p.TableConfig:
    return p.TableConfig(
        partitions=message.partitionCount,
        primary_key_bytes=message.primaryKeyLength,
        secondary_key_bytes=message.secondaryKeyLength,
        rollover_bytes=message.rolloverSizeBytes,
    )


def from_table(scope: str, name: str, config: p.TableConfig) -> m.KeyValueTableConfig:
    """Returns a table's configuration without its rollover size, which Pravega does not report either."""
    return m.KeyValueTableConfig(
        scope=scope,
        kvtName=name,
        partitionCount=config.partitions,
        primaryKeyLength=config.primary_key_bytes,
        secondaryKeyLength=config.secondary_key_bytes,
    )
