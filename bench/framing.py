"""What does it cost to find frames in a stream, next to reading its bytes at all and next to `readexactly`?

A sender in another process fills a TCP connection on the loopback interface; compared are the rates at which the bytes
are taken from it. "Pairs" are what one append of 1 KB is on the wire: an AppendBlock that holds it and its
AppendBlockEnd.
"""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

from bench.harness import Effort, Figure, Report, Times, take_turns
from bench.pictures import Bars
from bench.sender import Sender
from segstore.wire import AppendBlock, AppendBlockEnd, DataAppended, FrameDecoder, decode, encode

__all__ = ["run"]

BUFFER_BYTES: Final = 1 << 18
PAIRS, ACKS = "pairs", "acks"
RAW, DECODED, PROTOCOL, STREAM = "recv_into", "FrameDecoder", "uvloop, FrameDecoder", "readexactly, decode"

WRITER: Final = uuid.UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
MESSAGES: Final = {
    PAIRS: encode(AppendBlock(WRITER, bytes(1024))) + encode(AppendBlockEnd(WRITER, 1024, b"", 1, 1 << 40, 7 << 32)),
    ACKS: encode(DataAppended(7 << 32, WRITER, 1 << 40, (1 << 40) - 1, 1 << 41)),
}
TIMES: Final = {PAIRS: 40_000, ACKS: 80_000}


def run(effort: Effort) -> Report:
    report = Report("Framing", question="What does framing cost, compared with only receiving the bytes?")
    with Sender(MESSAGES) as sender, socket.create_server(("127.0.0.1", 0)) as listener:
        pairs = _compare(sender, listener, PAIRS, effort)
        acks = _compare(sender, listener, ACKS, effort)
    goals = [
        ("pairs: framing with decode, of the rate of recv_into", pairs.ratio(RAW, DECODED), 0.60),
        ("pairs: rate of framing with decode, of two readexactly a frame", pairs.ratio(STREAM, PROTOCOL), 4.5),
        ("acks: rate of framing with decode, of two readexactly a frame", acks.ratio(STREAM, PROTOCOL), 8),
    ]
    report.figures += [Figure(name, value, goal, at_most=False) for name, value, goal in goals]
    rows = [
        (name, *(f"{times.median(name) * 1e9:.0f}" for times in (pairs, acks)), *_rates(name, pairs, acks))
        for name in (RAW, DECODED, PROTOCOL, STREAM)
    ]
    report.says = (
        f"Appends of 1 KB are framed and decoded at {goals[0][1]:.0%} of the rate of `recv_into` alone; that is "
        f"{goals[1][1]:.1f} times the rate of two calls of `readexactly` per frame."
    )
    shown = {
        what: [times.ratio(RAW, name) for name in (RAW, DECODED, STREAM)]
        for what, times in (("pairs", pairs), ("acks", acks))
    }
    labels = ["recv_into", "FrameDecoder", "readexactly,\ndecode"]
    title = "Rate at which a TCP connection is taken, of recv_into"
    report.pictures.append(Bars("framing-rates", title, "", "× recv_into", shown, log=True, groups=labels, decimals=2))
    report.notes.append(
        "pairs: an AppendBlock of 1 KB and its AppendBlockEnd; acks: DataAppended; another process fills the connection"
    )
    report.tables.append((("receiver", "ns a pair", "ns an ack", "pairs, of recv_into", "acks, of recv_into"), rows))
    return report


def _rates(name: str, *all_times: Times) -> list[str]:
    return [f"{times.ratio(RAW, name):.2f}" for times in all_times]


def _compare(sender: Sender, listener: socket.socket, what: str, effort: Effort) -> Times:
    times = max(200, round(TIMES[what] * effort.scale))
    expected = times * len(MESSAGES[what])
    port = listener.getsockname()[1]

    def timed(receive: Callable[[socket.socket, int], None]) -> Callable[[], float]:
        def once() -> float:
            sender.send(what, times, port)
            peer, _ = listener.accept()
            with peer:
                start = time.perf_counter()
                receive(peer, expected)
                return (time.perf_counter() - start) / times

        return once

    return take_turns(
        {
            RAW: timed(_receive),
            DECODED: timed(lambda peer, size: _receive(peer, size, FrameDecoder().feed)),
            PROTOCOL: timed(_in_loop(_by_protocol)),
            STREAM: timed(_in_loop(_by_stream)),
        },
        effort.rounds,
    )


# --- receivers --------------------------------------------------------------------------------------------------


def _receive(peer: socket.socket, expected: int, feed: Callable[[bytearray, int], object] | None = None) -> None:
    buffer = bytearray(BUFFER_BYTES)
    while expected:
        size = peer.recv_into(buffer)
        if not size:
            raise ConnectionError(f"{expected} bytes are missing")
        expected -= size
        if feed is not None:
            feed(buffer, size)


def _in_loop(receive: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[socket.socket, int], None]:
    def received(peer: socket.socket, expected: int) -> None:
        peer.setblocking(False)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(receive(peer, expected))

    return received


class _Protocol(asyncio.BufferedProtocol):
    def __init__(self, expected: int) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._left = expected
        self._feed = FrameDecoder().feed
        self._buffer = bytearray(BUFFER_BYTES)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._feed(self._buffer, nbytes)
        self._left -= nbytes
        if not self._left:
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError(f"{self._left} bytes are missing"))


async def _by_protocol(peer: socket.socket, expected: int) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(lambda: _Protocol(expected), sock=peer)
    await protocol.done
    transport.close()


async def _by_stream(peer: socket.socket, expected: int) -> None:
    reader, writer = await asyncio.open_connection(sock=peer, limit=BUFFER_BYTES)
    while expected:
        header = await reader.readexactly(8)
        body = await reader.readexactly(int.from_bytes(header[4:], "big"))
        decode(header + body)
        expected -= 8 + len(body)
    writer.close()
