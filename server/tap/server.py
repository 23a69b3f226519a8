"""A tap: a proxy between Pravega clients and servers that forwards, records and can disturb their traffic.

It has a port for each known store: the configured store, and the stores that the controller names in forwarded answers.
The tap replaces the store's address in that answer with its own port for the store, so a client that uses the tap never
sees another address.

Invariants: bytes are forwarded unchanged (`segstore.server.tap.link`) unless fault rules change them
(`segstore.server.tap.inspection`); a store keeps its port for the tap's lifetime; after `stop`, which can be called
twice, no task and no socket remains; incomplete frames take at most `MOST_HELD_BYTES`. Refused: a store that
is the tap itself.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from segstore.server.faults import Faults, WithFaults
from segstore.server.net import TlsFiles, listening_on, public_host, stop_accepting, trusting
from segstore.server.recording import together
from segstore.server.tap.link import Door, Link
from segstore.server.tap.probe import Probed, probe_store
from segstore.server.traffic import KEPT_BYTES, make_traffic
from segstore.wire.endpoint import Endpoint

if TYPE_CHECKING:
    from segstore.server.control_api import ControlApi
    from segstore.server.recording import Recorder
    from segstore.server.tap.controller_front import ControllerFront

log = logging.getLogger(__name__)

MOST_HELD_BYTES: Final = 512 * 1024 * 1024
_BACKLOG: Final = 1024
_DRAIN_S: Final = 5.0
_PROBE_S: Final = 3.0
_LOOP_S: Final = 10.0
"""How long a store counts as the tap itself. After that its name may lead elsewhere, so a client tries again."""


class TapSettings(BaseModel):
    """Settings of a tap.

    controller: the controller's address, (host, port); None for no controller.
    store: address of a store known from the start, (host, port).
    host: the address on which the tap listens.
    port: port for the first store; further stores get the following ports. 0 picks free ports.
    controller_port: port for calls to the controller; 0 picks a free port.
    http_port: port of the live page and the control API (HTTP); 0 picks a free port; None disables it.
    http_token_file: file with the token that requests to the control API must carry; required beyond loopback.
    history_bytes: with an HTTP port, bytes of the latest traffic to keep in memory; 0 keeps no traffic.
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
    http_port: int | None = Field(default=None, ge=0, le=65535)
    http_token_file: Path | None = None
    history_bytes: int = Field(default=KEPT_BYTES, ge=0)
    published_host: str | None = None
    tls: bool = False
    ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    connect_timeout_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.controller is None and self.store is None:
            raise ValueError("a tap needs a controller or a store to forward to")
        if self.ca is not None and not self.tls:
            raise ValueError("ca goes with TLS, as in tls://host:port")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        if self.http_token_file is not None and self.http_port is None:
            raise ValueError("http_token_file needs http_port: there is no control API without it")
        return self

    @property
    def public_host(self) -> str:
        """The name that clients are given."""
        return self.published_host or public_host(self.host, tls=self.tls_cert is not None)


