"""What scenarios share: how they talk with the test that started them, and how they read."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from pravega_client import StreamManager

AFTER_A_SLICE_S = 0.01
"""A blocking call right after an awaited slice can stall the client for good."""


def say(what: str) -> None:
    """Tell the test how far this is."""
    print(json.dumps({"said": what}), flush=True)


def say_and_wait(what: str) -> None:
    """Tell the test, and go on when it says so."""
    say(what)
    if not sys.stdin.readline():
        raise EOFError(f"the test is gone, after {what}")


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
    """Reads with one reader and keeps what it got, in order: `events`, and `slices`, how many each slice brought."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self.events: list[bytes] = []
        self.offsets: list[int] = []
        self.slices: list[int] = []

    async def once(self, deadline_s: float = 20.0) -> int:
        """Take one slice; give how many events it brought."""
        got = await asyncio.wait_for(self.reader.get_segment_slice_async(), deadline_s)
        await asyncio.sleep(AFTER_A_SLICE_S)
        before = len(self.events)
        for event in got:
            self.events.append(event.data())
            self.offsets.append(event.offset())
        self.reader.release_segment(got)
        self.slices.append(len(self.events) - before)
        return self.slices[-1]

    async def until(self, count: int, deadline_s: float = 30.0) -> list[bytes]:
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

    async def until_the_end(self, quiet_s: float = 0.6) -> int:
        """Read on until nothing comes for that long; give how many segments have ended by then since the start.

        The end of a segment is an empty slice. When all have ended the client waits for more, for ever.
        """
        while True:
            try:
                await self.once(quiet_s)
            except TimeoutError:
                return self.slices.count(0)


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
