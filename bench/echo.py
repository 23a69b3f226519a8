"""A uvloop server that sends back what it gets: the least that a server can do with the same bytes.

Run as a module it prints its port and serves until it is told to end.
"""

from __future__ import annotations

import asyncio
from typing import cast

import uvloop

__all__ = ["main"]


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its bases

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
