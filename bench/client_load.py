"""This client's side of `bench.client` and `bench.pooling`, in a process of its own: a line of JSON asks, one answers.

As `bench/official_load.py` for the official client: what a line asks is measured around the client's own calls, and
the events are the same. Runs on uvloop, as `segstore serve` does.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from segstore.client import ClientSettings, SegmentWriter, connect
from segstore.client.connection import ConnectionPool, Endpoint, FixedStore
from segstore.client.errors import ClientError

__all__ = ["main"]

Found = dict[str, Any]


async def write(uri: str, stream: str, count: int, size: int, writers: int, segments: int) -> Found:
    """Events of all writers in turn, without a wait for one of them; ends when the last is stored."""
    async with connect(uri) as pravega:
        await pravega.controller.create_scope("bench")
        await pravega.controller.create_stream("bench", stream, segments=segments)
        made = [pravega.event_writer("bench", stream) for _ in range(writers)]
        event, keys = bytes(size), [f"k{at}" for at in range(writers)]
        for each, key in zip(made, keys, strict=True):
            await each.open()
            await each.submit(event, routing_key=key)
        for each in made:
            await each.flush()
        pairs = [(each.submit, key) for each, key in zip(made, keys, strict=True)]
        quiet()
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range((count - writers) // writers):
            for submit, key in pairs:
                await submit(event, routing_key=key)
        for each in made:
            await each.flush()
        found = {"s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}
        for each in made:
            await each.aclose()
        return found | {"sockets": pravega.metrics().connections}


async def read(uri: str, stream: str, count: int, size: int) -> Found:
    async with connect(uri) as pravega, pravega.event_reader("bench", stream) as events:
        quiet()
        found, start, cpu = 0, time.perf_counter(), time.process_time()
        while found < count:  # in slices, as the official client reads
            for event in await events.read_slice():
                found += 1
                if len(event.data) != size:
                    raise ValueError(f"an event of {len(event.data)} bytes, not {size}")
        return {"s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}


async def latency(uri: str, stream: str, count: int, size: int) -> Found:
    """Milliseconds from each event's write to its acknowledgement, one in flight."""
    async with connect(uri) as pravega:
        await pravega.controller.create_scope("bench")
        await pravega.controller.create_stream("bench", stream, segments=1)
        async with pravega.event_writer("bench", stream) as writer:
            event, waits = bytes(size), []
            cpu = time.process_time()
            for number in range(count + count // 10):
                start = time.perf_counter()
                await writer.write(event, routing_key="k")
                if number >= count // 10:
                    waits.append((time.perf_counter() - start) * 1000)
            return {"ms": waits, "cpu_s": time.process_time() - cpu}


async def delete(uri: str, stream: str) -> Found:
    async with connect(uri) as pravega:
        await pravega.controller.seal_stream("bench", stream)
        await pravega.controller.delete_stream("bench", stream)
    return {}


async def append(
    port: int, segments: list[str], count: int, size: int, window: int, settings: dict[str, Any], memory: bool = False
) -> Found:
    """`count` appends over all segments, a writer each, `window` of every writer in flight; a new one for each ack."""
    raise_descriptors()
    async with ConnectionPool(ClientSettings.model_validate(settings)) as pool:
        where, event = FixedStore(Endpoint("127.0.0.1", port)), bytes(size)
        gc.collect()
        before = held_bytes()
        writers = [SegmentWriter(pool, where, segment) for segment in segments]
        await asyncio.gather(*[each.write(event) for each in writers])
        gc.collect()
        found: Found = {"bytes_each": (held_bytes() - before) / len(segments), "sockets": pool.metrics().connections}
        if not memory:
            found |= await _appends(writers, event, count, window)
        for each in writers:
            await each.abort()
        return found


async def _appends(writers: list[SegmentWriter], event: bytes, count: int, window: int) -> Found:
    done = asyncio.get_running_loop().create_future()
    unsent = unstored = total = max(count, len(writers) * window)

    def begin(writer: SegmentWriter) -> None:
        nonlocal unsent

        def stored(error: ClientError | None) -> None:
            nonlocal unsent, unstored
            if error is not None:
                if not done.done():
                    done.set_exception(error)
                return
            unstored -= 1
            if unsent:
                unsent -= 1
                writer.append(event, stored)
            elif not unstored:
                done.set_result(None)

        for _ in range(window):
            unsent -= 1
            writer.append(event, stored)

    quiet()
    start, cpu = time.perf_counter(), time.process_time()
    for writer in writers:
        begin(writer)
    await done
    return {"s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu, "count": total}


async def beside_heavy(
    port: int, segments: list[str], heavy: int, size: int, window: int, count: int, settings: dict[str, Any]
) -> Found:
    """Milliseconds of `count` small appends, one in flight of each light writer, beside `heavy` writers of large ones.

    The light writers come when the heavy ones have all their appends in flight.
    """
    async with ConnectionPool(ClientSettings.model_validate(settings)) as pool:
        where, large = FixedStore(Endpoint("127.0.0.1", port)), bytes(size)
        heavies = [SegmentWriter(pool, where, segment) for segment in segments[:heavy]]
        await asyncio.gather(*[each.write(b"x") for each in heavies])
        going = True

        def again(writer: SegmentWriter) -> None:
            def stored(error: ClientError | None) -> None:
                if going and error is None:
                    writer.append(large, stored)

            for _ in range(window):
                writer.append(large, stored)

        for each in heavies:
            again(each)
        await asyncio.sleep(0.05)
        lights = []
        for segment in segments[heavy:]:
            lights.append(SegmentWriter(pool, where, segment))
            await lights[-1].write(b"x")
        waits: list[float] = []
        quiet()

        async def light(writer: SegmentWriter) -> None:
            for _ in range(count // len(lights)):
                start = time.perf_counter()
                await writer.write(bytes(100))
                waits.append((time.perf_counter() - start) * 1000)

        await asyncio.gather(*[light(each) for each in lights])
        going = False
        for each in (*lights, *heavies):
            await each.abort()
        return {"ms": waits}


def quiet() -> None:
    """No collections while it is measured; the process ends with its one answer, or begins anew."""
    gc.collect()
    gc.disable()


def held_bytes() -> int:
    """What the process holds of the machine's memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmRSS")


def raise_descriptors() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    does: dict[str, Callable[..., Awaitable[Found]]] = {
        "write": write,
        "read": read,
        "latency": latency,
        "delete": delete,
        "append": append,
        "beside_heavy": beside_heavy,
    }
    print("{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        call = does[asked.pop("do")]
        found: Found = uvloop.run(call(**asked))  # type: ignore[arg-type]  # each is a coroutine function
        gc.enable()
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
