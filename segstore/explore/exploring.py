"""Explores a client: two runs without faults, then a run for each point and failure, then pairs of failures.

Invariants: the next run is of the class of points, and of the kind of failure, that were tried the least, first members
before second members; a budget only ends the list early; the same seed gives the same order. Of a pair, the smallest
part that fails is reported.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from math import inf
from random import Random
from typing import Any, Final, NamedTuple, Unpack

from segstore.explore.failures import failures_at
from segstore.explore.judging import Good, compared, good_of, judged
from segstore.explore.options import Client, ExploreOptions, ExplorerSetting, Segments
from segstore.explore.points import Point, PointClass, classes_of
from segstore.explore.results import Exploration, Finding, name_of
from segstore.explore.running import Injection, Run, prepared, run_once
from segstore.server.replay import Step, read_script
from segstore.traces import TraceClient, shortened
from segstore.wire.printable import printable
from segstore.wire.trace import Record, check_possible, parse_filter

_SERVER: Final = "segstore.server"
Injections = tuple[Injection, ...]


class Plan(NamedTuple):
    """What will be tried."""

    classes: list[PointClass]
    injections: list[Injection]


async def explore(client: Client, **options: Unpack[ExploreOptions]) -> Exploration:
    """Injects each failure at each point of a client's run, one per run.

    Args:
        client: Called with a fresh `ExploredCluster`; returns when done.
        options: See `ExploreOptions`.

    Raises:
        TimeoutError: The run without faults does not end.
        ValueError: The results of the run without faults differ from `wanted`, nothing can match `match`, a pattern
            selects no failure, the patterns are no list, no run has the name `only`, or `jobs` is less than 1.
        TypeError: `check` returned something else than text or None.
        FilterError: For `match`.
        NotPrepared: The preparation failed.
        CommandError: The client is a command that cannot be started.
        OSError: A cluster cannot be started.
        Exception: The client's own error in the run without faults.
    """
    setting = ExplorerSetting(client, **options)
    if setting.jobs is not None and setting.jobs < 1:
        raise ValueError(f"jobs: {setting.jobs} is less than 1")
    if isinstance(setting.failures, str):  # each character would be a pattern
        raise ValueError(f"failures: {setting.failures!r} is no list of patterns, such as ['cut *']")
    until_s = inf if setting.budget_s is None or setting.only else time.monotonic() + setting.budget_s
    if setting.match.strip():
        check_possible(parse_filter(setting.match), "log")
    with _quiet():
        if setting.prepare is not None:
            setting = await prepared(setting, setting.prepare)
        (first, second), notes = await _good_runs(setting)
        if not first.points:
            raise ValueError(
                "the client made no request: it must use {controller}, {host} and {port}, or SEGSTORE_CONTROLLER, and "
                "no address of its own"
            )
        streams = setting.prepare is not None or any(point.is_call for point in first.points)
        if streams:  # changes of streams need it; clients would wait while a run imports it
            from segstore.server import control_api  # noqa: F401
        setting = setting._replace(leaked=first.leaked, streams=streams, jobs=1 if notes else setting.jobs)
        good, differences = good_of(first, second, setting.wanted)
        if setting.wanted is not None:
            missed = compared(setting.wanted, first.segments, first.records if setting.keep_order else None)
            if missed:
                raise ValueError(f"the client's results differ from what is wanted: {'; '.join(missed)}")
        return await _Explorer(setting, good, notes + differences, until_s).explored()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the log of the servers: the faults, and their consequences, are intended."""

    def is_severe(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.CRITICAL

    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith(_SERVER)]
    for logger in loggers:
        logger.addFilter(is_severe)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_severe)


async def _good_runs(setting: ExplorerSetting) -> tuple[list[Run], list[str]]:
    """Runs the client twice without faults, if it can be side by side; returns a note if it cannot.

    Raises the client's error.
    """
    both: Sequence[Run | BaseException] = ()
    if setting.side_by_side > 1:
        both = await asyncio.gather(_good_run(setting), _good_run(setting), return_exceptions=True)
    runs = [run for run in both if isinstance(run, Run)]
    errors = [error for error in both if isinstance(error, BaseException)]
    if errors and not runs:
        raise errors[0]
    while len(runs) < 2:
        runs.append(await _good_run(setting))
    why = "runs are one by one, because side by side the client fails even without a fault"
    return runs, [f"{why}: {error}" for error in errors[:1]]


async def _good_run(setting: ExplorerSetting) -> Run:
    run = await run_once(setting)
    if run.is_hung:
        raise TimeoutError(
            f"the client does not finish within {setting.timeout_s:g} s, even without a fault: {'; '.join(run.waiting)}"
        )
    if isinstance(run.error, SystemExit | asyncio.CancelledError):  # which would end the caller's loop or task
        raise RuntimeError(f"the client raised {run.error!r}") from run.error
    if run.error is not None:
        raise run.error
    return run


