"""What a session expiry costs: containers that change owner, and how long writing stops, for both policies (57.10).

Three stores in one process with a coordination service beside them, in real time, and a client that writes to six
segments, one event after the other on each. The session of one store expires in one of three ways: the service says so
and the store hears it at once; the line between the two is cut until others have taken over, and heals; the store is
gone without notice. Counted are the containers that another store serves at any time afterwards, and the longest
time between two acknowledgements on any segment, next to the longest before.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple

from bench.harness import Effort, Figure, Report
from bench.pages import main
from bench.pictures import Bars
from segstore.client import connect
from segstore.client.stream import EventWriter
from segstore.server.cluster import MockCluster
from segstore.server.coordination import OwnershipSettings

__all__ = ["run"]

Policy = Literal["reconnect", "shutdown"]
How = Literal["expired", "cut", "gone"]

CONTAINERS: Final = 12
SEGMENTS: Final = 6
TIMEOUTS_MS: Final = (1_000.0, 2_000.0, 4_000.0)
QUICK_TIMEOUTS_MS: Final = (300.0, 600.0)
STEADY_S: Final = 0.4
PAUSE_S: Final = 0.002
PATIENCE_S: Final = 60.0
SAID: Final = {"expired": "ended by the service", "cut": "line cut", "gone": "store gone"}


class Cost(NamedTuple):
    """share: of the containers of the store, those that another had. before_s and gap_s: longest waits for an
    acknowledgement."""

    share: float
    before_s: float
    gap_s: float


def run(effort: Effort) -> Report:
    with _quiet():
        return _run(effort)


@contextmanager
def _quiet() -> Iterator[None]:
    """Stores say when one of them goes; that is what is done to them here, again and again."""
    log = logging.getLogger("segstore")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _run(effort: Effort) -> Report:
    report = Report(
        "Ownership",
        question="The session of one store of three expires: which containers change owner, and for how long does a "
        "segment take no writes?",
    )
    whole = effort.scale == 1
    timeouts = TIMEOUTS_MS if whole else QUICK_TIMEOUTS_MS
    rounds = 2 if whole else 1
    rows: list[tuple[str, ...]] = []
    gaps: dict[str, list[float]] = {}
    share: dict[tuple[str, str], float] = {}
    for policy in ("reconnect", "shutdown"):
        for how in ("expired", "cut", "gone"):
            for timeout_ms in timeouts:
                costs = [asyncio.run(_cost(policy, how, timeout_ms)) for _ in range(rounds)]
                gap_s = statistics.median(each.gap_s for each in costs)
                share[policy, how] = statistics.median(each.share for each in costs)
                gaps.setdefault(f"{policy}, {SAID[how]}", []).append(gap_s)
                rows.append(
                    (
                        f"{policy}, {SAID[how]}",
                        f"{timeout_ms / 1000:g}",
                        f"{share[policy, how]:.0%}",
                        f"{share[policy, how] / 3:.0%}",
                        f"{statistics.median(each.before_s for each in costs):.3f}",
                        f"{gap_s:.3f}",
                    )
                )
    report.figures.append(
        Figure(
            "reconnect, session ended by the service: containers of the store that change owner",
            share["reconnect", "expired"],
            0.0,
            at_most=True,
            unit="",
        )
    )
    kept, lost = (statistics.median(gaps[f"{policy}, {SAID['expired']}"]) for policy in ("reconnect", "shutdown"))
    gone = gaps[f"reconnect, {SAID['gone']}"][-1]
    report.says = (
        f"A store that reconnects when the service ends its session keeps {1 - share['reconnect', 'expired']:.0%} of "
        f"its containers, and writes stop for {kept:.2f} s; one that shuts down gives up all of them, and writes stop "
        f"for {lost:.2f} s. If a store disappears without notice, its containers are taken over when its session "
        f"expires, which takes {gone:.1f} s with a timeout of {timeouts[-1] / 1000:g} s."
    )
    heading = (
        "policy, and what happens",
        "session timeout, s",
        "of the store's containers change owner",
        "of all",
        "longest wait before, s",
        "write gap, s",
    )
    report.tables.append((heading, rows))
    report.pictures.append(
        Bars(
            "ownership-gap",
            "The session of one store of three expires: how long a segment takes no writes",
            "session timeout",
            "s",
            gaps,
            groups=[f"{each / 1000:g} s" for each in timeouts],
            decimals=2,
        )
    )
    report.notes.append(
        f"{'mean of 2 rounds' if rounds == 2 else '1 round'}; {CONTAINERS} containers, a takeover delay of "
        f"{_settings('reconnect', 1_000).takeover_delay_ms:g} ms; a cut line stays cut until other "
        "stores own all containers"
    )
    return report


def _settings(policy: Policy, timeout_ms: float) -> OwnershipSettings:
    return OwnershipSettings(session_timeout_ms=timeout_ms, session_expired_policy=policy)


async def _cost(policy: Policy, how: How, timeout_ms: float) -> Cost:
    mock = MockCluster(stores=3, containers=CONTAINERS, ownership=_settings(policy, timeout_ms))
    async with mock, connect(f"tcp://{mock.controller_uri}") as pravega:
        await pravega.controller.create_scope("bench")
        await pravega.controller.create_stream("bench", "stream", segments=SEGMENTS)
        async with pravega.event_writer("bench", "stream") as writer:
            waits: list[float] = []
            over = asyncio.Event()
            writing = [asyncio.create_task(_write(writer, f"key {key}", waits, over)) for key in range(SEGMENTS * 3)]
            await asyncio.sleep(STEADY_S)
            before_s = max(waits)
            waits.clear()
            had = set(mock.stores[0].store.containers)
            lost = await _expire(mock, how, had)
            await asyncio.sleep(STEADY_S)
            over.set()
            await asyncio.gather(*writing)
        return Cost(len(lost) / len(had), before_s, max(waits))


async def _write(writer: EventWriter, key: str, waits: list[float], over: asyncio.Event) -> None:
    while not over.is_set():
        start = time.perf_counter()
        await writer.write(b"event", routing_key=key)
        waits.append(time.perf_counter() - start)
        await asyncio.sleep(PAUSE_S)


async def _expire(mock: MockCluster, how: How, had: set[int]) -> set[int]:
    """Has the first store's session expire; the containers that others have until all are served again."""
    lost: set[int] = set()
    end_s = time.monotonic() + PATIENCE_S
    if how == "expired":
        mock.expire_session(0)
    else:
        mock.cut_session(0)
        if how == "gone":
            await mock.stores[0].stop(drain_s=0)
    while not had <= lost | (_served(mock, 0) if how == "expired" else set()):
        if time.monotonic() > end_s:
            raise RuntimeError(f"containers {had - lost} are served by nobody else")
        lost |= had & (_served(mock, 1) | _served(mock, 2))
        await asyncio.sleep(PAUSE_S)
    if how == "cut":
        mock.heal_session(0)
    return lost


def _served(mock: MockCluster, number: int) -> set[int]:
    return set(mock.stores[number].store.containers)


if __name__ == "__main__":
    sys.exit(main("ownership", run))
