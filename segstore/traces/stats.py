"""Statistics of a trace: commands by direction, bytes, failures, latencies, unpaired requests and replies.

Latencies are times from a request to its reply, as paired by `segstore.wire.trace.exchanges`; p50 and p99 are actual
values (nearest rank).
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore.traces.judging import followed
from segstore.wire.trace import Direction, RecordKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, MutableSequence, Sequence

    from segstore.wire.trace import Damage, Filter, Record


class CommandTraffic(NamedTuple):
    """Frames, bytes and failures of one command in one direction."""

    direction: str
    command: str
    frames: int
    size: int
    failures: int
    malformed: int


class LatencyStats(NamedTuple):
    """Latencies of one command's requests, in ns."""

    command: str
    answered: int
    p50_ns: int
    p99_ns: int
    max_ns: int


class Statistics(NamedTuple):
    """All statistics of a trace; `as_object` converts them to JSON values.

    given_up: reads that waited for data when their client closed the connection; they are not in `unanswered`.
    """

    duration_ns: int
    connections: int
    still_open: int
    traffic: tuple[CommandTraffic, ...]
    latencies: tuple[LatencyStats, ...]
    unanswered: dict[str, int]
    given_up: dict[str, int]
    unasked: dict[str, int]

    def as_object(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "traffic": [command._asdict() for command in self.traffic],
            "latencies": [latency._asdict() for latency in self.latencies],
        }


def statistics(records: Iterable[Record], chosen: Filter | None = None, damages: Sequence[Damage] = ()) -> Statistics:
    """Computes the statistics of all records, or of records that match a filter; memory grows by 8 bytes per request.

    The latency of a request counts if it or its reply matches.
    """
    counts: dict[tuple[Direction, str], list[int]] = {}
    waits: dict[str, MutableSequence[int]] = {}
    unanswered, unasked = Counter[str](), Counter[str]()
    alive: set[int] = set()
    given_up: Counter[str] = Counter()
    connections = first = last = number = 0
    records, exchanges = followed(records, chosen, damages=damages)
    for _, seen in exchanges.settled(records):
        given_up.update(read.name for read in seen.given_up if chosen is None or chosen(read))
        if chosen is not None and not chosen(seen):
            continue
        record = seen.record
        first, last = (min(first, record.ts_ns), max(last, record.ts_ns)) if number else (record.ts_ns, record.ts_ns)
        number += 1
        if record.kind is RecordKind.CLOSE:
            alive.discard(record.connection)
            continue
        if record.kind is not RecordKind.CALL and (record.kind is RecordKind.OPEN or record.connection not in alive):
            connections += 1
            alive.add(record.connection)
        if record.kind is RecordKind.OPEN:
            continue
        name = seen.name if seen.call is not None else seen.type_name or "(no frame)"
        row = counts.setdefault((record.direction, name), [0, 0, 0, 0])
        row[0] += 1
        row[1] += len(record.data)
        row[2] += seen.failure and seen.ending is None
        row[3] += seen.malformed
        unanswered[name] += seen.awaits_reply
        unasked[name] += seen.unasked
        for request in (seen, *(answer for answer in seen.answers if chosen is not None and not chosen(answer))):
            if request.ending is not None and request.latency_ns is not None:
                times = waits.setdefault(request.name, array("q"))
                try:
                    times.append(request.latency_ns)
                except OverflowError:  # in 64 bits: the times of a damaged trace may be further apart
                    waits[request.name] = [*times, request.latency_ns]
    return Statistics(
        last - first,
        connections,
        len(alive),
        tuple(CommandTraffic(way.name.lower(), name, *row) for (way, name), row in sorted(counts.items())),
        tuple(_latency(name, sorted(found)) for name, found in sorted(waits.items())),
        dict(sorted((unanswered - given_up).items())),
        dict(sorted(given_up.items())),
        dict(sorted((+unasked).items())),
    )


def _latency(command: str, ascending: Sequence[int]) -> LatencyStats:
    count = len(ascending)
    return LatencyStats(
        command, count, ascending[(count - 1) // 2], ascending[-(-count * 99 // 100) - 1], ascending[-1]
    )


def lines(stats: Statistics) -> Iterator[str]:
    """Formats the statistics as text."""
    seconds = stats.duration_ns / 1e9
    yield f"{stats.connections} connections, {stats.still_open} of them open at the end, {seconds:.3f} s"
    if stats.traffic:
        yield ""
        yield f"{'':8} {'command':28} {'count':>10} {'bytes':>14} {'failures':>9} {'malformed':>9}"
        for command in stats.traffic:
            yield (
                f"{command.direction:8} {command.command:28} {command.frames:>10} {command.size:>14}"
                f" {command.failures or '':>9} {command.malformed or '':>9}"
            ).rstrip()
    if stats.latencies:
        yield ""
        yield f"{'request to reply':37} {'count':>10} {'p50':>10} {'p99':>10} {'max':>10}"
        for latency in stats.latencies:
            times = " ".join(f"{duration(ns):>10}" for ns in latency[2:])
            yield f"{latency.command:37} {latency.answered:>10} {times}"
    for what, counted in (
        ("without a reply", stats.unanswered),
        ("given up by the client, waiting for data", stats.given_up),
        ("replies to no request", stats.unasked),
    ):
        if counted:
            yield ""
            yield f"{what}: " + ", ".join(f"{name} {count}" for name, count in counted.items())


def duration(ns: int) -> str:
    """Formats a time in a suitable unit."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if abs(ns) >= size:
            return f"{ns / size:.3g} {unit}" if abs(ns) < 1000 * size else f"{ns / size:.0f} {unit}"
    return f"{ns} ns"
