"""The top-level Pravega client: connects to a controller and opens readers and writers of streams.

Invariant: all objects that a client creates share one connection pool and one set of controller channels. Close these
objects first: closing the client closes the pool and the channels.
"""

from __future__ import annotations

import errno
import ssl
from codecs import BOM_UTF8
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import urlsplit

from segstore.client.config import ClientSettings
from segstore.client.connection import ConnectionPool, Credentials, Endpoint, PoolMetrics, SegmentRequests
from segstore.client.controller import Access, Cluster, Controller, ControllerLocations
from segstore.client.groups import GroupEnd, GroupForm, GroupRetention, GroupStart, ReaderGroup
from segstore.client.lifecycle import ClosedAfter, not_open
from segstore.client.segment import SegmentReader, SegmentWriter
from segstore.client.stream import (
    ByteReader,
    ByteWriter,
    EventRange,
    EventRangeReader,
    EventReader,
    EventWriter,
    From,
    RevisionedStream,
    Router,
    TransactionWriter,
    event_ranges,
)
from segstore.client.tables import KeyValueTable
from segstore.client.telemetry import ObservedEventWriter, Telemetry, telemetry_of
from segstore.client.watermarks import TimeWindows
from segstore.wire.names import segment_name

if TYPE_CHECKING:
    from segstore.client.controller import ControllerChannels

_DEFAULT_PORT = 9090


def parse_uri(uri: str) -> tuple[list[Endpoint], bool]:
    """Parses a controller URI, `tcp://host:port,host:port` or `tls://…`, into endpoints and whether they use TLS.

    Raises ValueError if the URI is invalid.
    """
    if not isinstance(uri, str):
        raise ValueError(f"a controller address is text, such as tcp://HOST:PORT, not {uri!r:.200}")
    scheme, separator, rest = uri.partition("://")
    if not separator:
        scheme, rest = "tcp", uri
    if scheme not in ("tcp", "tls", "pravega", "pravegas"):
        raise ValueError(f"{uri!r} is not a controller address: the scheme must be tcp or tls")
    endpoints = []
    for part in rest.rstrip("/").split(","):
        try:
            split = urlsplit(f"//{part.strip()}")
            host, port = split.hostname, split.port
        except ValueError as error:
            raise ValueError(f"{part!r} in {uri!r} is not host:port: {error}") from error
        if not host:
            raise ValueError(f"{part!r} in {uri!r} is not host:port")
        endpoints.append(Endpoint(host, _DEFAULT_PORT if port is None else port))
    return endpoints, scheme in ("tls", "pravegas")


