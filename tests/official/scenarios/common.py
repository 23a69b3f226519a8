"""What scenarios share: how they talk with the test that started them, and how they read."""

from __future__ import annotations

import asyncio
import json
import select
import sys
import time
from collections.abc import Callable
from typing import Any

from pravega_client import StreamManager

AFTER_A_SLICE_S = 0.01
PATIENCE_S = 90.0
"""How long something may take that takes moments on a machine with nothing else to do."""
NO_SEGMENT = "Expected a StreamCut but none found"
"""How the client fails that is asked for the positions of a group that has read its streams to their ends."""


def say(what: str) -> None:
    """Tell the test how far this is."""
    print(json.dumps({"said": what}), flush=True)


def say_and_wait(what: str) -> None:
    """Tell the test, and go on when it says so."""
    say(what)
    if not sys.stdin.readline():
        raise EOFError(f"the test is gone, after {what}")


def told() -> bool:
    """Whether the test has said that it is time to go on."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


async def apart() -> None:
    """Wait until no thread of the client's is in Python's code.

    The thread that has brought a slice takes the interpreter lock once more before it lets go of the reader, and a
    blocking call of the client's holds that lock: made too early, the two wait for each other for good.
    """
    await asyncio.sleep(AFTER_A_SLICE_S)
    while len(sys._current_frames()) > 1:  # noqa: ASYNC110  what is waited for has no event
        await asyncio.sleep(AFTER_A_SLICE_S)


def attempt(call: Callable[[], Any]) -> dict[str, Any]:
    """What a call gives, or how it fails; PanicException is no Exception."""
    try:
        return {"gives": call()}
    except BaseException as error:  # noqa: BLE001
        return {"fails": type(error).__name__, "text": str(error)}


def manager(uri: str, scope: str = "", **streams: int) -> StreamManager:
    """A manager, with a scope and streams of so many segments."""
    made = StreamManager(uri)
    if scope:
        made.create_scope(scope)
    for stream, segments in streams.items():
        if not made.create_stream(scope, stream, segments):
            raise RuntimeError(f"stream {stream} was there before")
    return made


class Reading:
    """Reads with one reader and keeps what it got, in order.

    A slice that is not waited for to its end is lost: the client gives its events again only when its segment brings
    more. So no slice is given up, but with the whole scenario. After a second without events the client brings an
    empty one.

    Attributes:
        events: what was read.
        offsets: where each of them begins in its segment.
        segments: the ids of those the reader's group was seen to read; only if it was given.
        ended: whether the group has read all its segments to their ends; only if it was given.
    """

    def __init__(self, reader: Any, group: Any = None) -> None:
        """group: the reader's, if it is to be known which segments there are and whether they have ended."""
        self.reader = reader
        self.events: list[bytes] = []
        self.offsets: list[int] = []
        self.segments: set[int] = set()
        self.ended = False
        self._group = group
        self._look()

    async def once(self, deadline_s: float = PATIENCE_S) -> int:
        """Take one slice; give how many events it brought."""
        got = await asyncio.wait_for(self.reader.get_segment_slice_async(), deadline_s)
        await apart()
        before = len(self.events)
        for event in got:
            self.events.append(event.data())
            self.offsets.append(event.offset())
        self.reader.release_segment(got)
        self._look()
        return len(self.events) - before

    async def until(self, count: int, deadline_s: float = PATIENCE_S) -> list[bytes]:
        """Read so many events; give them all."""
        end = time.monotonic() + deadline_s
        while len(self.events) < count:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{len(self.events)} of {count} events came in {deadline_s} s")
            try:
                await self.once(left)
            except TimeoutError as error:
                raise TimeoutError(f"{len(self.events)} of {count} events came in {deadline_s} s") from error
        return self.events

    async def until_the_end(self, deadline_s: float = PATIENCE_S) -> int:
        """Read until all segments of the group have ended; give how many it has had."""
        end = time.monotonic() + deadline_s
        while not self.ended:
            if time.monotonic() > end:
                raise TimeoutError(f"the segments {sorted(self.segments)} did not end in {deadline_s} s")
            await self.once()
        return len(self.segments)

    def _look(self) -> None:
        if self._group is None:
            return
        found = attempt(lambda: self._group.get_streamcut().get_segment_offset_map())
        if "gives" in found:
            self.segments |= found["gives"].keys()
        elif NO_SEGMENT in found["text"]:
            self.ended = True
        else:
            raise RuntimeError(f"the group gives no positions: {found}")


def texts(events: list[bytes]) -> list[str]:
    return [event.decode() for event in events]


def by_key(events: list[bytes]) -> dict[str, list[int]]:
    """The numbers of events `key:number…` in the order in which they were read, by key."""
    found: dict[str, list[int]] = {}
    for event in events:
        key, number = event.split(b":", 2)[:2]
        found.setdefault(key.decode(), []).append(int(number))
    return found


def wrong_orders(events: list[bytes], keys: int, per_key: int) -> list[str]:
    """What is not right if each of `keys` keys was written the numbers 0 to `per_key`: the first few faults."""
    found, faults = by_key(events), []
    for key in sorted({f"k{number}" for number in range(keys)} | set(found)):
        numbers = found.get(key, [])
        if numbers != list(range(per_key)):
            missing = sorted(set(range(per_key)) - set(numbers))[:3]
            twice = (
                sorted(number for number in set(numbers) if numbers.count(number) > 1)[:3]
                if len(numbers) < 9999
                else []
            )
            faults.append(f"{key}: {len(numbers)} of {per_key}, missing {missing}, twice {twice}")
    return faults[:5]
