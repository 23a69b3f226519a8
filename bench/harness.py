"""Measuring: contenders run in turns, ratios are taken round by round, the median of the ratios is the figure.

A machine that is busy elsewhere slows all contenders of a round alike, so a ratio within a round is more stable than an
absolute time. The order changes from round to round, the garbage collector runs between measurements and not during
them, and CPU time is the measure unless a contender waits for another process.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = [
    "FULL", "QUICK", "Effort", "Figure", "Report", "Table", "Times", "geometric_mean", "machine", "measure",
    "take_turns",
]  # fmt: skip


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Args:
        rounds: Measurements of each contender.
        slice_s: Duration of one measurement of a function.
        scale: Fraction of the full load, for benchmarks that move a fixed amount of data.
    """

    rounds: int
    slice_s: float
    scale: float

    @property
    def is_full(self) -> bool:
        return self.scale == 1


FULL: Final = Effort(rounds=11, slice_s=0.02, scale=1.0)
QUICK: Final = Effort(rounds=7, slice_s=0.003, scale=0.15)


@dataclass(frozen=True)
class Times:
    """Seconds for one call of each contender, one entry a round."""

    seconds: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str) -> float:
        """Returns the median over the rounds of the time of `name` divided by the time of `to` in the same round."""
        return statistics.median(a / b for a, b in zip(self.seconds[name], self.seconds[to], strict=True))


@dataclass(frozen=True)
class Figure:
    """One number with a goal. at_most: the goal is an upper bound, otherwise a lower bound."""

    name: str
    value: float
    goal: float
    at_most: bool
    unit: str = "×"

    @property
    def met(self) -> bool:
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The cells of a table: name, value, goal, and whether the goal is met."""
        size = abs(self.value)
        digits = ",.0f" if size >= 1000 or (self.value == int(self.value) and not self.unit) else ".2f"
        value = f"{self.value:{digits}} {self.unit}".strip()
        goal = f"{'≤' if self.at_most else '≥'} {self.goal:,g} {self.unit}".strip()
        return self.name, value, goal, "yes" if self.met else "**no**"


Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Heading and rows."""


@dataclass
class Report:
    """The result of one benchmark: figures with goals, tables and notes for people."""

    title: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, value: float, goal: float, *, at_most: bool, unit: str = "×") -> None:
        self.figures.append(Figure(name, value, goal, at_most, unit))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def measure(
    contenders: Mapping[str, Callable[[], object]], effort: Effort, *, clock: Callable[[], float] = time.process_time
) -> Times:
    """Times functions in turns, each called often enough to fill a slice; a first slice is not measured."""

    def slices(run: Callable[[], object]) -> Callable[[], float]:
        calls = _calibrate(run, effort.slice_s, clock)
        return lambda: _slice(run, calls, clock)

    return take_turns({name: slices(run) for name, run in contenders.items()}, effort.rounds)


def take_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> Times:
    """Runs contenders in turns. Each returns the seconds that it measured itself."""
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    enabled = gc.isenabled()
    try:
        for turn in range(rounds):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                gc.collect()
                gc.disable()
                seconds[name].append(contenders[name]())
                if enabled:
                    gc.enable()
    finally:
        if enabled:
            gc.enable()
    return Times(seconds)


def _slice(run: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    turns = range(calls)
    start = clock()
    for _ in turns:
        run()
    return (clock() - start) / calls


def _calibrate(run: Callable[[], object], slice_s: float, clock: Callable[[], float]) -> int:
    """Returns the calls that fill a slice; the calls warm up caches, memos and the interpreter's specialisation."""
    calls = 1
    while True:
        spent = _slice(run, calls, clock) * calls
        if spent >= slice_s:
            return max(1, round(calls * slice_s / spent))
        calls = max(calls * 2, math.ceil(calls * slice_s / spent)) if spent > 0 else calls * 8


def machine() -> dict[str, Any]:
    """Returns the facts on which figures depend."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()}",
        "load_1_min": round(os.getloadavg()[0], 2),
        "hash_randomization": bool(sys.flags.hash_randomization),
    }


def _cpu() -> str:
    facts = Path("/proc/cpuinfo")
    for line in facts.read_text().splitlines() if facts.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
