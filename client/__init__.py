"""An asyncio client for Pravega that pools its connections.

    async with connect("tcp://127.0.0.1:9090") as pravega:
        async with pravega.event_writer("scope", "stream") as writer:
            await writer.write(b"…", routing_key="sensor-7")
        async with pravega.event_reader("scope", "stream", from_="head") as events:
            async for event in events:
                print(event.data)

For work on the protocol below streams there are `ConnectionPool` and its flows, `RawClient`, `SegmentRequests`,
`SegmentWriter` and `SegmentReader`. `segstore.client.errors` sorts errors by the caller's next step.
"""

from segstore.client.client import Client, connect
from segstore.client.cluster import Cluster
from segstore.client.config import ClientSettings
from segstore.client.connection import (
    Basic,
    Bearer,
    ConnectionPool,
    Credentials,
    Endpoint,
    FixedStore,
    Locations,
    PoolMetrics,
    RawClient,
    SegmentRequests,
)
from segstore.client.controller import (
    CutError,
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
    StreamCut,
    TableConfig,
    TransactionStatus,
)
from segstore.client.errors import ClientError, Final, Retriable, SegmentOver, Unauthenticated
from segstore.client.groups import (
    Checkpoint,
    CheckpointTaken,
    GroupChange,
    GroupEvent,
    GroupListener,
    GroupMetrics,
    GroupReader,
    Position,
    ReaderGroup,
    SegmentEnded,
    SegmentLag,
    SegmentsAcquired,
    SegmentsReleased,
)
from segstore.client.retry import Backoff
from segstore.client.segment import Chunk, SegmentReader, SegmentWriter, SegmentWriterStats, WriterStats, add_up
from segstore.client.serializers import Deserialized, JsonSerializer, MsgspecSerializer, Serializer
from segstore.client.stream import (
    ByteReader,
    ByteWriter,
    Entry,
    EventRange,
    EventRangeReader,
    EventReader,
    EventWriter,
    HashedKey,
    PartialRoundRobin,
    Revision,
    RevisionedStream,
    RoundRobin,
    Router,
    SinglePartition,
    StateRules,
    StateSynchronizer,
    StreamEvent,
    Transaction,
    TransactionWriter,
)
from segstore.client.tables import KeyValueTable, TableEntry, TableKey, Version
from segstore.client.watermarks import TimeWindow, TimeWindows

__all__ = [
    "Backoff",
    "Basic",
    "Bearer",
    "ByteReader",
    "ByteWriter",
    "Checkpoint",
    "CheckpointTaken",
    "Chunk",
    "Client",
    "ClientError",
    "ClientSettings",
    "Cluster",
    "ConnectionPool",
    "Credentials",
    "CutError",
    "Deserialized",
    "Endpoint",
    "Entry",
    "EventRange",
    "EventRangeReader",
    "EventReader",
    "EventWriter",
    "Final",
    "FixedStore",
    "GroupChange",
    "GroupEvent",
    "GroupListener",
    "GroupMetrics",
    "GroupReader",
    "HashedKey",
    "JsonSerializer",
    "KeyValueTable",
    "Locations",
    "MsgspecSerializer",
    "PartialRoundRobin",
    "PoolMetrics",
    "Position",
    "RawClient",
    "ReaderGroup",
    "RetentionPolicy",
    "RetentionType",
    "Retriable",
    "Revision",
    "RevisionedStream",
    "RoundRobin",
    "Router",
    "ScaleType",
    "ScalingPolicy",
    "SegmentEnded",
    "SegmentLag",
    "SegmentOver",
    "SegmentReader",
    "SegmentRequests",
    "SegmentWriter",
    "SegmentWriterStats",
    "SegmentsAcquired",
    "SegmentsReleased",
    "Serializer",
    "SinglePartition",
    "StateRules",
    "StateSynchronizer",
    "StreamConfig",
    "StreamCut",
    "StreamEvent",
    "TableConfig",
    "TableEntry",
    "TableKey",
    "TimeWindow",
    "TimeWindows",
    "Transaction",
    "TransactionStatus",
    "TransactionWriter",
    "Unauthenticated",
    "Version",
    "WriterStats",
    "add_up",
    "connect",
]
