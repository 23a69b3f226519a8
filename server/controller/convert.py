"""Between the API's messages and the controller's values; one function a shape, no decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from segstore.server.controller.epochs import Segment
from segstore.server.controller.errors import InvalidArgument
from segstore.server.controller.policies import (
    NO_ID,
    Cut,
    ReaderGroupConfig,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfig,
    SubscriberRetention,
    TableConfig,
)
from segstore.wire.controller_api import messages as m

__all__ = [
    "from_reader_group",
    "from_stream_config",
    "from_table",
    "from_transaction_id",
    "group_id",
    "page_token",
    "segment_id",
    "segment_range",
    "segment_ranges",
    "stream_cut",
    "stream_info",
    "to_reader_group",
    "to_stream_config",
    "to_table",
    "to_transaction_id",
]

_MASK = 2**64 - 1


def stream_info(scope: str, stream: str) -> m.StreamInfo:
    return m.StreamInfo(scope=scope, stream=stream)


def segment_id(scope: str, stream: str, identifier: int) -> m.SegmentId:
    return m.SegmentId(streamInfo=stream_info(scope, stream), segmentId=identifier)


def segment_range(scope: str, stream: str, segment: Segment) -> m.SegmentRange:
    return m.SegmentRange(segmentId=segment_id(scope, stream, segment.id), minKey=segment.start, maxKey=segment.end)


def segment_ranges(scope: str, stream: str, segments: Iterable[Segment]) -> list[m.SegmentRange]:
    """Each segment with its keys, in the order given."""
    return [segment_range(scope, stream, segment) for segment in segments]


def page_token(token: str) -> m.ContinuationToken:
    """The token is set even when it is "": clients take its absence for a broken answer."""
    message = m.ContinuationToken(token=token)
    message.SetInParent()
    return message


# Streams ---------------------------------------------------------------------------------------------------------


def to_stream_config(message: m.StreamConfig) -> StreamConfig:
    """What a client configures; a retention type of UNKNOWN means none."""
    scaling = message.scalingPolicy
    retention = message.retentionPolicy
    try:
        return StreamConfig(
            scaling=ScalingPolicy(
                ScalingType(scaling.scaleType), scaling.targetRate, scaling.scaleFactor, scaling.minNumSegments
            ),
            retention=RetentionPolicy(
                RetentionType(retention.retentionType), retention.retentionParam, retention.retentionMax
            )
            if retention.retentionType
            else None,
            tags=tuple(sorted(set(message.tags.tag))),
            timestamp_aggregation_timeout_ms=message.timestampAggregationTimeout,
            rollover_bytes=message.rolloverSizeBytes,
        )
    except ValueError as error:
        raise InvalidArgument(f"this is no stream configuration: {error}") from error


def from_stream_config(scope: str, stream: str, config: StreamConfig) -> m.StreamConfig:
    """Stream info, scaling policy and tags are always set, as clients unwrap them; the retention if there is one."""
    message = m.StreamConfig(
        streamInfo=stream_info(scope, stream),
        scalingPolicy=m.ScalingPolicy(
            scaleType=config.scaling.kind,
            targetRate=config.scaling.target_rate,
            scaleFactor=config.scaling.factor,
            minNumSegments=config.scaling.min_segments,
        ),
        tags=m.Tags(tag=config.tags),
        timestampAggregationTimeout=config.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=config.rollover_bytes,
    )
    if config.retention is not None:
        message.retentionPolicy.CopyFrom(
            m.RetentionPolicy(
                retentionType=config.retention.kind,
                retentionParam=config.retention.limit,
                retentionMax=config.retention.maximum,
            )
        )
    return message


# Transactions ----------------------------------------------------------------------------------------------------


def to_transaction_id(message: m.TxnId) -> UUID:
    return UUID(int=(message.highBits & _MASK) << 64 | (message.lowBits & _MASK))


def from_transaction_id(identifier: UUID) -> m.TxnId:
    return m.TxnId(highBits=_signed(identifier.int >> 64), lowBits=_signed(identifier.int & _MASK))


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


# Reader groups ---------------------------------------------------------------------------------------------------


def group_id(text: str) -> str:
    """The id of a reader group as it is written here; "" means none yet."""
    try:
        return str(UUID(text or NO_ID))
    except ValueError as error:
        raise InvalidArgument(f"{text[:80]!r} is no id of a reader group") from error


def to_reader_group(message: m.ReaderGroupConfiguration) -> ReaderGroupConfig:
    """What a client configures; an empty id means none yet."""
    try:
        return ReaderGroupConfig(
            group_id=group_id(message.readerGroupId),
            generation=message.generation,
            refresh_ms=message.groupRefreshTimeMillis,
            checkpoint_interval_ms=message.automaticCheckpointIntervalMillis,
            max_outstanding_checkpoints=message.maxOutstandingCheckpointRequest,
            retention=SubscriberRetention(message.retentionType),
            starting_cuts=_cuts(message.startingStreamCuts),
            ending_cuts=_cuts(message.endingStreamCuts),
            rollover_bytes=message.rolloverSizeBytes,
        )
    except ValueError as error:
        raise InvalidArgument(f"this is no configuration of a reader group: {error}") from error


def from_reader_group(scope: str, name: str, config: ReaderGroupConfig) -> m.ReaderGroupConfiguration:
    return m.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName=name,
        groupRefreshTimeMillis=config.refresh_ms,
        automaticCheckpointIntervalMillis=config.checkpoint_interval_ms,
        maxOutstandingCheckpointRequest=config.max_outstanding_checkpoints,
        retentionType=config.retention,
        generation=config.generation,
        readerGroupId=config.group_id,
        startingStreamCuts=_stream_cuts(config.starting_cuts),
        endingStreamCuts=_stream_cuts(config.ending_cuts),
        rolloverSizeBytes=config.rollover_bytes,
    )


def stream_cut(full_name: str, cut: Mapping[int, int]) -> m.StreamCut:
    scope, _, stream = full_name.partition("/")
    return m.StreamCut(streamInfo=stream_info(scope, stream), cut=cut)


def _cuts(messages: Iterable[m.StreamCut]) -> dict[str, Cut]:
    return {f"{each.streamInfo.scope}/{each.streamInfo.stream}": dict(each.cut) for each in messages}


def _stream_cuts(cuts: Mapping[str, Cut]) -> list[m.StreamCut]:
    return [stream_cut(full_name, cut) for full_name, cut in cuts.items()]


# Key-value tables ------------------------------------------------------------------------------------------------


def to_table(message: m.KeyValueTableConfig) -> TableConfig:
    return TableConfig(
        partitions=message.partitionCount,
        primary_key_bytes=message.primaryKeyLength,
        secondary_key_bytes=message.secondaryKeyLength,
        rollover_bytes=message.rolloverSizeBytes,
    )


def from_table(scope: str, name: str, config: TableConfig) -> m.KeyValueTableConfig:
    return m.KeyValueTableConfig(
        scope=scope,
        kvtName=name,
        partitionCount=config.partitions,
        primaryKeyLength=config.primary_key_bytes,
        secondaryKeyLength=config.secondary_key_bytes,
        rolloverSizeBytes=config.rollover_bytes,
    )
