"""The baseline of `bench.durable`: a server that does nothing but group commit, in a process of its own.

Run as a module with a folder and the sizes of a request and of a reply. What the peers send goes to the end of one file
as it comes; a thread writes all that is there, waits for `fdatasync`, and then each request is answered with as many
bytes as an acknowledgement has. No frame is looked at, nothing is kept. Prints its port.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import cast

import uvloop


class BareLog:
    """The file and its thread."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._queue: SimpleQueue[list[tuple[Peer, bytes]]] = SimpleQueue()
        self._forming: list[tuple[Peer, bytes]] = []
        threading.Thread(target=self._write, daemon=True).start()

    def add(self, peer: Peer, data: bytes) -> None:
        if not self._forming:
            self._loop.call_soon(self._hand_over)
        self._forming.append((peer, data))

    def _hand_over(self) -> None:
        forming, self._forming = self._forming, []
        self._queue.put(forming)

    def _write(self) -> None:
        while True:
            group = self._queue.get()
            while True:
                try:
                    group += self._queue.get_nowait()
                except Empty:
                    break
            os.write(self._log, b"".join([data for _, data in group]))
            os.fdatasync(self._log)
            self._loop.call_soon_threadsafe(self._done, group)

    @staticmethod
    def _done(group: list[tuple[Peer, bytes]]) -> None:
        answers: dict[Peer, int] = {}
        for peer, data in group:
            answers[peer] = answers.get(peer, 0) + len(data)
        for peer, size in answers.items():
            peer.answer(size)


class Peer(asyncio.Protocol):
    def __init__(self, log: BareLog, request_bytes: int, reply_bytes: int) -> None:
        self._log = log
        self._request_bytes = request_bytes
        self._reply = bytes(reply_bytes)
        self._unanswered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._log.add(self, data)

    def answer(self, size: int) -> None:
        self._unanswered += size
        count, self._unanswered = divmod(self._unanswered, self._request_bytes)
        if count and not self._transport.is_closing():
            self._transport.write(self._reply * count)


async def _main(folder: Path, request_bytes: int, reply_bytes: int) -> None:
    log = BareLog(folder / "log")
    server = await asyncio.get_running_loop().create_server(
        lambda: Peer(log, request_bytes, reply_bytes), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
