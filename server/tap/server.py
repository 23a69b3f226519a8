"""A tap: a proxy between Pravega clients and servers that forwards, records and can disturb their traffic.

It has one port for each store that it knows: the configured one, and each store that the controller names in a
forwarded answer. The tap replaces the store's address in that answer with its own port for the store, so a client that
uses the tap never sees another address.

Invariants: bytes are forwarded unchanged (`segstore.server.tap.link`) unless fault rules change them
(`segstore.server.tap.inspection`); a store keeps its port for the tap's lifetime; after `stop`, which can be called
twice, no task and no socket is left; incomplete frames take at most `MOST_HELD_BYTES`. Refused: more than `MOST_STORES`
stores; a store that is the tap itself.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from segstore.server.connection import stop_accepting
from segstore.server.fair_queue import FairQueue
from segstore.server.faults import Faults, NoFaults, Observed
from segstore.server.net import Endpoint, TlsFiles, listening_on, public_host
from segstore.server.tap.link import Link, Side
from segstore.wire.trace import Direction

if TYPE_CHECKING:
    from segstore.server.connection import Recorder
    from segstore.server.tap.controller_front import ControllerFront

log = logging.getLogger(__name__)

MOST_STORES: Final = 1_000
MOST_HELD_BYTES: Final = 512 * 1024 * 1024
_BACKLOG: Final = 1024
_DRAIN_S: Final = 5.0


class TooManyStores(OSError):
    """The controller has named more than `MOST_STORES` stores."""

    def __init__(self, store: Endpoint) -> None:
        super().__init__(f"{store} would be the store number {MOST_STORES + 1} that the controller names")
        self.store = store


class TapSettings(BaseModel):
    """Settings of a tap.

    controller: the controller's address, (host, port); None for no controller.
    store: address of a store known from the start, (host, port).
    host: the address on which the tap listens.
    port: port for the first store; further stores get the following ports. 0 picks free ones.
    controller_port: port for calls to the controller; 0 picks a free one.
    published_host: the tap's host name in answers to clients. None means `host`, or "localhost" for TLS on a loopback
        address, because a certificate names hosts.
    tls: whether to connect to controller and stores with TLS.
    ca: trusted authorities for these connections (PEM); None for the system's.
    tls_cert, tls_key: certificate and key of the tap's own ports (PEM); None for no TLS.
    connect_timeout_s: deadline of connecting to a store.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    controller: Endpoint | None = None
    store: Endpoint | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    controller_port: int = Field(default=0, ge=0, le=65535)
    published_host: str | None = None
    tls: bool = False
    ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    connect_timeout_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.controller is None and self.store is None:
            raise ValueError("a tap needs a controller or a store to forward to")
        if self.ca is not None and not self.tls:
            raise ValueError("ca goes with TLS, as in tls://host:port")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        return self

    @property
    def public_host(self) -> str:
        """The name that clients are given."""
        return self.published_host or public_host(self.host, tls=self.tls_cert is not None)


class _Door:
    """The tap's port for one store."""

    def __init__(self, tap: TapServer, store: Endpoint, number: int) -> None:
        self.store = store
        self.number = number
        self.context = tap.upstream_context
        self.recorder = tap.recorder
        self.connect_timeout_s = tap.settings.connect_timeout_s
        self.queue = tap.queue
        self.faults = tap.rules
        self.address = Endpoint("", 0)
        self.server: asyncio.Server | None = None
        self.is_tap = False
        self._tap = tap

    @property
    def closing(self) -> bool:
        return self._tap.closing

    def link(self) -> Link:
        return Link(self)

    def began(self, link: Link) -> None:
        self._tap.links.add(link)

    def over(self, link: Link) -> None:
        self._tap.over(link)

    def made(self, side: Side) -> bool:
        sockets = self._tap.sockets
        # A connection of the tap to itself appears twice: as one door's socket to its store, and as a client's socket.
        met = sockets.setdefault(side.ends, (self, side))
        if met[1] is side:
            return True
        door = self if side.direction is Direction.REPLY else met[0]
        if not door.is_tap:
            door.is_tap = True
            log.error("the store %s is the tap itself: nothing is forwarded to it", door.store)
        return False

    def lost(self, side: Side) -> None:
        if self._tap.sockets.get(side.ends, (self, None))[1] is side:
            del self._tap.sockets[side.ends]

    def hold(self, link: Link, size: int) -> None:
        tap = self._tap
        tap.held_bytes += size - link.held
        link.held = size
        while tap.held_bytes > MOST_HELD_BYTES:
            largest = max(tap.links, key=lambda each: each.held)
            why = f"incomplete frames take more than {MOST_HELD_BYTES} bytes, and this connection holds the most"
            log.warning("connection from %s closed: %s", largest.peer, why)
            largest.abort(why)


