"""The pooled asyncio client of Pravega.

    async with connect("tcp://127.0.0.1:9090") as pravega:
        async with pravega.event_writer("scope", "stream") as writer:
            await writer.write(b"…", routing_key="sensor-7")

Below streams, for work on the protocol itself: `ConnectionPool` and its flows, `RawClient`, `SegmentRequests`,
`SegmentWriter`, `SegmentReader`. Errors are in `segstore.client.errors`, by what the caller can do.
"""

from segstore.client.client import Client, connect
from segstore.client.config import ClientSettings
from segstore.client.connection.auth import Basic, Bearer, Credentials
from segstore.client.connection.locations import FixedStore, Locations
from segstore.client.connection.pool import ConnectionPool, Endpoint, PoolMetrics
from segstore.client.connection.raw import RawClient, SegmentRequests
from segstore.client.controller.controller import TableConfig, TransactionStatus
from segstore.client.errors import ClientError, Final, Retriable, SegmentOver, Unauthenticated
from segstore.client.groups.group import ReaderGroup
from segstore.client.groups.reader import GroupEvent, GroupReader, Position
from segstore.client.retry import Backoff
from segstore.client.segment.reader import Chunk, SegmentReader
from segstore.client.segment.stats import SegmentWriterStats, WriterStats, add_up
from segstore.client.segment.writer import SegmentWriter
from segstore.client.stream.byte_stream import ByteReader, ByteWriter
from segstore.client.stream.event_reader import EventReader, StreamEvent
from segstore.client.stream.event_writer import EventWriter
from segstore.client.stream.revisioned import Entry, Revision, RevisionedStream
from segstore.client.stream.routers import HashedKey, PartialRoundRobin, RoundRobin, Router, SinglePartition
from segstore.client.stream.synchronizer import StateRules, StateSynchronizer
from segstore.client.stream.transactions import Transaction, TransactionWriter
from segstore.client.tables.table import KeyValueTable, TableEntry, TableKey, Version

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
