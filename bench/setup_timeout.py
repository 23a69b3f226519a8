"""One controller of three takes connections and never finishes their set-up: how soon is a client served? (601.8)

The two others are `segstore serve` in processes of their own; the silent one is a socket that is listened on and never
answered, and the client's URI names it first. Measured is the time of the client's first call, with several set-up
timeouts, and with the timeout off, which is cut after a while: no answer comes then.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import sys
import time
from typing import Final

from bench.harness import Effort, Figure, Report
from bench.pages import main
from bench.pictures import Bars
from bench.processes import serving
from segstore.client import ClientSettings, connect

__all__ = ["run"]

TIMEOUTS_MS: Final = (250.0, 500.0, 1_000.0, 2_000.0)
OFF_MS: Final = 86_400_000.0
CUT_S: Final = 10.0
MARGIN: Final = 1.5
"""In set-up timeouts; their jitter alone is a fifth."""


def run(effort: Effort) -> Report:
    report = Report(
        "Set-up timeout",
        question="One controller of three accepts connections and never answers: how soon is a client served?",
    )
    rounds = max(1, effort.rounds // 2)
    cut_s = CUT_S if effort.scale == 1 else 2.0
    rows, served = [], list[float]()
    with serving() as one, serving() as other, socket.create_server(("127.0.0.1", 0)) as silent:
        nodes = (f"127.0.0.1:{silent.getsockname()[1]}", one.controller, other.controller)
        for timeout_ms in TIMEOUTS_MS:
            times = [asyncio.run(_first_call(nodes, timeout_ms, CUT_S)) for _ in range(rounds)]
            if None in times:
                raise RuntimeError(f"a client with a set-up timeout of {timeout_ms:g} ms was not served in {CUT_S} s")
            whole = [each for each in times if each is not None]
            middle = statistics.median(whole)
            served.append(middle)
            rows.append((f"{timeout_ms / 1000:g} s", f"{middle:.2f}", f"{max(whole):.2f}"))
        report.figures.append(
            Figure(
                "one node of three never answers: time until served, in set-up timeouts",
                served[-1] * 1000 / TIMEOUTS_MS[-1],
                MARGIN,
                at_most=True,
            )
        )
        off = asyncio.run(_first_call(nodes, OFF_MS, cut_s))
    report.says = f"After {served[-1] * 1000 / TIMEOUTS_MS[-1]:.2f} set-up timeouts" + (
        "; with the timeout off, never." if off is None else f"; with the timeout off, after {off:.1f} s."
    )
    said = f"not served, cut after {cut_s:g}" if off is None else f"{off:.2f}"
    rows.append(("off", said, said))
    report.tables.append((("set-up timeout", "s until served, median", "longest"), rows))
    groups = [f"{each / 1000:g} s" for each in TIMEOUTS_MS]
    off_group = f"off (cut after {cut_s:g} s)" if off is None else "off"
    report.pictures.append(
        Bars(
            "setup-timeout",
            "One controller of three never answers: the client's first call",
            "set-up timeout",
            "s until served",
            {"first call": [*served, cut_s if off is None else off]},
            groups=[*groups, off_group],
            decimals=2,
        )
    )
    report.notes.append(f"{rounds} rounds; each timeout is up to a fifth shorter or longer, by chance")
    return report


async def _first_call(nodes: tuple[str, ...], timeout_ms: float, cut_s: float) -> float | None:
    """Seconds until a client's first call was answered, None if it was cut."""
    settings = ClientSettings(
        socket_connection_setup_timeout_ms=timeout_ms,
        socket_connection_setup_timeout_max_ms=max(timeout_ms, 30_000.0),
        request_timeout_ms=OFF_MS,
    )
    async with connect(f"tcp://{','.join(nodes)}", settings) as pravega:
        start = time.perf_counter()
        try:
            async with asyncio.timeout(cut_s):
                await pravega.controller.create_scope("bench")
        except TimeoutError:
            return None
        return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main("setup_timeout", run))
