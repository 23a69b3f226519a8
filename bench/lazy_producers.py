"""What do many writers that write little cost a stream of many segments: eager, lazy, connected to a few (79.9)?

Each writer is a client of its own, with its own pool of connections, as writers on different machines are; they share
the calls to the controller, which are not what is asked here. Each writes a few events without routing keys, each
acknowledged before the next. Memory is what the kernel says that the process of `segstore serve` holds, before the
writers and with all of them connected, so it counts what they leave in the segments as well. The baseline of each ratio
is the eager writers of the same run.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from typing import Final

import uvloop

from bench.harness import Effort, Figure, Report
from bench.pages import main
from bench.pictures import Bars
from bench.processes import Serving, serving
from segstore.client import ClientSettings, Cluster, ConnectionPool, EventWriter, PartialRoundRobin, Router, connect

__all__ = ["Found", "run"]

WRITERS: Final = 1_000
SEGMENTS: Final = 100
EVENTS: Final = 5
EVENT_BYTES: Final = 100
AT_ONCE: Final = 10
SPARE_DESCRIPTORS: Final = 200
MODES: Final[Sequence[tuple[str, bool, Router | None]]] = (
    ("eager", False, None),
    ("lazy", True, None),
    ("lazy, PartialRoundRobin(3)", True, PartialRoundRobin(3)),
)


@dataclass(frozen=True)
class Found:
    """With all writers connected: the server's connections, segment writers, and bytes that its memory grew by."""

    connections: int
    writers: int
    memory_bytes: int


def run(effort: Effort) -> Report:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    per_store = ClientSettings().max_connections_per_store
    writers = max(10, round(WRITERS * effort.scale))
    if writers * per_store > most - SPARE_DESCRIPTORS:
        raise RuntimeError(f"{writers} writers need {writers * per_store} connections, the system allows {most}")
    found: dict[str, Found] = {}
    for name, lazy, router in MODES:
        with serving() as server:
            found[name] = uvloop.run(_measure(server, writers, lazy_start=lazy, router=router))
    return _report(found, writers, per_store)


async def _measure(server: Serving, count: int, *, lazy_start: bool, router: Router | None) -> Found:
    async with connect(f"tcp://{server.controller}", random=Random(1)) as pravega, AsyncExitStack() as stack:
        await pravega.controller.create_scope("bench")
        await pravega.controller.create_stream("bench", "low-rate", segments=SEGMENTS)
        locations = pravega.locations("WRITE")
        memory, descriptors = server.memory_bytes(), server.descriptors()

        async def one(number: int) -> EventWriter:
            pool = await stack.enter_async_context(ConnectionPool(pravega.pool.settings, random=Random(number)))
            cluster = Cluster(pool, pravega.controller, locations)
            writer = EventWriter(cluster, "bench", "low-rate", lazy_start=lazy_start, router=router)
            await writer.open()
            stack.push_async_callback(writer.aclose)
            for _ in range(EVENTS):
                await writer.write(bytes(EVENT_BYTES))
            return writer

        writers: list[EventWriter] = []
        for first in range(0, count, AT_ONCE):
            writers += await asyncio.gather(*map(one, range(first, min(first + AT_ONCE, count))))
        return Found(
            server.descriptors() - descriptors,
            sum(len(each.stats().segments) for each in writers),
            server.memory_bytes() - memory,
        )


def _report(found: dict[str, Found], writers: int, per_store: int) -> Report:
    report = Report(
        "Writers that write little", question="What do many writers that write little cost a stream of many segments?"
    )
    eager = found["eager"]
    for name, goals in (("lazy", (0.65, 0.1, 0.6)), ("lazy, PartialRoundRobin(3)", (0.31, 0.04, 0.35))):
        here = found[name]
        for what, value, of, goal in (
            ("connections", here.connections, eager.connections, goals[0]),
            ("segment writers", here.writers, eager.writers, goals[1]),
            ("server memory", here.memory_bytes, eager.memory_bytes, goals[2]),
        ):
            report.figures.append(Figure(f"{name}: {what}, of eager's", value / of, goal, at_most=True))
    report.says = (
        "Writers that connect to a segment at their first write to it need {:.2f} of the connections and {:.2f} of the "
        "server memory of eager ones; limited to three segments each, {:.2f} and {:.2f}."
    ).format(*(report.figures[at].value for at in (0, 2, 3, 5)))
    rows = [
        (name, f"{each.connections:,}", f"{each.writers:,}", f"{each.memory_bytes / 1e6:,.1f}")
        for name, each in found.items()
    ]
    report.tables.append((("writers", "connections", "segment writers", "server memory, MB"), rows))
    report.notes.append(
        f"{writers:,} writers on a stream of {SEGMENTS} segments, each {EVENTS} events of {EVENT_BYTES} bytes without "
        f"routing key; each has a pool of its own, of at most {per_store} connections to the store"
    )
    report.pictures.append(
        Bars(
            name="lazy-producers",
            title=f"{writers:,} low-rate writers, {SEGMENTS} segments: share of what eager writers take",
            x_label="",
            y_label="% of eager",
            series={
                "connections": [100 * each.connections / eager.connections for each in found.values()],
                "segment writers": [100 * each.writers / eager.writers for each in found.values()],
                "server memory": [100 * each.memory_bytes / eager.memory_bytes for each in found.values()],
            },
            groups=tuple(found),
        )
    )
    return report


if __name__ == "__main__":
    sys.exit(main("lazy_producers", run))
