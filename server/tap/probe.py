"""Finds out once whether the servers behind a tap answer, so that a wrong address is reported before a client uses it.

A store is asked with a Hello, as by a client that then disconnects. The outcome changes nothing: an upstream may start
later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore.wire import OLDEST_COMPATIBLE_VERSION, WIRE_VERSION, FrameDecoder, Hello, WireError, encode

if TYPE_CHECKING:
    import ssl

    from segstore.wire.endpoint import Endpoint


class Probed(NamedTuple):
    """The outcome. problem: why it did not answer; empty if it did. detail: of the answer.

    secured: whether it requires credentials.
    """

    what: str
    where: Endpoint
    problem: str = ""
    detail: str = ""
    secured: bool = False

    def __str__(self) -> str:
        if self.problem:
            return f"the {self.what} at {self.where} does not answer: {self.problem}"
        return f"the {self.what} at {self.where} answers{f' ({self.detail})' if self.detail else ''}"


async def probe_store(store: Endpoint, context: ssl.SSLContext | None, timeout_s: float) -> Probed:
    """Exchanges a Hello with a store. context: None without TLS."""
    try:
        async with asyncio.timeout(timeout_s):
            hello = await _hello(store, context)
    except WireError:
        hello = None
    except (OSError, ValueError, OverflowError) as error:  # the latter two for an invalid address
        reason = getattr(error, "strerror", None) or str(error) or f"it was silent for {timeout_s:g} s"
        return Probed("store", store, reason)
    if not isinstance(hello, Hello):
        return Probed("store", store, "what listens there is no segment store")
    return Probed("store", store, detail=f"wire version {hello.high_version}")


async def _hello(store: Endpoint, context: ssl.SSLContext | None) -> Any:
    """Returns the first frame that a store sends; None for other bytes, and if it closes. Raises OSError."""
    reader, writer = await asyncio.open_connection(*store, ssl=context)
    try:
        writer.write(encode(Hello(WIRE_VERSION, OLDEST_COMPATIBLE_VERSION)))
        decoder = FrameDecoder()
        while data := await reader.read(64 * 1024):
            for frame in decoder.feed(data):
                return frame
    finally:
        writer.transport.abort()
    return None
