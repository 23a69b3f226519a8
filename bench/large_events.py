"""What does an event cost that goes through a transient segment, against the same bytes as events of 1 MB?

One client, one writer and one stream of one segment on a store in a process of its own; both contenders carry the same
bytes, in turns, each in a stream that is deleted after it. A write is timed from the first event that is submitted to
the last that is acknowledged, a read from opening a reader to the last event. Large events are MiB, as their limit is;
the small ones are a million bytes, and the last one takes what is left.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import uvloop

from bench.harness import Effort, Figure, Report
from bench.pages import main
from bench.pictures import Bars
from bench.processes import serving
from segstore.client import Client, ClientSettings, connect

__all__ = ["run"]

SIZES_MIB: Final = (24, 64, 256)
SMALL_BYTES: Final = 1_000_000
GOAL: Final = 0.5
_MIB: Final = 1024 * 1024


class _Times(NamedTuple):
    written_s: float
    read_s: float


def run(effort: Effort) -> Report:
    report = Report(
        "Large events",
        question="What does an event through a transient segment cost, compared with the same bytes in 1 MB events?",
    )
    rows = []
    with serving() as server:
        for mebibytes in SIZES_MIB:
            size = max(9 * _MIB, round(mebibytes * _MIB * effort.scale))
            large, small = uvloop.run(_in_turns(server.controller, size, max(3, effort.rounds // 2)))
            written = statistics.median(s.written_s / each.written_s for each, s in zip(large, small, strict=True))
            read = statistics.median(s.read_s / each.read_s for each, s in zip(large, small, strict=True))
            name = f"{size / _MIB:.0f} MiB"
            report.figures.append(Figure(f"writing one event of {name}, against 1 MB events", written, GOAL, False))
            rows.append(
                (
                    name,
                    *(f"{_rate(size, [each.written_s for each in some]):,.0f}" for some in (large, small)),
                    f"{written:.2f}",
                    *(f"{_rate(size, [each.read_s for each in some]):,.0f}" for some in (large, small)),
                    f"{read:.2f}",
                )
            )
    heading = ("the same bytes", "one event, MB/s", "1 MB events, MB/s", "ratio", "read: one", "1 MB", "ratio")
    report.tables.append((heading, rows))
    ratios = [figure.value for figure in report.figures]
    report.says = f"One large event is written at {min(ratios):.2f} to {max(ratios):.2f} times the rate of 1 MB events."
    shown = {
        name: [float(row[at].replace(",", "")) for row in rows]
        for at, name in ((1, "one event"), (2, "events of 1 MB"))
    }
    title = "The same bytes written as one event and as events of 1 MB"
    report.pictures.append(Bars("large-events", title, "", "MB/s", shown, groups=[row[0] for row in rows], decimals=0))
    report.notes.append("ratios of MB/s in the same round, medians; one writer, one segment; both end acknowledged")
    return report


def _rate(size: int, seconds: Sequence[float]) -> float:
    return size / statistics.median(seconds) / 1e6


async def _in_turns(controller: str, size: int, rounds: int) -> tuple[list[_Times], list[_Times]]:
    content = bytes(size)
    contenders = {"large": [content], "small": [content[at : at + SMALL_BYTES] for at in range(0, size, SMALL_BYTES)]}
    found: dict[str, list[_Times]] = {name: [] for name in contenders}
    async with connect(f"tcp://{controller}", ClientSettings()) as pravega:
        await pravega.controller.create_scope("bench")
        for number in range(-1, rounds):
            names = list(contenders) if number % 2 else list(reversed(contenders))
            for name in names:
                times = await _measure(pravega, f"{name}-{size}-{number + 1}", contenders[name])
                if number >= 0:  # the first round warms up
                    found[name].append(times)
    return found["large"], found["small"]


async def _measure(pravega: Client, stream: str, events: list[bytes]) -> _Times:
    await pravega.controller.create_stream("bench", stream)
    async with pravega.event_writer("bench", stream) as writer:
        gc.collect()
        start = time.perf_counter()
        await asyncio.gather(*[await writer.submit(event, routing_key="k") for event in events])
        written_s = time.perf_counter() - start
        if not writer.large_events.exactly_once or writer.large_events.restarts:
            raise RuntimeError(f"{stream}: {writer.large_events.restarts} restarts, which is not what is measured")
    gc.collect()
    start = time.perf_counter()
    async with pravega.event_reader("bench", stream) as reader:
        for event in events:
            if len((await anext(reader)).data) != len(event):
                raise RuntimeError(f"{stream}: an event came back with another size")
        read_s = time.perf_counter() - start
    await pravega.controller.seal_stream("bench", stream)
    await pravega.controller.delete_stream("bench", stream)
    return _Times(written_s, read_s)


if __name__ == "__main__":
    sys.exit(main("large_events", run))
