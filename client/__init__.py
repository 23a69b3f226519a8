"""The pooled asyncio client of Pravega.

    async with connect("tcp://127.0.0.1:9090") as pravega:
        async with pravega.event_writer("scope", "stream") as writer:
            await writer.write(b"…", routing_key="sensor-7")

Below streams, for work on the protocol itself: `ConnectionPool` and its flows, `RawClient`, `SegmentRequests`,
`SegmentWriter`, `SegmentReader`. Errors are in `segstore.client.errors`, by what the caller can do.
"""

from segstore.client.auth import Basic, Bearer, Credentials
from segstore.client.byte_stream import ByteReader, ByteWriter
from segstore.client.config import ClientSettings
from segstore.client.controller import TableConfig, TransactionStatus
from segstore.client.errors import ClientError, Final, Retriable, SegmentOver, Unauthenticated
from segstore.client.event_reader import EventReader, StreamEvent
from segstore.client.event_writer import EventWriter
from segstore.client.locations import FixedStore, Locations
from segstore.client.partitioned import HashedKey, PartialRoundRobin, RoundRobin, Router, SinglePartition
from segstore.client.pool import ConnectionPool, Endpoint, PoolMetrics
from segstore.client.raw import RawClient, SegmentRequests
from segstore.client.reader_group import ReaderGroup
from segstore.client.reader_group_reader import GroupEvent, GroupReader, Position
from segstore.client.retry import Backoff
from segstore.client.revisioned import Entry, Revision, RevisionedStream
from segstore.client.segment_reader import Chunk, SegmentReader
from segstore.client.segment_writer import SegmentWriter
from segstore.client.streams import Client, connect
from segstore.client.synchronizer import StateRules, StateSynchronizer
from segstore.client.tables import KeyValueTable, TableEntry, TableKey, Version
from segstore.client.transactions import Transaction, TransactionWriter
from segstore.client.writer_stats import SegmentWriterStats, WriterStats, add_up

__all__ = [
    "Backoff",
    "Basic",
    "Bearer",
    "ByteReader",
    "ByteWriter",
    "Chunk",
    "Client",
    "ClientError",
    "ClientSettings",
    "ConnectionPool",
    "Credentials",
    "Endpoint",
    "Entry",
    "EventReader",
    "EventWriter",
    "Final",
    "FixedStore",
    "GroupEvent",
    "GroupReader",
    "HashedKey",
    "KeyValueTable",
    "Locations",
    "PartialRoundRobin",
    "PoolMetrics",
    "Position",
    "RawClient",
    "ReaderGroup",
    "Retriable",
    "Revision",
    "RevisionedStream",
    "RoundRobin",
    "Router",
    "SegmentOver",
    "SegmentReader",
    "SegmentRequests",
    "SegmentWriter",
    "SegmentWriterStats",
    "SinglePartition",
    "StateRules",
    "StateSynchronizer",
    "StreamEvent",
    "TableConfig",
    "TableEntry",
    "TableKey",
    "Transaction",
    "TransactionStatus",
    "TransactionWriter",
    "Unauthenticated",
    "Version",
    "WriterStats",
    "add_up",
    "connect",
]
