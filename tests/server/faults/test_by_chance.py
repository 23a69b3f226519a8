"""Whatever goes wrong, in whatever order: the store stays whole, and it can be stopped."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Literal
from uuid import UUID

from segstore.server import MockSegmentStore
from segstore.server.faults import FaultRequest
from segstore.wire import AppendSetup, DataAppended, FrameDecoder, KeepAlive, WireError, encode
from tests.looped import looped
from tests.server.support import HELLO, SEGMENT, append, create, read, set_up, until


async def wait_a_little(request: FaultRequest) -> None:
    await asyncio.sleep(0.001)


ACTIONS: list[Any] = [
    "WrongHost",
    {"error": "NoSuchSegment", "at": "after"},
    {"delay_ms": 1},
    {"delay_ms": 2, "at": "after", "overtake": True},
    {"delay_ms": 1, "overtake": True},
    "hold",
    {"hold": "after", "overtake": True},
    "drop",
    "drop reply",
    "duplicate",
    "duplicate reply",
    {"corrupt": 3},
    {"corrupt": -1, "xor": 1},
    {"truncate": 9},
    "close",
    "close after",
    {"close": "after", "reply_bytes": 5},
    {"close": "after", "reset": True},
    lambda request: request.hold(),
    lambda request: request.answer("NoSuchSegment"),
    wait_a_little,
]
TWICE = ("duplicate request", "request")
TOXICS: list[dict[str, Any]] = [
    {"toxic": "latency", "latency": 2, "jitter": 2},
    {"toxic": "bandwidth", "rate": 200},
    {"toxic": "slow_close", "delay": 3},
    {"toxic": "timeout", "timeout": 5},
    {"toxic": "timeout", "timeout": 0},
    {"toxic": "reset_peer", "timeout": 1},
    {"toxic": "slicer", "average_size": 40, "size_variation": 39},
    {"toxic": "limit_data", "bytes": 300},
    {"toxic": "down"},
    {"toxic": "half_open"},
]


async def client(mock: MockSegmentStore, number: int, chance: random.Random) -> None:
    """Talks to the store over two connections and takes whatever comes, for a while."""
    writer_id = UUID(int=100 + number)
    for _ in range(2):
        reader, writer = await asyncio.open_connection(mock.host, mock.port)
        decoder = FrameDecoder(unknown="keep")
        talk = [HELLO, create(), set_up(writer_id=writer_id)]
        talk += [append(n, b"x" * chance.choice([1, 5000]), writer_id) for n in range(1, 8)]
        talk += [read(0), KeepAlive(), read(10**6, request_id=6)]
        try:
            for each in talk:
                writer.write(encode(each))
                if chance.random() < 0.5:
                    await asyncio.sleep(0)
            async with asyncio.timeout(0.03):
                while data := await reader.read(1 << 16):
                    for each in decoder.feed(data):
                        assert not isinstance(each, AppendSetup | DataAppended) or each.writer_id.int < 1 << 100
        except (TimeoutError, OSError, WireError):
            pass  # that it comes to this is the point
        finally:
            writer.transport.abort()


def add_toxics(mock: MockSegmentStore, chance: random.Random) -> None:
    for _ in range(chance.randint(0, 2)):
        toxic = dict(chance.choice(TOXICS))
        if toxic["toxic"] not in ("down", "half_open"):
            toxic["stream"] = chance.choice(["upstream", "downstream"])
        number = len(mock.faults.toxics.tallies())
        mock.faults.toxics.add(**toxic, name=f"t{number}", toxicity=chance.choice([0.5, 1.0]))


TYPES = {
    "request": ("APPEND_BLOCK_END", "READ_SEGMENT", "SETUP_APPEND"),
    "reply": ("DATA_APPENDED", "SEGMENT_READ", "APPEND_SETUP"),
}


@looped("seed", range(24))
async def test_a_store_on_which_everything_goes_wrong_stays_whole(seed: int) -> None:
    chance = random.Random(seed)
    async with MockSegmentStore(long_poll_s=0.01) as mock:
        for number in range(chance.randint(1, 6)):
            action = chance.choice(ACTIONS)
            on: Literal["request", "reply"] = (
                "request" if callable(action) else chance.choice(["request", "request", "reply"])
            )
            mock.faults.add(
                chance.choice(["", *(f"type = {type_}" for type_ in TYPES[on])]),
                do=action,
                on=on,
                probability=chance.choice([0.2, 1.0]),
                skip=chance.randint(0, 3),
                name=f"r{number}",
            )
        mock.faults.round_trip_ms = chance.choice([0, 0, 2])
        add_toxics(mock, chance)
        clients = [asyncio.create_task(client(mock, number, chance)) for number in range(2)]
        await asyncio.sleep(0.005)
        for name in mock.faults.rules:
            mock.faults.release(name)
        add_toxics(mock, chance)
        await asyncio.gather(*clients)
        mock.faults.clear()
        mock.faults.toxics.clear()
        mock.faults.round_trip_ms = 0
        await until(lambda: not mock.server.hub.connections)
        assert mock.server.service.counters.internal_errors == 0
        assert mock.server.hub.outstanding_bytes == 0
        assert mock.faults._held == {}
        # Each append that was applied is stored, once for each time that it was carried out: no less, no more. One with
        # the number of the last one is stored again, as in the reference, which refuses lower numbers only.
        twice = {
            decision.request for decision in mock.faults.decisions if (decision.action, decision.direction) == TWICE
        }
        stored = 0
        for request in mock.requests("type = APPEND_BLOCK_END", stage="applied"):
            stored += (2 if request.number in twice else 1) * (request.size - 76)
        assert (mock.segments[SEGMENT].length if SEGMENT in mock.segments else 0) == stored