class TapServer(Observed):
    """A tap that listens until it is stopped.

    Attributes:
        settings: as given.
        recorder: records the traffic; None for no recording. Set it before `start`.
        rules: fault rules and request log; None to forward bytes without decoding.
        links: the open connections.
        queue: links that have more pieces to process than a slice allows.
        closing: whether `stop` was called.
        upstream_context: TLS context for connections to stores; None without TLS.
        sockets: addresses of both ends → door and side, for the sockets of all links.
        held_bytes: bytes of incomplete frames, if traffic is decoded.
    """

    def __init__(
        self, settings: TapSettings, *, recorder: Recorder | None = None, faults: Faults | None = None
    ) -> None:
        self.settings = settings
        self.recorder = recorder
        self.rules = faults
        self.observer = None if faults is None else faults.observer
        self.links: set[Link] = set()
        self.queue = FairQueue()
        self.closing = False
        self.upstream_context: ssl.SSLContext | None = None
        self.sockets: dict[frozenset[object], tuple[_Door, Side]] = {}
        self.held_bytes = 0
        self._doors: dict[Endpoint, _Door] = {}
        self._learning = asyncio.Lock()
        self._front: ControllerFront | None = None
        self._own_context: ssl.SSLContext | None = None
        self._empty = asyncio.Event()
        self._stopping = asyncio.Lock()

    # --- addresses --------------------------------------------------------------------------------------------------

    @property
    def address(self) -> Endpoint | None:
        """The tap's address for the first store; None while no store is known."""
        return next((Endpoint(self.settings.public_host, each.address.port) for each in self._doors.values()), None)

    @property
    def addresses(self) -> dict[Endpoint, Endpoint]:
        """The tap's address for each known store, by the store's own address."""
        host = self.settings.public_host
        return {store: Endpoint(host, door.address.port) for store, door in self._doors.items()}

    @property
    def controller_address(self) -> Endpoint | None:
        """The tap's address for the controller; None without a controller and before the start."""
        return None if self._front is None else Endpoint(self.settings.public_host, self._front.port)

    @property
    def faults(self) -> Faults:
        """The fault rules. Raises NoFaults."""
        if self.rules is None:
            raise NoFaults
        return self.rules

    # --- start and stop ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts listening. Raises CannotListen for an unusable port or certificate, OSError for the controller's."""
        try:
            self._read_certificates()
            if self.settings.store is not None:
                await self.through(self.settings.store)
            if self.settings.controller is not None:
                self._front = await self._start_front(self.settings.controller)
        except BaseException:
            await self.stop(drain_s=0)
            raise

    def _read_certificates(self) -> None:
        settings = self.settings
        if settings.tls:
            try:
                self.upstream_context = ssl.create_default_context(cafile=settings.ca)
            except ssl.SSLError as cause:
                raise OSError(errno.EINVAL, "it holds no certificate in PEM", str(settings.ca)) from cause
        if (own := TlsFiles.of(settings.tls_cert, settings.tls_key)) is not None:
            self._own_context = own.server_context(settings.host, settings.port)

    async def _start_front(self, controller: Endpoint) -> ControllerFront:
        from segstore.server.tap.controller_front import ControllerFront  # and gRPC, for who asks for it

        settings = self.settings
        return await ControllerFront.start(
            settings.host,
            settings.controller_port,
            controller=controller,
            through=self.through,
            published_host=settings.public_host,
            tls=TlsFiles.of(settings.tls_cert, settings.tls_key),
            trust=None if not settings.tls else b"" if settings.ca is None else settings.ca.read_bytes(),
        )

    async def through(self, store: Endpoint) -> Endpoint:
        """Returns the tap's address for a store, and listens there if it did not before. Raises OSError."""
        async with self._learning:
            door = self._doors.get(store)
            if door is None:
                if len(self._doors) >= MOST_STORES:
                    raise TooManyStores(store)
                door = _Door(self, store, len(self._doors))
                await self._open(door)
                self._doors[store] = door
                log.info("the store %s is reached at %s", store, door.address)
        return Endpoint(self.settings.public_host, door.address.port)

    async def _open(self, door: _Door) -> None:
        settings = self.settings
        host, port = settings.host, settings.port + door.number if settings.port else 0
        with listening_on(host, port):
            if self.closing:
                raise OSError(errno.ESHUTDOWN, "the tap shuts down")
            if port > 65535:
                raise OSError(errno.EADDRNOTAVAIL, "there is no such port")
            door.server = await asyncio.get_running_loop().create_server(
                lambda: door.link().client, host, port, backlog=_BACKLOG, ssl=self._own_context
            )
        door.address = Endpoint(*door.server.sockets[0].getsockname()[:2])

    def over(self, link: Link) -> None:
        """Removes a closed link."""
        self.links.discard(link)
        if not self.links:
            self._empty.set()

    def cut(self) -> int:
        """Resets all connections at once, as a failing network does; returns their number."""
        links = tuple(self.links)
        for each in links:
            each.abort("cut")
        return len(links)

    async def stop(self, *, drain_s: float = _DRAIN_S) -> None:
        """Stops listening and closes all connections; peers have `drain_s` seconds to read what is in flight.

        Can be called again, even while it runs: each call returns when everything is stopped.
        """
        self.closing = True
        async with self._stopping:
            front, self._front = self._front, None
            if front is not None:
                await front.aclose(min(drain_s, 1.0))
            servers = [each.server for each in self._doors.values() if each.server is not None]
            for server in servers:
                await stop_accepting(server)
            for link in tuple(self.links):
                link.end("the tap shuts down")
            await self._until_empty(drain_s)
            for link in tuple(self.links):
                link.abort()
            await self._until_empty(drain_s)
            for server in servers:
                await server.wait_closed()
            for door in self._doors.values():
                door.server = None
            if self.rules is not None:
                self.rules.report()

    async def _until_empty(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 1.0)):
                while self.links:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            log.info("%d connections are still open", len(self.links))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(drain_s=1.0)
