"""The endpoints for clients, and their open connections: of a store of this process, of a tap before a store, or of a
replay.

The routes about addresses, connections and counters use these protocols, so they are the same for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import msgspec

from segstore.server.connection import Connection, ConnectionHub, SessionEnding, StoreService
from segstore.wire.endpoint import Endpoint

if TYPE_CHECKING:
    from segstore.server.config import StoreSettings
    from segstore.server.replay import TraceServer
    from segstore.server.store import SegmentStore


class OpenConnection(Protocol):
    """A connection of a client. number: None if connections are not numbered. writers, waiting_reads: None on a tap."""

    @property
    def number(self) -> int | None: ...
    @property
    def peer(self) -> str: ...
    @property
    def admin(self) -> bool: ...
    @property
    def writers(self) -> int | None: ...
    @property
    def waiting_reads(self) -> int | None: ...
    @property
    def bytes_in(self) -> int: ...
    @property
    def bytes_out(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...

    def disconnect(self, why: str, *, drain: bool) -> None:
        """Closes the connection. drain: sends the queued bytes first."""


class Front(Protocol):
    """The ports for the clients of one store.

    number: of the store. upstream: the store behind a tap; None for a store of this process. serving: False once it is
    stopped.
    """

    @property
    def number(self) -> int: ...
    @property
    def address(self) -> Endpoint | None: ...
    @property
    def admin_address(self) -> Endpoint | None: ...
    @property
    def upstream(self) -> Endpoint | None: ...
    @property
    def serving(self) -> bool: ...
    @property
    def connections(self) -> Iterable[OpenConnection]: ...

    def counters(self) -> tuple[dict[str, int], dict[str, int]]:
        """Returns totals, which only grow, and current values, by name."""


class TapFronts(Protocol):
    """A tap. fronts: its ports, one for each store that it knows of. tls: whether they use TLS."""

    @property
    def fronts(self) -> Iterable[Front]: ...
    @property
    def tls(self) -> bool: ...


class ClusterControl(Protocol):
    """Controls the stores of one process, by number. Methods raise RuntimeError for impossible requests."""

    async def move(self, container: int, to: int) -> None: ...
    async def stop_store(self, number: int, *, drain_s: float = 0.0) -> None: ...
    async def start_store(self, number: int) -> None: ...
    def expire_session(self, number: int) -> None: ...
    def cut_session(self, number: int) -> None: ...
    def heal_session(self, number: int) -> None: ...


class Store(Protocol):
    """A running segment store. number: in its cluster. address: None until it listens, as `admin_address`."""

    settings: StoreSettings
    number: int
    store: SegmentStore
    service: StoreService
    hub: ConnectionHub
    address: Endpoint | None
    admin_address: Endpoint | None


class _OfStore:
    """An open connection of a store."""

    def __init__(self, connection: Connection) -> None:
        session = connection.session
        self.number = connection.number
        self.peer = session.peer
        self.admin = connection.admin
        self.writers: int | None = session.writer_count
        self.waiting_reads: int | None = len(session.reads)
        self.bytes_in = connection.bytes_in
        self.bytes_out = connection.bytes_out
        self.held_bytes = connection.held_bytes
        self._connection = connection

    def disconnect(self, why: str, *, drain: bool) -> None:
        if drain:
            self._connection.end(why, SessionEnding.FLUSHED)
        else:
            self._connection.cut(why)


class StoreFront:
    """The ports of a store of this process."""

    upstream = None

    def __init__(self, store: Store) -> None:
        self.number = store.number
        self.address = store.address
        self.admin_address = store.admin_address
        self.serving = store.address is not None and not store.hub.closing
        self._store = store

    @property
    def connections(self) -> Iterable[OpenConnection]:
        return [_OfStore(connection) for connection in self._store.hub.connections]

    def counters(self) -> tuple[dict[str, int], dict[str, int]]:
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
    connections: Iterable[OpenConnection] = ()

    def __init__(self, replay: TraceServer) -> None:
        self.address = Endpoint(replay.host, replay.port)
        self.upstream = None if replay.upstream is None else Endpoint(*replay.upstream)
        self._replay = replay

    def counters(self) -> tuple[dict[str, int], dict[str, int]]:
        replay = self._replay
        totals = {"connections": replay.connections, "requests": replay.requests, "problems": len(replay.problems)}
        return totals, {"connections_open": len(replay.open_connections)}
