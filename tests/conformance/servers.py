"""Starts a fresh `segstore serve` process for a dialogue, configured as its recording requires.

Invariant: a started server is always stopped and its exit awaited.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, Any, Final

import msgspec

from segstore.wire.endpoint import Endpoint

ADMIN: Final = "-admin"
"""Suffix of a set-up's name whose dialogues use the admin port."""

_AUTH_KEY: Final = "0123456789abcdef" * 4

SETUPS: Final[dict[str, tuple[str, ...]]] = {
    "plain": (),
    "scratch": (),
    "clean": (),
    "auth": ("--auth-key", _AUTH_KEY, "--open-controller"),
    "partial": ("--containers", "2", "--own", "0"),
    "stacktraces": ("--stack-traces",),
}
"""Set-up name → options of `segstore serve`. plain, scratch and clean are separate servers with equal options."""

# The reference never times out a tail read, so dialogues that wait run against a store that does not either.
_ALWAYS: Final = (
    *("--port", "0", "--admin-port", "0", "--controller-port", "0", "--announce", "json"),
    *("--long-poll-s", "3600"),
)

_START_S: Final = 30.0
_STOP_S: Final = 10.0
_SHOWN_LOG: Final = 2000


class ServerFailed(Exception):
    """The server did not start, or did not exit cleanly; the message contains its output."""


class Stores(msgspec.Struct, frozen=True):
    """The addresses of one segment store's ports."""

    data: Endpoint
    admin: Endpoint | None

    @classmethod
    def parse(cls, data: str, admin: str | None) -> Stores:
        """Reads two host:port. Raises ValueError."""
        return cls(Endpoint.parse(data), None if admin is None else Endpoint.parse(admin))


@asynccontextmanager
async def fresh_server(setup: str) -> AsyncIterator[Stores]:
    """Runs a server with the named set-up, given without `-admin`. Raises ServerFailed."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "segstore", "serve", *_ALWAYS, *SETUPS[setup]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
        try:
            yield await _announced(process, log)
            if process.returncode is not None:
                raise ServerFailed(f"the server ended with status {process.returncode} {_tail(log)}".rstrip())
            process.terminate()
            try:
                status = await asyncio.wait_for(process.wait(), _STOP_S)
            except TimeoutError as cause:
                raise ServerFailed(f"the server did not end within {_STOP_S:.0f} s of SIGTERM {_tail(log)}") from cause
            if status:
                raise ServerFailed(f"the server ended with status {status} {_tail(log)}".rstrip())
        finally:
            if process.returncode is None:
                process.kill()
            # Read to the end of the output, so that the pipe is closed with the process.
            await process.communicate()


async def _announced(process: asyncio.subprocess.Process, log: IO[bytes]) -> Stores:
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _START_S)
        where: dict[str, Any] = json.loads(line)
        return Stores.parse(where["segment_store"], where["admin"])
    except TimeoutError as cause:
        raise ServerFailed(f"the server announced nothing within {_START_S:.0f} s {_tail(log)}".rstrip()) from cause
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise ServerFailed(f"the server announced {line!r} {_tail(log)}".rstrip()) from cause


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    text = log.read().decode("utf-8", "replace").strip()
    return f"and printed: {text[-_SHOWN_LOG:]}" if text else ""