class _Explorer:
    """The runs of an exploration and what they have shown. until_s: no run starts later."""

    # `_new`: the name of a run with one failure → the classes of points that the run without faults has not.

    def __init__(self, setting: ExplorerSetting, good: Good, notes: list[str], until_s: float) -> None:
        self._setting, self._good, self._until_s = setting, good, until_s
        self._explored = Exploration(2, classes_of(good.run.chosen), notes)
        self._total = 2
        self._new: dict[str, list[PointClass]] = {}

    async def explored(self) -> Exploration:
        """Runs the client with each failure. Raises ValueError for a pattern or a name that selects nothing."""
        setting, good, explored = self._setting, self._good, self._explored
        names = {failure.name for _, failure in self._injections(good.run.points, ("*",))}
        for pattern in setting.failures:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"no failure at any request or call of the client has a name like {pattern!r}")
        singles = [] if setting.only else self._singles(explored.classes)
        if setting.failures and not (setting.only or singles or explored.not_injected):
            where = f" that matches {setting.match!r}" if setting.match.strip() else ""
            raise ValueError(f"no request or call of the client{where} has a failure like {list(setting.failures)}")
        setting.started(Plan(explored.classes, [injection for (injection,) in singles]))
        broken = [f"{rule}: {text}" for rule, text in good.broken.items()]
        broken += [good.run.violation] if good.run.violation else []
        if broken:
            explored.cells.append(Finding((), tuple(map(printable, broken)), good.run.records))
        await self._run_all([await self._named(setting.only)] if setting.only else singles)
        if setting.pairs:
            await self._run_all(self._pairs())
        return explored

    def _injections(self, points: Iterable[Point], patterns: Iterable[str]) -> Iterator[Injection]:
        """Yields the injections at points that patterns select, including impossible injections."""
        for point in points:
            for failure in failures_at(point, self._setting):
                if any(fnmatchcase(failure.name, pattern) for pattern in patterns):
                    yield Injection(point, failure)

    def _singles(self, classes: Iterable[PointClass]) -> list[Injections]:
        later = 0.0 if self._setting.budget_s is None else 0.5  # runs that only wait would use up the budget
        ranked = [
            (rank + later * injection.failure.only_waits, (injection,))
            for alike in classes
            for rank, point in enumerate(alike.members(is_complete=self._setting.complete))
            for injection in self._injections([point], self._setting.failures)
        ]
        impossible = [injection.failure for _, (injection,) in ranked if injection.failure.why_not]
        self._explored.not_injected.update((failure.name, failure.why_not) for failure in impossible)
        return self._varied(entry for entry in ranked if not entry[1][0].failure.why_not)

    def _pairs(self) -> list[Injections]:
        """Returns pairs of failures, those first whose first failure has led to the most new classes."""
        pairs: dict[tuple[str, str, str], tuple[float, Injections]] = {}
        firsts = [(cell.injections[0], self._new[cell.name]) for cell in self._explored.cells if cell.name in self._new]
        for first, new in sorted(firsts, key=lambda entry: -len(entry[1])):
            for alike in new:
                for second in self._injections(alike.points[:1], self._setting.failures):
                    if not second.failure.why_not:
                        key = first.point.alike, alike.name, second.failure.name
                        pairs.setdefault(key, (-len(new), (first, second)))
        return self._varied(pairs.values())

    def _varied(self, ranked: Iterable[tuple[float, Injections]]) -> list[Injections]:
        """Orders runs by rank, then so that the next is the most different from the runs before."""
        random = Random(self._setting.seed) if self._setting.seed else None
        heap = [
            (rank, 0, random.random() if random else 0.0, number, injections)
            for number, (rank, injections) in enumerate(ranked)
        ]
        heapq.heapify(heap)
        tried: Counter[tuple[float, str]] = Counter()
        ordered = []
        while heap:
            rank, known, shuffled, number, injections = heapq.heappop(heap)
            traits = [(rank, text) for point, failure in injections for text in (point.alike, failure.kind)]
            times = sum(tried[trait] for trait in traits)
            if times > known:  # it has become less different since it was put here
                heapq.heappush(heap, (rank, times, shuffled, number, injections))
                continue
            tried.update(traits)
            ordered.append(injections)
        return ordered

    async def _named(self, only: str) -> Injections:
        """Returns the injections of a run with a name. Raises ValueError."""
        names = self._names(self._good.run)
        chosen: Injections = ()
        for name in only.split(" + "):
            if name not in names and chosen:
                names |= self._names(await run_once(self._setting, *chosen))
            if name not in names:
                where = f"with {name_of(chosen)}" if chosen else "without faults"
                raise ValueError(f"there is no failure {name!r} in the run {where}")
            chosen = *chosen, names[name]
        return chosen

    def _names(self, run: Run) -> dict[str, Injection]:
        """Returns the injections at all points of a run by name, whatever the patterns select."""
        injections = self._injections(run.points, ("*",))
        return {str(injection): injection for injection in injections if not injection.failure.why_not}

    async def _run_all(self, runs: Sequence[Injections]) -> None:
        """Runs the client once for each entry, several side by side."""
        self._total += len(runs)
        cells: dict[int, Finding] = {}
        waiting = (entry for entry in enumerate(runs))

        async def work() -> None:
            with closing(waiting):  # after an error, no run starts
                for number, injections in waiting:
                    if time.monotonic() >= self._until_s:
                        return
                    cells[number] = await self._run(injections)

        workers = (work() for _ in range(min(self._setting.side_by_side, len(runs))))
        for outcome in await asyncio.gather(*workers, return_exceptions=True):
            if outcome is not None:  # trouble of the machine
                raise outcome
        self._explored.cells += [cell for _, cell in sorted(cells.items())]
        if skipped := len(runs) - len(cells):
            more = "1 more run" if skipped == 1 else f"{skipped:,} more runs"
            self._explored.notes.append(f"the budget ended before {more}")

    async def _run(self, injections: Injections) -> Finding:
        setting, why = self._setting, ""
        run = await run_once(setting, *injections)
        self._explored.runs += 1
        if run.is_hung and run.is_made and not any(injection.failure.may_wait for injection in injections):
            run = await run_once(setting, *injections)  # the machine may have been busy
            self._explored.runs += 1
            self._total += 1
            if not run.is_hung:
                why = "hung once in two runs"
                self._explored.notes.append(f"{name_of(injections)}: {why}")
        broken: list[str] = []
        if run.is_made:  # else it shows nothing about its failures
            broken, unknown = judged(setting, self._good, run)
            self._explored.unknown += unknown
        finding = Finding(injections, tuple(broken), run.records if broken else (), setting.repeating)
        if len(injections) > 1 and finding.kinds <= self._kinds(injections):
            finding = Finding(injections)  # the failures alone break as much
        for injection in injections:
            if str(injection) in run.impossible:
                self._explored.not_injected[injection.failure.name, run.impossible[str(injection)]] += 1
        if not why and run.is_hung and run.is_made and not broken:
            why = f"the client still waited after {setting.timeout_s:g} s"
        why = why or "; ".join(run.impossible.values())
        is_made = not why and run.is_made
        if is_made and len(injections) == 1:
            failed = str(injections[0].point)
            known = {point.alike for point in self._good.run.points}
            self._new[name_of(injections)] = classes_of(
                point for point in run.chosen if point.alike not in known and str(point) != failed
            )
        self._setting.tell(self._explored.runs, self._total, finding if finding.broken else None)
        return finding._replace(is_made=is_made, why=why)

    def _kinds(self, injections: Injections) -> set[str]:
        """Returns the kinds of failure that each of some injections shows alone."""
        names = set(map(str, injections))
        return {kind for cell in self._explored.cells if cell.name in names for kind in cell.kinds}


