"""The ports for the clients of one store, and their open connections: of a store of this process or of a replay.

A tap's `Door` and `Link` have the same attributes, so the routes about addresses, connections and counters are the same
for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from segstore.server.connection import Connection, SessionEnding
from segstore.wire.endpoint import Endpoint

if TYPE_CHECKING:
    from segstore.server.node import SegmentStoreServer
    from segstore.server.replay import TraceServer
    from segstore.server.tap import Door


class OpenConnection:
    """An open connection of a store. number: None if connections are not numbered."""

    def __init__(self, connection: Connection) -> None:
        session = connection.session
        self.number = connection.number
        self.peer = session.peer
        self.admin = connection.admin
        self.writers = session.writer_count
        self.waiting_reads = len(session.reads)
        self.bytes_in = connection.bytes_in
        self.bytes_out = connection.bytes_out
        self.held_bytes = connection.held_bytes
        self._connection = connection

    def disconnect(self, why: str, *, drain: bool) -> None:
        """Closes the connection. drain: sends the queued bytes first."""
        if drain:
            self._connection.end(why, SessionEnding.FLUSHED)
        else:
            self._connection.cut(why)


class StoreFront:
    """The ports of a store of this process.

    Attributes:
        number: of the store.
        upstream: the store behind a tap; None here.
        serving: False once the store is stopped.
    """

    upstream = None

    def __init__(self, store: SegmentStoreServer) -> None:
        self.number = store.number
        self.address = store.address
        self.admin_address = store.admin_address
        self.serving = store.address is not None and not store.hub.closing
        self._store = store

    @property
    def connections(self) -> list[OpenConnection]:
        return [OpenConnection(connection) for connection in self._store.hub.connections]

    def counters(self) -> tuple[dict[str, int], dict[str, int]]:
        """Returns totals, which only grow, and current values, by name."""
        store = self._store
        counted: dict[str, int] = msgspec.structs.asdict(store.service.counters)
        containers = store.store.containers.values()
        indexes = sum(container.index_count for container in containers)
        now = {
            "connections_open": counted.pop("connections_open"),
            "outstanding_bytes": store.hub.outstanding_bytes,
            "index_segments": indexes,
            "segments": sum(len(container.segments) for container in containers) - indexes,
        }
        return counted, now


class ReplayFront:
    """The port of a replay, shown as its only store. Its connections are not listed."""

    number = 0
    admin_address = None
    serving = True
    connections: tuple[OpenConnection, ...] = ()

    def __init__(self, replay: TraceServer) -> None:
        self.address = Endpoint(replay.host, replay.port)
        self.upstream = replay.upstream
        self._replay = replay

    def counters(self) -> tuple[dict[str, int], dict[str, int]]:
        replay = self._replay
        totals = {"connections": replay.connections, "requests": replay.requests, "problems": len(replay.problems)}
        return totals, {"connections_open": len(replay.open_connections)}


Front: TypeAlias = "StoreFront | ReplayFront | Door"
