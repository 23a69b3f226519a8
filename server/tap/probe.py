"""Finds out once whether the servers behind a tap answer, so that a wrong address is reported before a client uses it.

A store is asked with a Hello, as by a client that then disconnects. The outcome changes nothing: an upstream may start
later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from segstore.wire import Hello, WireError, decode, encode
from segstore.wire.protocol import HELLO

if TYPE_CHECKING:
    import ssl

    from segstore.wire.endpoint import Endpoint

_HELLO: Final = encode(HELLO)


class Probed(NamedTuple):
    """The outcome in words. secured: whether the server requires credentials."""

    text: str
    answers: bool = True
    secured: bool = False


async def probe_store(store: Endpoint, context: ssl.SSLContext | None, timeout_s: float) -> Probed:
    """Exchanges a Hello with a store. context: None without TLS."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(*store, ssl=context)
            try:
                writer.write(_HELLO)
                reply = decode(await reader.readexactly(len(_HELLO)))
            finally:
                writer.transport.abort()
        if isinstance(reply, Hello):
            return Probed(f"the store at {store} answers (wire version {reply.high_version})")
        reason = "what listens there is no segment store"
    except (WireError, asyncio.IncompleteReadError):
        reason = "what listens there is no segment store"
    except (OSError, ValueError, OverflowError) as error:  # the latter two for an invalid address
        reason = getattr(error, "strerror", None) or str(error) or f"it was silent for {timeout_s:g} s"
    return Probed(f"the store at {store} does not answer: {reason}", answers=False)
