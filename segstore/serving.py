"""`segstore serve`: the composition root that starts the parts, says where they listen, and stops them.

The announcement is one line on stdout once all parts listen; everything else goes to stderr. SIGTERM and SIGINT drain
and end the process with status 0; a second one ends it at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import uvloop

from segstore.server import SegmentStoreServer, StoreSettings

__all__ = ["ServeOptions", "announcement", "serve"]

log = logging.getLogger(__name__)


class ServeOptions(StoreSettings):
    """What `segstore serve` takes beside the settings of the store.

    controller_port, http_port: where the controller and the control API listen; None for nowhere.
    data: folder that segments are kept in; None for memory.
    announce: "text" or "json".
    """

    controller_port: int | None = None
    http_port: int | None = None
    data: Path | None = None
    announce: str = "text"


def _join(address: tuple[str, int] | None) -> str | None:
    if address is None:
        return None
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def announcement(addresses: dict[str, tuple[str, int] | None], form: str) -> str:
    """One line that says what listens where; as JSON, an object with a key for each part."""
    joined = {name: _join(address) for name, address in addresses.items()}
    if form == "json":
        return json.dumps(joined)
    listening = ", ".join(f"{name.replace('_', ' ')} {where}" for name, where in joined.items() if where)
    return f"segstore listens: {listening}"


async def _serve(options: ServeOptions) -> None:
    settings = StoreSettings(**{name: getattr(options, name) for name in StoreSettings.model_fields})
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def asked_to_stop(number: signal.Signals) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop, number)
    async with SegmentStoreServer(settings) as server:
        addresses: dict[str, Any] = {
            "segment_store": server.address,
            "controller": None,
            "admin": server.admin_address,
            "http": None,
        }
        sys.stdout.write(announcement(addresses, options.announce) + "\n")
        sys.stdout.flush()
        await stop.wait()
        log.info("draining %d connections", len(server.hub.connections))


def serve(options: ServeOptions) -> None:
    """Runs until a signal. Raises AddressInUse and OSError when a port cannot be had."""
    uvloop.run(_serve(options))