class TapServer(WithFaults):
    """A tap that listens until it is stopped.

    Attributes:
        settings: as given.
        recorder: records the traffic; None for no recording. Set by `record`.
        traffic: the latest traffic, recorded too; None if it is not kept.
        rules: fault rules and request log; None to forward bytes without decoding.
        links: the open connections.
        closing: whether `stop` was called.
        upstream_context: TLS context for connections to stores; None without TLS.
        held_bytes: bytes of incomplete frames, if traffic is decoded.
    """

    def __init__(
        self, settings: TapSettings, *, recorder: Recorder | None = None, faults: Faults | None = None
    ) -> None:
        super().__init__(faults)
        self.settings = settings
        self.traffic = None if settings.http_port is None else make_traffic(settings.history_bytes)
        self.recorder: Recorder | None = self.traffic
        if recorder is not None:
            self.record(recorder)
        self.links: set[Link] = set()
        self.closing = False
        self.upstream_context: ssl.SSLContext | None = None
        self._trusted: bytes | None = None
        self.held_bytes = 0
        self._doors: dict[Endpoint, Door] = {}
        self._learning = asyncio.Lock()
        self._front: ControllerFront | None = None
        self._own_context: ssl.SSLContext | None = None
        self._empty = asyncio.Event()
        self._stopping = asyncio.Lock()
        self._control_api: ControlApi | None = None

    def record(self, recorder: Recorder) -> None:
        """Adds a recorder. Call before the start."""
        self.recorder = together(self.recorder, recorder)

    # --- addresses --------------------------------------------------------------------------------------------------

    @property
    def address(self) -> Endpoint | None:
        """The tap's address for the first store; None while no store is known."""
        return next(iter(self.addresses.values()), None)

    @property
    def addresses(self) -> dict[Endpoint, Endpoint]:
        """The tap's address for each known store, by the store's own address."""
        return {store: door.address for store, door in self._doors.items()}

    @property
    def controller_address(self) -> Endpoint | None:
        """The tap's address for the controller; None without a controller and before the start."""
        return None if self._front is None else Endpoint(self.settings.public_host, self._front.port)

    @property
    def http_address(self) -> Endpoint | None:
        """Address of the control API; None without one and before the start."""
        return None if self._control_api is None else self._control_api.address

    @property
    def fronts(self) -> list[Door]:
        """The ports, by number of the store."""
        return list(self._doors.values())

    @property
    def tls(self) -> bool:
        """Whether the tap's own ports use TLS."""
        return self.settings.tls_cert is not None

    # --- start and stop ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts listening. Raises CannotListen for an unusable port, certificate or token file, OSError."""
        try:
            self._read_certificates()
            if self.settings.store is not None:
                await self.through(self.settings.store)
            if self.settings.controller is not None:
                self._front = await self._start_front(self.settings.controller)
            if self.settings.http_port is not None:
                self._control_api = await self._start_control_api(self.settings.http_port)
        except BaseException:
            await self.stop(drain_s=0)
            raise

    def _read_certificates(self) -> None:
        settings = self.settings
        if settings.tls:
            self.upstream_context, self._trusted = trusting(settings.ca)
        if (own := TlsFiles.of(settings.tls_cert, settings.tls_key)) is not None:
            self._own_context = own.server_context(settings.host, settings.port)

    async def _start_front(self, controller: Endpoint) -> ControllerFront:
        # Imports gRPC, which a tap without a controller does not need.
        from segstore.server.controller.api import Calls
        from segstore.server.tap.controller_front import ControllerFront

        settings = self.settings
        calls = Calls(lambda: self.recorder, lambda: self.rules)
        front = ControllerFront(controller, self.through, settings.public_host, trust=self._trusted, calls=calls)
        own = TlsFiles.of(settings.tls_cert, settings.tls_key)
        return await front.start(settings.host, settings.controller_port, own)

    async def probe(self) -> list[Probed]:
        """Checks whether the controller, the known stores and the store that the controller names answer.

        A server that does not answer raises no error.
        """
        stores, controllers = list(self._doors), []
        if self._front is not None:
            asked, named = await self._front.probe(_PROBE_S)
            controllers.append(asked)
            if named is not None and named not in stores:
                stores.append(named)
        asking = [probe_store(store, self.upstream_context, _PROBE_S) for store in stores]
        return [*controllers, *await asyncio.gather(*asking)]

    async def ask_for_store(self) -> None:
        """Listens for the store that the controller names, if it answers without credentials."""
        if self._front is not None:
            _, named = await self._front.probe(_PROBE_S)
            if named is not None:
                await self.through(named)

    async def _start_control_api(self, port: int) -> ControlApi:
        from segstore.server.control_api import ControlApi, Controlled  # a web library

        settings = self.settings
        controlled = Controlled(
            tap=self, faults=self.rules, controller_address=lambda: self.controller_address, traffic=self.traffic
        )
        names, token_file = [settings.public_host], settings.http_token_file
        api = ControlApi(controlled, settings.host, port, names=names, token_file=token_file)
        await api.start()
        return api

    async def through(self, store: Endpoint) -> Endpoint:
        """Returns the tap's address for a store, and listens there if it did not before. Raises OSError."""
        async with self._learning:
            door = self._doors.get(store)
            if door is None:
                door = Door(store, len(self._doors))
                await self._open(door)
                self._doors[store] = door
                log.info("the store %s is reached at %s", store, door.address)
        return door.address

    async def _open(self, door: Door) -> None:
        settings = self.settings
        host, port = settings.host, settings.port + door.number if settings.port else 0
        with listening_on(host, port):
            if self.closing:
                raise OSError(errno.ESHUTDOWN, "the tap shuts down")
            if port > 65535:
                raise OSError(errno.EADDRNOTAVAIL, "there is no such port")
            door.server = await asyncio.get_running_loop().create_server(
                lambda: Link(self, door).client, host, port, backlog=_BACKLOG, ssl=self._own_context
            )
        door.address = Endpoint(settings.public_host, door.server.sockets[0].getsockname()[1])

    def cut(self) -> int:
        """Resets all connections at once, as a failing network does; returns their number."""
        links = tuple(self.links)
        for link in links:
            link.disconnect("cut", drain=False)
        return len(links)

    async def stop(self, *, drain_s: float = _DRAIN_S) -> None:
        """Stops listening and closes all connections; peers have `drain_s` seconds to read data in flight.

        Can be called again, even while it runs: every call returns when the tap is stopped. Raises FaultFunctionError.
        """
        self.closing = True
        async with self._stopping:
            if self._control_api is not None:
                await self._control_api.stop()
            front, self._front = self._front, None
            if front is not None:
                await front.aclose(min(drain_s, 1.0))
            servers = [door.server for door in self._doors.values() if door.server is not None]
            for server in servers:
                await stop_accepting(server)
            for link in tuple(self.links):
                link.disconnect("the tap shuts down")
            await self._until_empty(drain_s)
            for link in tuple(self.links):
                link.disconnect(drain=False)
            await self._until_empty(drain_s)
            for server in servers:
                await server.wait_closed()
            for door in self._doors.values():
                door.server = None
            if self.rules is not None:
                await self.rules.aclose()

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

    async def __aexit__(self, *_: object) -> None:
        await self.stop(drain_s=1.0)

    # --- what a link asks -------------------------------------------------------------------------------------------

    def over(self, link: Link) -> None:
        self.links.discard(link)
        if not self.links:
            self._empty.set()

    def leads_back(self, door: Door, to_store: asyncio.Transport) -> bool:
        """Whether a new connection to a door's store has reached a port of the tap."""
        own, peer = (to_store.get_extra_info(name) for name in ("sockname", "peername"))
        if not own or not peer or (own[0] != peer[0] and not peer[0].startswith("127.")):
            return False  # it leads to another machine, or is lost
        servers = [other.server for other in self._doors.values() if other.server is not None]
        ports = [listening.getsockname()[:2] for server in servers for listening in server.sockets]
        if not any(port == peer[1] and host in (peer[0], "0.0.0.0", "::") for host, port in ports):
            return False
        if not door.is_tap:
            log.error("the store %s is the tap itself: nothing is forwarded to it for %g s", door.upstream, _LOOP_S)
        door.is_tap_until_s = asyncio.get_running_loop().time() + _LOOP_S
        return True

    def hold(self, link: Link, size: int) -> None:
        """Updates the size of a link's buffered frames. If the links together exceed the limit, closes the largest
        links.
        """
        self.held_bytes += size - link.held_bytes
        link.held_bytes = size
        while self.held_bytes > MOST_HELD_BYTES:
            largest = max(self.links, key=lambda each: each.held_bytes)
            why = f"incomplete frames take more than {MOST_HELD_BYTES} bytes, and this connection holds the most"
            log.warning("connection from %s closed: %s", largest.peer, why)
            largest.disconnect(why, drain=False)
