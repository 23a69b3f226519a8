"""Measuring: contenders run in turns, ratios are taken round by round, the median of them is the figure.

A machine that is busy elsewhere slows all contenders of a round alike, so a ratio within a round survives what an
absolute time does not. The order changes from round to round, the garbage collector runs between measurements and not
in them, and CPU time is the measure unless a contender waits for another process.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.pictures import Picture

__all__ = [
    "FULL",
    "QUICK",
    "Effort",
    "Figure",
    "Report",
    "Table",
    "Times",
    "figures_table",
    "geometric_mean",
    "machine",
    "measure",
    "take_turns",
]


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    rounds: measurements of each contender. slice_s: the time that one of them takes. scale: the share of their work
    that benchmarks do which move a fixed amount of data.
    """

    rounds: int
    slice_s: float
    scale: float


FULL: Final = Effort(rounds=11, slice_s=0.02, scale=1.0)
QUICK: Final = Effort(rounds=7, slice_s=0.003, scale=0.15)


@dataclass(frozen=True)
class Times:
    """Seconds for one call of each contender, one entry a round."""

    seconds: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str) -> float:
        """Median over the rounds of the time of `name` divided by the time of `to` in the same round."""
        return statistics.median(a / b for a, b in zip(self.seconds[name], self.seconds[to], strict=True))


@dataclass(frozen=True)
class Figure:
    """One number that has a goal. at_most: the goal is an upper bound, else a lower one."""

    name: str
    value: float
    goal: float
    at_most: bool
    unit: str = "×"

    @property
    def met(self) -> bool:
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    @property
    def shown(self) -> str:
        """The value for people, with its unit."""
        size = abs(self.value)
        digits = ",.0f" if size >= 1000 or (self.value == int(self.value) and not self.unit) else ".2f"
        if 0 < size < 0.01:
            digits = ".1g"
        return f"{self.value:{digits}} {self.unit.strip()}".strip()

    @property
    def goal_shown(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.goal:,g} {self.unit.strip()}".strip()


Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Heading and rows."""


@dataclass
class Report:
    """What one benchmark found: its figures, and tables and pictures for people.

    question: that it answers. says: the answer, a sentence. Of tables and pictures the first is what a reader sees.
    """

    title: str
    figures: list[Figure] = field(default_factory=list)
    question: str = ""
    says: str = ""
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "question": self.question,
            "says": self.says,
            "figures": [
                {
                    "name": f.name,
                    "value": f.value,
                    "goal": f.goal,
                    "at_most": f.at_most,
                    "unit": f.unit,
                    "met": f.met,
                    "shown": f.shown,
                    "goal_shown": f.goal_shown,
                }
                for f in self.figures
            ],
            "tables": [{"heading": list(heading), "rows": list(map(list, rows))} for heading, rows in self.tables],
            "pictures": [{"name": each.name, "title": each.title} for each in self.pictures],
            "notes": self.notes,
        }


def figures_table(figures: Sequence[Mapping[str, Any]]) -> Table:
    """Figures of `Report.to_dict` with their goals."""
    rows = [(f["name"], f["shown"], f["goal_shown"], "yes" if f["met"] else "**no**") for f in figures]
    return ("figure", "value", "goal", "met"), rows


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def measure(
    contenders: Mapping[str, Callable[[], object]], effort: Effort, *, clock: Callable[[], float] = time.process_time
) -> Times:
    """Times the contenders in turns, each called as often as fills a slice; a slice before that is not measured."""

    def slices(run: Callable[[], object]) -> Callable[[], float]:
        calls = _calibrate(run, effort.slice_s, clock)
        return lambda: _slice(run, calls, clock)

    return take_turns({name: slices(run) for name, run in contenders.items()}, effort.rounds)


def take_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> Times:
    """Lets contenders that say themselves how many seconds they took run in turns."""
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
    """Calls that fill a slice; they warm up caches, memos and the interpreter's specialisation on the way."""
    calls = 1
    while True:
        spent = _slice(run, calls, clock) * calls
        if spent >= slice_s:
            return max(1, round(calls * slice_s / spent))
        calls = max(calls * 2, math.ceil(calls * slice_s / spent)) if spent > 0 else calls * 8


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "compiler": platform.python_compiler(),
        "system": f"{platform.system()} {platform.release()}",
        "load_1_min": round(os.getloadavg()[0], 2),
        "hash_randomization": bool(sys.flags.hash_randomization),
    }


def _cpu() -> str:
    facts = Path("/proc/cpuinfo")
    if not facts.exists():
        return platform.processor() or platform.machine()
    for line in facts.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
