"""The client for programs without asyncio: scripts, notebooks, threads.

    with connect("tcp://127.0.0.1:9090") as pravega:
        with pravega.event_writer("scope", "stream") as writer:
            writer.write(b"…", routing_key="sensor-7")

The classes have the names and methods of those of `segstore.client`, and `close` for `aclose`; values and
errors are the same. The calls run in the event loop of a thread that all clients of the process share. They
may come from any thread, also from one that runs an event loop. Ctrl-C cancels the pending call.
"""

from segstore import client as _client
from segstore.client import controller as _controller
from segstore.client import tables as _tables
from segstore.client.sync.proxies import connect
from segstore.client.sync.proxies import synchronous as _synchronous

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

_asyncio = vars(_controller) | vars(_tables) | vars(_client)
globals().update({_name: _synchronous(_asyncio[_name]) for _name in __all__ if _name != "connect"})