class Client(ClosedAfter):
    """A Pravega client, created by `connect`. Use it with `async with`, or call `open` and `aclose`."""

    def __init__(
        self, uri: str, settings: ClientSettings, random: Random | None, credentials: Credentials | None = None
    ) -> None:
        self._endpoints, self._tls = parse_uri(uri)
        self._credentials = credentials
        self._settings = settings
        self._random = random or Random()
        self._pool: ConnectionPool | None = None
        self._channels: ControllerChannels | None = None
        self._controller: Controller | None = None
        self._locations: dict[Access, ControllerLocations] = {}
        self._telemetry: Telemetry | None = None

    def open(self) -> None:
        """Prepares the client; connections are opened on first use.

        Requires a running event loop. Raises OSError if the CA file cannot be read.
        """
        from segstore.client.controller import ControllerChannels  # loads grpc

        settings = self._settings
        self._telemetry = telemetry_of()
        context, roots = None, None
        if self._tls:
            authorities = None
            if settings.tls_ca_file is not None:
                roots = settings.tls_ca_file.read_bytes().removeprefix(BOM_UTF8)  # once
                # An empty text would stand for the system's.
                authorities = roots.decode("ascii", "ignore") or "\n"
            try:
                context = ssl.create_default_context(cadata=authorities)
            except ssl.SSLError as cause:
                raise OSError(
                    errno.EINVAL, "it contains no valid certificate in PEM", str(settings.tls_ca_file)
                ) from cause
        self._pool = ConnectionPool(settings, tls=context, random=self._random)
        self._channels = ControllerChannels(
            self._endpoints,
            settings,
            tls=self._tls,
            tls_roots=roots,
            random=self._random,
            credentials=self._credentials,
            telemetry=self._telemetry,
        )
        self._controller = Controller(self._channels)

    # --- shared parts -----------------------------------------------------------------------------------------------

    @property
    def pool(self) -> ConnectionPool:
        """The pool of connections to stores. Raises Closed unless the client is open."""
        if self._pool is None:
            raise not_open("the client", closed=False)
        return self._pool

    @property
    def controller(self) -> Controller:
        """The controller client, for scopes, streams and segments. Raises Closed unless the client is open."""
        if self._controller is None:
            raise not_open("the client", closed=False)
        return self._controller

    def locations(self, access: Access = "READ_WRITE") -> ControllerLocations:
        """Segment locations and delegation tokens for one kind of access."""
        locations = self._locations.get(access)
        if locations is None:
            locations = self._locations[access] = ControllerLocations(self.controller, access)
        return locations

    def _cluster(self, access: Access) -> Cluster:
        return Cluster(self.pool, self.controller, self.locations(access), self._telemetry)

    def metrics(self) -> PoolMetrics:
        """The pool's metrics, as plain numbers."""
        return self.pool.metrics()

    # --- streams ----------------------------------------------------------------------------------------------------

    def event_writer(
        self,
        scope: str,
        stream: str,
        *,
        lazy_start: bool = False,
        router: Router | None = None,
        name: str | None = None,
    ) -> EventWriter:
        """Returns an unopened event writer; the options are as for `EventWriter`."""
        make = EventWriter if self._telemetry is None else partial(ObservedEventWriter, telemetry=self._telemetry)
        return make(self._cluster("WRITE"), scope, stream, lazy_start=lazy_start, router=router, name=name)

    def event_reader(self, scope: str, stream: str, *, from_: From = "head") -> EventReader:
        """Returns an unopened reader of all of a stream's events.

        from_: "head", "tail", or a cut: segment id → offset.
        """
        return EventReader(self._cluster("READ"), scope, stream, from_=from_)

    async def event_ranges(
        self, scope: str, stream: str, *, from_: From = "head", to: From = "tail"
    ) -> list[EventRange]:
        """Returns the segment ranges between two positions, for `range_reader`, in any process.

        from_, to: "head", "tail", or a cut. Raises as `segstore.client.stream.event_ranges`.
        """
        return await event_ranges(self._cluster("READ"), scope, stream, from_, to)

    def range_reader(self, wanted: EventRange) -> EventRangeReader:
        """Returns a reader of the events of one range."""
        return EventRangeReader(self._cluster("READ"), wanted)

    def time_windows(self, scope: str, stream: str) -> TimeWindows:
        """Returns the time windows of a stream's positions, from the times that its writers note."""
        return TimeWindows(self._cluster("READ"), scope, stream)

    def byte_writer(self, scope: str, stream: str) -> ByteWriter:
        """Returns an unopened writer of bytes to a stream with one segment."""
        return ByteWriter(self._cluster("WRITE"), scope, stream)

    def byte_reader(self, scope: str, stream: str, *, from_: Literal["head", "tail"] | int = "head") -> ByteReader:
        """Returns an unopened reader of a byte stream. from_: "head", "tail", or an offset."""
        return ByteReader(self._cluster("READ"), scope, stream, from_=from_)

    def reader_group(
        self,
        scope: str,
        name: str,
        *,
        streams: Sequence[str] = (),
        from_: GroupStart = "head",
        to: GroupEnd | None = None,
        refresh_ms: int = 3000,
        checkpoint_ms: int = 30_000,
        retention: GroupRetention = "none",
        shared_with: GroupForm = "java",
    ) -> ReaderGroup:
        """Returns an unopened reader group; opening it creates the group over these streams unless it exists.

        streams: names in the group's scope, or "scope/stream". from_: where a new group starts: "head", "tail", or a
        mapping from streams to "head", "tail" or a cut; other streams start at the head. to: where it ends, and its
        readers stop: "tail", the streams' present ends, or a mapping from streams to "tail" or a cut; None for no end.
        refresh_ms: how often readers of a new group record their positions.
        checkpoint_ms: how often they begin a checkpoint; 0 for never. retention: whether the streams keep data that the
        group has not read: "none", "manual" (behind the cuts that `update_retention` reports) or "automatic" (behind
        its last checkpoint). shared_with: the clients whose readers can be in a new group: "java", or "rust" for
        clients in Rust and the Python package `pravega`, whose groups have no ends, checkpoints and retention; an
        existing group keeps its form.
        """
        return ReaderGroup(
            self._cluster("READ"),
            self.locations("READ_WRITE"),
            scope,
            name,
            streams=streams,
            from_=from_,
            to=to,
            refresh_ms=refresh_ms,
            checkpoint_ms=checkpoint_ms,
            retention=retention,
            shared_with=shared_with,
        )

    def revisioned_stream(self, scope: str, stream: str) -> RevisionedStream:
        """Returns a client of a one-segment stream used as a log with conditional writes, a mark and truncation."""
        return RevisionedStream(self.pool, self.locations("READ_WRITE"), segment_name(scope, stream, 0, 0))

    def transaction_writer(self, scope: str, stream: str, *, writer_id: str | None = None) -> TransactionWriter:
        """Returns an unopened writer of transactions. writer_id: names the writer in commits; random by default."""
        return TransactionWriter(self._cluster("WRITE"), scope, stream, writer_id=writer_id)

    def table(self, scope: str, table: str) -> KeyValueTable:
        """Returns an unopened key-value table; `controller.create_table` creates one."""
        return KeyValueTable(self._cluster("READ_WRITE"), scope, table)

    # --- segments ---------------------------------------------------------------------------------------------------

    def segment_writer(self, segment: str) -> SegmentWriter:
        """Returns a writer of raw bytes to one segment, given its qualified name."""
        return SegmentWriter(self.pool, self.locations("WRITE"), segment)

    def segment_reader(self, segment: str, offset: int = 0) -> SegmentReader:
        """Returns a reader of one segment's raw bytes."""
        return SegmentReader(self.pool, self.locations("READ"), segment, offset)

    def segment_requests(self) -> SegmentRequests:
        """Returns a client for segment requests; the caller closes it."""
        return SegmentRequests(self.pool, self.locations("READ_WRITE"))

    # --- shutdown ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Closes all connections; pending operations fail. Can be called twice."""
        if self._pool is not None:
            await self._pool.aclose()
        if self._channels is not None:
            await self._channels.aclose()

    async def __aenter__(self) -> Self:
        self.open()
        return self


def connect(
    uri: str,
    settings: ClientSettings | None = None,
    *,
    credentials: Credentials | None = None,
    random: Random | None = None,
) -> Client:
    """Returns an unopened client of the controllers at `uri`: `tcp://127.0.0.1:9090` or `tls://a:9090,b:9090`.

    settings: by default from the environment. credentials: `Basic`, `Bearer` or another `Credentials`; overrides the
    settings. Raises ValueError if the URI is invalid.
    """
    return Client(uri, ClientSettings.from_environment() if settings is None else settings, random, credentials)
