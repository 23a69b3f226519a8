"""The end of a listening socket: what was accepted is somebody's, what was not is refused.

asyncio accepts a connection in one turn of the loop and makes its transport in the next. A server that is closed in
between drops the connection with an error in the log, and its socket stays open with nobody to read it. uvloop has no
such gap, and is closed the same way.
"""

from __future__ import annotations

import asyncio

__all__ = ["stop_accepting"]

_TURNS = 2
"""In the first a connection that was just accepted gets its transport, in the second its protocol is told."""


async def stop_accepting(*servers: asyncio.Server) -> None:
    """Closes the listening sockets of `servers`; connections that they have accepted live on, and their protocols know.

    A server that is closed already may be among them. Cancelled, they are closed all the same.
    """
    loop = asyncio.get_running_loop()
    for server in servers:
        for listening in server.sockets:
            loop.remove_reader(listening)
    try:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    finally:
        for server in servers:
            server.close()