# --- traces -----------------------------------------------------------------------------------------------------------

_NOT_SHORTENED: Final = frozenset({"failures", "only", "pairs", "tell", "started", "budget_s", "wanted"})
"""The options of `explore` that do not hold for a part of a trace."""


async def explore_trace(
    records: Iterable[Record], *, make_client: Callable[[Sequence[Step]], TraceClient] = TraceClient, **options: Any
) -> Exploration:
    """Like `explore`, with the requests of a trace; findings are shortened to the fewest requests that still fail
    at a point of the same class.

    make_client: creates a client that makes the given requests; by default a client that reconnects, sets its writers
    up again, and resends events that were not stored. options: those of `explore`.
    """
    steps = read_script(records)

    def client_of(some: Sequence[Step]) -> Client:
        return lambda mock: make_client(some).run(mock.host, mock.port)

    budget_s = options.get("budget_s")
    until_s = inf if budget_s is None else time.monotonic() + budget_s
    explored = await explore(client_of(steps), **options)
    keep = {name: value for name, value in options.items() if name not in _NOT_SHORTENED}

    async def smallest_of(finding: Finding) -> Finding:
        if len(finding.injections) != 1:
            return finding
        ((point, failure),) = finding.injections
        smallest = finding

        async def breaks(some: Sequence[Step]) -> bool:
            nonlocal smallest
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            try:
                again = await explore(client_of(some), failures=[failure.name], budget_s=left_s, **keep)
            except (ConnectionError, TimeoutError, ValueError):
                return False  # the shortened dialogue fails even without a fault, or has no such failure
            explored.runs += again.runs
            for candidate in again.findings:
                is_alike = [injection.point.alike for injection in candidate.injections] == [point.alike]
                if is_alike and candidate.kinds & finding.kinds:
                    smallest = candidate
                    return True
            return False

        await shortened(steps, breaks)
        return smallest

    explored.cells = [await smallest_of(cell) if cell.broken else cell for cell in explored.cells]
    return explored


async def wanted_of(records: Iterable[Record], timeout_s: float) -> Segments:
    """Returns the events that a trace's requests store. Raises the errors of `TraceClient`."""
    steps = read_script(records)
    setting = ExplorerSetting(lambda mock: TraceClient(steps).run(mock.host, mock.port), timeout_s=timeout_s)
    return (await _good_run(setting)).segments
