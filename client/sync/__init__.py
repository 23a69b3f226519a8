"""The client for programs without asyncio: scripts, notebooks, threads.

    with connect("tcp://127.0.0.1:9090") as pravega:
        with pravega.event_writer("scope", "stream") as writer:
            writer.write(b"…", routing_key="sensor-7")

The classes have the names and methods of those of `segstore.client`, and `close` for `aclose`; values and
errors are the same. The calls run in the event loop of a thread that all clients of the process share. They
may come from any thread, also from one that runs an event loop. Ctrl-C cancels the pending call.

Written by tools/make_sync.py.
"""

from segstore.client.sync.batch import EventRangeReader
from segstore.client.sync.client import Client, connect
from segstore.client.sync.controller import Controller
from segstore.client.sync.groups import GroupReader, ReaderGroup
from segstore.client.sync.serializers import Deserialized
from segstore.client.sync.stream import (
    ByteReader,
    ByteWriter,
    EventReader,
    EventWriter,
    RevisionedStream,
    StateSynchronizer,
    Transaction,
    TransactionWriter,
)
from segstore.client.sync.tables import KeyValueTable, TableIterator
from segstore.client.sync.watermarks import TimeWindows

__all__ = [
    "ByteReader",
    "ByteWriter",
    "Client",
    "Controller",
    "Deserialized",
    "EventRangeReader",
    "EventReader",
    "EventWriter",
    "GroupReader",
    "KeyValueTable",
    "ReaderGroup",
    "RevisionedStream",
    "StateSynchronizer",
    "TableIterator",
    "TimeWindows",
    "Transaction",
    "TransactionWriter",
    "connect",
]
