"""Writing and reading events: keys, sizes, order, exactly once."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from pravega_client import StreamManager

from common import PATIENCE_S, Reading, apart, attempt, manager, say, say_and_wait, texts, wrong_orders


async def basics(uri: str, scope: str = "a") -> dict[str, Any]:
    """Text and bytes, with and without routing keys, one at a time and many in flight, flushed and awaited."""
    made = manager(uri, scope, s=3)
    one, many = made.create_writer(scope, "s"), made.create_writer(scope, "s", 100)
    written = [f"text {number}" for number in range(20)] + ["ünïcödé ⚡"]
    for number, text in enumerate(written):
        one.write_event(text, routing_key=str(number) if number % 2 else None)
    binary = bytes(range(256))
    one.write_event_bytes(binary)
    many.write_event_bytes(binary, routing_key="key")
    for number in range(500):
        many.write_event(f"many {number}")
    many.flush()
    many.flush()
    reading = Reading(made.create_reader_group("g", scope, "s").create_reader("r"))
    await reading.until(len(written) + 502)
    awaited = made.create_writer(scope, "s")
    await awaited.write_event_async("awaited", routing_key="key")
    await apart()
    await reading.until(len(written) + 503)
    reading.reader.reader_offline()
    found = reading.events
    return {
        "texts": sorted(texts([event for event in found if event != binary]))
        == sorted([*written, "awaited", *(f"many {n}" for n in range(500))]),
        "binary": found.count(binary),
    }


def content(number: int, size: int) -> bytes:
    """Bytes of that length that no other number has."""
    seed = hashlib.sha256(b"%d" % number).digest()
    return (seed * (size // len(seed) + 1))[:size]


async def sizes(uri: str, sizes: list[int], scope: str = "a") -> dict[str, Any]:
    """Events of these sizes, in this order, on a stream of one segment."""
    made = manager(uri, scope, sized=1)
    writer = made.create_writer(scope, "sized")
    for number, size in enumerate(sizes):
        writer.write_event_bytes(content(number, size), routing_key="k")
    writer.flush()
    reading = Reading(made.create_reader_group("sizes", scope, "sized").create_reader("r"))
    events = await reading.until(len(sizes))
    too_large = attempt(lambda: writer.write_event_bytes(bytes(16 * 1024 * 1024)))
    return {
        "read": [len(event) for event in events],
        "wrong": [number for number, event in enumerate(events) if event != content(number, sizes[number])],
        "too large": too_large,
    }


def write(
    uri: str,
    scope: str,
    stream: str,
    keys: int,
    per_key: int,
    *,
    in_flight: int = 1000,
    pad: int = 80,
    pauses: int = 0,
    prefix: str = "k",
) -> float:
    """Write `per_key` events with each of `keys` keys, round by round, and tell of the first acknowledgement.

    pauses: how often on the way the test is asked to go on.
    """
    made = StreamManager(uri)
    writer = made.create_writer(scope, stream, in_flight)
    filling = "." * pad
    writer.write_event(f"{prefix}0:0:{filling}", routing_key=f"{prefix}0")
    writer.flush()
    say("writing")
    start = time.monotonic()
    stops = {per_key * (number + 1) // (pauses + 1) for number in range(pauses)}
    for number in range(per_key):
        if number in stops:
            say_and_wait("paused")
        for key in range(keys):
            if number or key:
                writer.write_event(f"{prefix}{key}:{number}:{filling}", routing_key=f"{prefix}{key}")
    writer.flush()
    return time.monotonic() - start


async def read(
    uri: str, scope: str, stream: str, keys: int, per_key: int, group: str = "g", deadline_s: float = PATIENCE_S
) -> dict[str, Any]:
    """Read what `write` wrote, all of it, and say what is wrong with it."""
    made = StreamManager(uri)
    reading = Reading(made.create_reader_group(group, scope, stream).create_reader("r"))
    say("reading")
    problem = ""
    try:
        await reading.until(keys * per_key, deadline_s)
    except TimeoutError as error:
        problem = str(error)
    reading.reader.reader_offline()
    return {"events": len(reading.events), "wrong": wrong_orders(reading.events, keys, per_key), "problem": problem}


async def write_and_read(uri: str, scope: str, stream: str, segments: int, keys: int, per_key: int) -> dict[str, Any]:
    """One process writes, then reads, a new stream."""
    manager(uri, scope, **{stream: segments})
    write(uri, scope, stream, keys, per_key)
    return await read(uri, scope, stream, keys, per_key, group=f"of-{stream}")


async def read_to_the_end(
    uri: str, scope: str, stream: str, keys: int, per_key: int, group: str = "g"
) -> dict[str, Any]:
    """Read until the reader finds that the stream has ended."""
    made = StreamManager(uri)
    shared = made.create_reader_group(group, scope, stream)
    reading = Reading(shared.create_reader("r"), shared)
    say("reading")
    await reading.until(keys * per_key)
    ended = await reading.until_the_end()
    return {
        "events": len(reading.events),
        "wrong": wrong_orders(reading.events, keys, per_key),
        "segments ended": ended,
    }


def write_until_refused(uri: str, scope: str, stream: str) -> dict[str, Any]:
    """Write, seal, write."""
    made = manager(uri, scope, **{stream: 2})
    writer = made.create_writer(scope, stream)
    for number in range(200):
        for key in range(2):
            writer.write_event(f"k{key}:{number}:", routing_key=f"k{key}")
    writer.flush()
    sealed = made.seal_stream(scope, stream)

    def write_on() -> None:
        for number in range(10):
            writer.write_event(f"late {number}")
        writer.flush()

    return {"sealed": sealed, "late": attempt(write_on)}


def churn(uri: str, scope: str, rounds: int, name: str = "churn") -> str:
    """Make streams, write to them and delete them, with a manager of its own each time."""
    for number in range(rounds):
        made = StreamManager(uri)
        stream = f"{name}{number}"
        made.create_stream(scope, stream, 2)
        writer = made.create_writer(scope, stream)
        writer.write_event("x")
        writer.write_event_bytes(bytes(9 * 1024 * 1024))
        writer.flush()
        made.seal_stream(scope, stream)
        made.delete_stream(scope, stream)
    return "done"


def write_for_ever(uri: str, scope: str, stream: str) -> None:
    """Write small events and large ones until killed."""
    made = StreamManager(uri)
    writer = made.create_writer(scope, stream, 100)
    writer.write_event("x")
    writer.flush()
    say("writing")
    large = bytes(12_000_000)
    while True:
        for _ in range(50):
            writer.write_event("y", routing_key="k")
        writer.write_event_bytes(large, routing_key="k")
