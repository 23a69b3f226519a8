"""A proxy between Pravega clients and servers, with address parsing, recording, fault files and signal handling.

    async with Tap(controller="tcp://127.0.0.1:9090", record=Path("run.wtrace")) as tap:
        async with connect(f"tcp://{tap.controller_uri}") as pravega: ...

`segstore tap` runs this until SIGTERM or SIGINT. Bytes are forwarded by `segstore.server.tap.server`.

Invariants: a recording never overwrites a file, and omits delegation tokens unless `record_tokens` is set; a `.jsonl`
recording is a capture beside that file until the tap stops, so that nothing is lost if it is killed. Refused: several
controllers, and a controller and a store of which only one uses TLS.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TextIO, TypedDict, Unpack

from segstore import __version__, loops
from segstore.cli.serving import (
    allow_many_connections,
    flushed,
    pointers,
    print_announcement,
    settle_memory,
    stopped_by_signal,
)
from segstore.cli.terminal import echo, log_to_stderr
from segstore.client.client import parse_uri
from segstore.server.clock import Clock, LoopClock
from segstore.server.config import settings_of
from segstore.server.faults import Faults, FaultSettings, Observer
from segstore.server.net import address_text
from segstore.server.tap import TapServer, TapSettings
from segstore.traces import STANDARD_OUTPUT, Recording, check_suffix
from segstore.wire import WIRE_VERSION
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import Metadata

log = logging.getLogger(__name__)


class TapPorts(TypedDict, total=False):
    """Fields of `TapSettings` as keyword arguments."""

    host: str
    port: int
    controller_port: int
    http_port: int | None
    http_token_file: Path | None
    history_bytes: int
    published_host: str | None
    ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    connect_timeout_s: float


class TapOptions(TapPorts, total=False):
    """The keyword arguments of `Tap`."""

    record: Path | str | None
    record_tokens: bool
    record_values: Mapping[str, str] | None
    faults: FaultSettings | Path | str | None
    clock: Clock | None
    watched: bool


_NOT_SETTINGS: Final = [name for name in TapOptions.__annotations__ if name not in TapPorts.__annotations__]


class Tap(TapServer):
    """A tap, for tests and for the command line.

    controller: `tcp://host:port`, `tls://host:port` or `host:port`. store: the same for a store to proxy from the
        start. Required without `controller`.
    record: a new file for the traffic of all stores, whose ending decides its form: a capture (`.wtrace`), a fixture
        (`.jsonl`) or packets (`.pcapng`); `-` is standard output, as a fixture.
        record_tokens: whether it contains delegation tokens. record_values: values for its header.
    faults: the initial fault rules, or a fault file.
    clock: the clock for request times and delays.
    watched: False records no requests for `wait_for`; without faults, bytes are then forwarded undecoded.
    Other options are fields of `TapSettings`; the addresses decide `tls`.

    Raises ValueError for invalid options, FaultFileError, OSError.
    """

    def __init__(self, controller: str | None = None, store: str | None = None, **options: Unpack[TapOptions]) -> None:
        self._record: Path | None = None
        if (record := options.get("record")) is not None:
            self._record = STANDARD_OUTPUT if str(record) == "-" else check_suffix(record)
        named = [_address(name, uri) for name, uri in (("controller", controller), ("store", store)) if uri is not None]
        if len({tls for _, tls in named}) > 1:
            raise ValueError(f"{controller} and {store}: either both speak TLS or none")
        faults, watched, rules = options.get("faults"), options.get("watched", True), None
        if watched or faults is not None or options.get("http_port") is not None:  # rules may be added there
            rules = Faults(options.get("clock") or LoopClock(), faults, observer=Observer() if watched else None)
        if "tls" in options:
            raise ValueError("tls: the addresses decide it: tls://HOST:PORT")
        settings: dict[str, Any] = {name: value for name, value in options.items() if name not in _NOT_SETTINGS}
        settings |= {**dict(where for where, _ in named), "tls": any(tls for _, tls in named)}
        super().__init__(settings_of(TapSettings, settings, _NOT_SETTINGS), faults=rules)
        self._record_tokens = options.get("record_tokens", False)
        self._record_values = dict(options.get("record_values") or {})
        self._recording = AsyncExitStack()
        self._listens = False

    # --- where it is ------------------------------------------------------------------------------------------------

    @property
    def controller_uri(self) -> str:
        """host:port of the controller, through the tap."""
        return str(self._there(self.controller_address, "controller"))

    @property
    def host(self) -> str:
        """Host of the first store, through the tap."""
        return self._there(self.address, "store").host

    @property
    def port(self) -> int:
        """Port of the first store, through the tap."""
        return self._there(self.address, "store").port

    @property
    def http_url(self) -> str:
        """http://host:port of the control API, if `http_port` was given."""
        return f"http://{self._there(self.http_address, 'control API')}"

    @staticmethod
    def _there(address: Endpoint | None, what: str) -> Endpoint:
        if address is None:
            raise RuntimeError(f"the tap has no {what}: it is not started, or knows of none")
        return address

    # --- its life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """As `TapServer.start`, after creating the recording. Raises FileExistsError."""
        if self._record is not None:
            metadata = Metadata(WIRE_VERSION, f"segstore {__version__} tap", self._record_values or {})
            recording = Recording(self._record, metadata, record_tokens=self._record_tokens)
            self.record(recording.recorder)
            await self._recording.enter_async_context(flushed(recording, lambda: self._listens))
        await super().start()
        self._listens = True

    async def stop(self, *, drain_s: float = 5.0) -> None:
        """As `TapServer.stop`, then closes the recording. Raises OSError if it could not be written."""
        try:
            await super().stop(drain_s=drain_s)
        finally:
            await self._recording.aclose()


