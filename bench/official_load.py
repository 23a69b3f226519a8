"""The official client's side of `bench.client`, in a process of its own: a line of JSON asks, one answers.

The process needs the package `pravega` and nothing of this project. What a line asks is measured around the client's
own calls, CPU time of all its threads included.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from pravega_client import StreamManager  # type: ignore[import-untyped, import-not-found, unused-ignore]

__all__ = ["main"]

IN_FLIGHT = 1000


def write(uri: str, stream: str, count: int, size: int, writers: int = 1, segments: int = 1) -> dict[str, float]:
    """Events of all writers in turn; ends when the last is stored."""
    made = StreamManager(uri)
    made.create_scope("bench")
    made.create_stream("bench", stream, segments)
    event = bytes(size)
    pairs = [(made.create_writer("bench", stream, IN_FLIGHT), f"k{at}") for at in range(writers)]
    for writer, key in pairs:
        writer.write_event_bytes(event, routing_key=key)
    for writer, _ in pairs:
        writer.flush()
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range((count - writers) // writers):
        for writer, key in pairs:
            writer.write_event_bytes(event, routing_key=key)
    for writer, _ in pairs:
        writer.flush()
    return {"s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}


def latency(uri: str, stream: str, count: int, size: int) -> dict[str, Any]:
    """Milliseconds from each event's write to its acknowledgement, one in flight."""
    made = StreamManager(uri)
    made.create_scope("bench")
    made.create_stream("bench", stream, 1)
    writer, event = made.create_writer("bench", stream, IN_FLIGHT), bytes(size)
    waits = []
    cpu = time.process_time()
    for number in range(count + count // 10):
        start = time.perf_counter()
        writer.write_event_bytes(event, routing_key="k")
        writer.flush()
        if number >= count // 10:
            waits.append((time.perf_counter() - start) * 1000)
    return {"ms": waits, "cpu_s": time.process_time() - cpu}


def read(uri: str, stream: str, count: int, size: int) -> dict[str, float]:
    made = StreamManager(uri)
    reader = made.create_reader_group(f"g{time.monotonic_ns()}", "bench", stream).create_reader("r")

    async def all_of_it() -> dict[str, float]:
        found, start, cpu = 0, time.perf_counter(), time.process_time()
        while found < count:
            piece = await reader.get_segment_slice_async()
            for event in piece:
                found += 1
                if len(event.data()) != size:
                    raise ValueError(f"an event of {len(event.data())} bytes, not {size}")
            reader.release_segment(piece)
            await asyncio.sleep(0)
        return {"s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}

    return asyncio.run(all_of_it())


def delete(uri: str, stream: str) -> dict[str, float]:
    made = StreamManager(uri)
    made.seal_stream("bench", stream)
    made.delete_stream("bench", stream)
    return {}


def main() -> None:
    does: dict[str, Any] = {"write": write, "read": read, "latency": latency, "delete": delete}
    print("{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(does[asked.pop("do")](**asked)), flush=True)


if __name__ == "__main__":
    main()