def _address(name: str, uri: str) -> tuple[tuple[str, Endpoint], bool]:
    """Parses an address. Returns it with its name, and whether it uses TLS. Raises ValueError."""
    endpoints, tls = parse_uri(uri)
    if len(endpoints) > 1:
        raise ValueError(f"{uri}: a tap has one {name}, not {len(endpoints)}")
    if name == "store" and not uri.rpartition("]")[2].rpartition("://")[2].rpartition(":")[2].isdecimal():
        raise ValueError(f"{uri}: a store's address needs a port")
    return (name, Endpoint(*endpoints[0])), tls


async def _run(tap: Tap, form: str, out: TextIO) -> None:
    stop = stopped_by_signal()
    async with tap:
        settle_memory()
        print_announcement(
            form, out, segment_store=tap.address, controller=tap.controller_address, http=tap.http_address
        )
        async with asyncio.TaskGroup() as tasks:
            probing = tasks.create_task(_probe(tap, form), name="segstore tap probes")
            await stop.wait()
            probing.cancel()
        log.info("draining %d connections", len(tap.links))


async def _probe(tap: Tap, form: str) -> None:
    """Reports whether the upstream answers and, in text form, how clients connect. The tap works either way."""
    probes = await tap.probe()
    silent = not all(probe.answers for probe in probes)
    line = f"Behind the tap: {'; '.join(probe.text for probe in probes)}."
    line += " The tap forwards to it once it does." if silent else ""
    if form == "json":
        log.log(logging.WARNING if silent else logging.INFO, "%s", line)
        return
    echo(line, err=True)
    if (controller := address_text(tap.controller_address)) is not None:
        secured = any(probe.secured for probe in probes)
        end = "the cluster behind it stays as it is"
        for pointer in pointers(controller, tls=tap.tls, passwords=secured, end=end).splitlines():
            echo(pointer, err=True)


def run_tap(
    controller: str | None = None,
    store: str | None = None,
    announce: str = "text",
    log_level: str | None = None,
    **options: Unpack[TapOptions],
) -> None:
    """Runs until a signal; options are as for `Tap`. Raises the errors of `Tap` and `Tap.start`.

    A second signal raises SystemExit with 128 and its number.
    """
    options["watched"] = False
    log_to_stderr(log_level or "warning")
    if log_level is None:
        logging.getLogger("segstore.server.tap.server").setLevel(logging.INFO)
    allow_many_connections()

    async def main() -> None:
        out = sys.stderr if options.get("record") == STANDARD_OUTPUT else sys.stdout
        await _run(Tap(controller, store, **options), announce, out)

    loops.run(main())
