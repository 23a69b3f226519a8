"""Explores a client: two runs without faults, then a run for each point and failure, then pairs of failures.

Invariants: runs are in an order that tries each class and failure once before second members; a budget only ends the
list early; the same seed gives the same order. A run whose failures differ from those of its single failures is
reported; of a pair, the smallest part that still fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from random import Random
from typing import Any, Final, NamedTuple, TypedDict

from segstore.explore.failures import Failure, NotInjected, failures_at
from segstore.explore.judging import Good, Segments, compared, good_of, judged
from segstore.explore.points import Point, PointClass, classes_of
from segstore.explore.results import Cell, Exploration, Finding
from segstore.explore.running import Client, Injection, Run, RunSetting, prepared, run_once
from segstore.server.replay import Step, read_script
from segstore.traces import TraceClient, shortened
from segstore.wire.trace import Record, check_possible, parse_filter

_LATE_FRACTION: Final = 0.5
_SERVER: Final = "segstore.server"


class Plan(NamedTuple):
    """What will be tried. not_injected: (failure, why) → number of points."""

    classes: list[PointClass]
    injections: list[Injection]
    not_injected: Counter[tuple[str, str]]


Tell = Callable[[int, int, Finding | None], object]
"""Takes progress: the number of runs so far, the total, and the finding of the last run, if any."""


class ExploreOptions(TypedDict, total=False):
    """The keyword arguments of `explore`."""

    match: str
    failures: Sequence[str]
    only: str
    timeout_s: float
    keep_order: bool
    check: Callable[[Any], str | None] | None
    stores: int
    prepare: Client | None
    wanted: Segments | None
    complete: bool
    pairs: bool
    budget_s: float | None
    seed: int
    jobs: int
    with_http: bool
    started: Callable[[Plan], object]
    tell: Tell


async def explore(
    client: Client,
    *,
    match: str = "",
    failures: Sequence[str] = ("*",),
    only: str = "",
    timeout_s: float = 5.0,
    keep_order: bool = True,
    check: Callable[[Any], str | None] | None = None,
    stores: int = 1,
    prepare: Client | None = None,
    wanted: Segments | None = None,
    complete: bool = False,
    pairs: bool = False,
    budget_s: float | None = None,
    seed: int = 0,
    jobs: int = 1,
    with_http: bool = False,
    started: Callable[[Plan], object] = lambda plan: None,
    tell: Tell = lambda done, of, finding: None,
) -> Exploration:
    """Injects each failure at each point of a client's run, one per run.

    Args:
        client: Called with a fresh `ExploredCluster`; returns when done.
        match: A filter of the requests and calls at which failures are injected.
        failures: Patterns of names of failures, such as "cut *".
        only: The name of a run, to repeat it: "cut after at APPEND_BLOCK_END 1".
        timeout_s: After this time a client has hung.
        keep_order: Whether each writer's events must keep their order.
        check: Called after each run with the cluster; returns what else is broken, as "kind: text", or None.
        stores: The number of stores; containers move with two or more.
        prepare: Called once with a cluster; each run starts with the state that it leaves.
        wanted: The events of each segment, if known in advance.
        complete: Whether all members of a class are tried, not only the first, the second and the last.
        pairs: Whether to combine two failures where the first one leads to points of new classes.
        budget_s: Seconds after which no run starts.
        seed: Chooses the order of equals; 0 for the order of the run.
        jobs: The number of runs side by side.
        with_http: Whether each cluster serves the HTTP API.
        started: Called with the plan before the first run with a failure. tell: called after each run.

    Raises:
        TimeoutError: The run without faults does not end.
        ValueError: Its results differ from `wanted`, nothing can match `match`, a pattern selects no failure, or no run
            has the name `only`.
        FilterError: For `match`.
        NotPrepared: The preparation failed.
        CommandError: The client is a command that cannot be started.
        OSError: A cluster cannot be started.
        Exception: The client's own error in the run without faults.
    """
    if match.strip():
        check_possible(parse_filter(match, "request"), "log")
    begun_s = time.monotonic()
    with _quiet():
        setting = RunSetting(client, match, timeout_s, stores, check, with_http)
        if prepare is not None:
            setting = await prepared(setting, prepare)
        first = await _good_run(setting)
        if not first.points:
            raise ValueError(
                "the client made no request: it must use {controller}, {host} and {port}, or SEGSTORE_CONTROLLER, and "
                "no address of its own"
            )
        if first.leaked:
            setting = setting._replace(leaked=first.leaked)
        second = await _good_run(setting)
        good, notes = good_of(first, second, wanted)
        if wanted is not None and (missed := compared(wanted, first.segments, first.records if keep_order else None)):
            raise ValueError(f"the client's results differ from what is wanted: {'; '.join(missed)}")
        explorer = _Explorer(setting, good, keep_order=keep_order, failures=failures, jobs=jobs, tell=tell)
        explorer.until_s = None if budget_s is None else begun_s + budget_s
        options = {"stores": stores, "timeout_s": timeout_s, "prepare": prepare, "keep_order": keep_order}
        defaults = explore.__kwdefaults__ or {}
        explorer.options = {name: value for name, value in options.items() if value != defaults[name]}
        explorer.check_patterns(first)
        plan = explorer.plan(first, complete=complete, random=Random(seed) if seed else None)
        if only:
            plan = plan._replace(injections=[])
        started(plan)
        explorer.add_good()
        if only:
            await explorer.repeat(only, first)
        else:
            await explorer.run_all([(injection,) for injection in plan.injections])
            if pairs:
                await explorer.run_all(explorer.pairs())
                explorer.drop_known_pairs()
        return explorer.result(plan, notes)


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


async def _good_run(setting: RunSetting) -> Run:
    run = await run_once(setting)
    if run.is_hung:
        raise TimeoutError(
            f"the client does not finish within {setting.timeout_s:g} s, even without a fault: {'; '.join(run.waiting)}"
        )
    if run.error is not None:
        raise run.error
    return run


class _Explorer:
    """The runs of an exploration and what they have shown.

    until_s: no run starts later; None for no limit. options: those of `explore` that repeat a run and are no defaults.
    """

    until_s: float | None = None
    options: Mapping[str, object] = {}

    def __init__(
        self, setting: RunSetting, good: Good, *, keep_order: bool, failures: Sequence[str], jobs: int, tell: Tell
    ) -> None:
        self._setting = setting
        self._good = good
        self._keep_order = keep_order
        self._patterns = failures
        self._jobs = jobs
        self._tell = tell
        self._findings: list[Finding] = []
        self._cells: list[Cell] = []
        self._newly: list[tuple[Injection, list[Injection]]] = []
        self._unknown: Counter[tuple[str, str]] = Counter()
        self._impossible: Counter[tuple[str, str]] = Counter()
        self._notes: list[str] = []
        self._names: list[str] = []
        self._runs = 2
        self._total = 2
        self._skipped = 0
        self._has_streams = setting.prepared is not None or any(point.is_call for point in good.run.points)

    def check_patterns(self, run: Run) -> None:
        """Raises ValueError for a pattern that selects no failure at any point of a run."""
        names = {failure.name for point in run.points for failure in self._all_at(point)}
        for pattern in self._patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"no failure at any request or call of the client has a name like {pattern!r}")

    def _all_at(self, point: Point) -> Iterator[Failure | NotInjected]:
        late_s = self._setting.timeout_s * _LATE_FRACTION
        return failures_at(point, late_s=late_s, stores=self._setting.stores, streams=self._has_streams)

    def plan(self, run: Run, *, complete: bool, random: Random | None) -> Plan:
        """Returns the injections of single failures: each class and failure once, then second members."""
        classes = classes_of(run.chosen)
        not_injected: Counter[tuple[str, str]] = Counter()
        ranked: list[tuple[int, int, float, Injection]] = []
        for alike in classes:
            for rank, point in enumerate(alike.members(is_complete=complete)):
                for number, failure in enumerate(self._failures_at(point, not_injected)):
                    ranked.append((rank, 0 if random else number, random.random() if random else 0, failure))
        ranked.sort(key=lambda entry: entry[:3])
        return Plan(classes, [entry[3] for entry in ranked], not_injected)

    def _failures_at(self, point: Point, not_injected: Counter[tuple[str, str]] | None = None) -> Iterator[Injection]:
        for failure in self._all_at(point):
            if not any(fnmatchcase(failure.name, pattern) for pattern in self._patterns):
                continue
            if not isinstance(failure, NotInjected):
                yield Injection(point, failure)
            elif not_injected is not None:
                not_injected[failure.name, failure.why] += 1

    def add_good(self) -> None:
        """Adds the rules that the run without faults breaks."""
        broken = tuple(f"{rule}: {text}" for rule, text in self._good.broken.items())
        violation = self._good.run.violation
        if violation:
            broken += (violation,)
        if broken:
            self._findings.append(Finding((), broken, self._good.run.records))

    async def run_all(self, runs: Sequence[tuple[Injection, ...]]) -> None:
        """Runs the client once for each entry, several side by side."""
        self._total += len(runs)
        self._names += [" + ".join(map(str, injections)) for injections in runs]
        waiting = iter(runs)
        left = len(runs)

        async def work() -> None:
            nonlocal left
            for injections in waiting:
                if self.until_s is not None and time.monotonic() >= self.until_s:
                    return
                left -= 1
                await self._run(injections)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._jobs, len(runs))):
                    group.create_task(work())
        except ExceptionGroup as errors:  # trouble of the machine, of which the first sentence is enough
            raise errors.exceptions[0] from None
        self._skipped += left

    async def repeat(self, only: str, good: Run) -> None:
        """Runs the run with a name. Raises ValueError."""
        names = {str(injection): injection for point in good.points for injection in self._failures_at(point)}
        chosen: list[Injection] = []
        for name in only.split(" + "):
            if name not in names and chosen:
                run = await run_once(self._setting, *chosen)
                names |= {str(injection): injection for point in run.points for injection in self._failures_at(point)}
            if name not in names:
                raise ValueError(f"there is no failure {name!r} in the run without faults")
            chosen.append(names[name])
        await self.run_all([tuple(chosen)])

    async def _run(self, injections: tuple[Injection, ...]) -> None:
        run = await run_once(self._setting, *injections)
        self._runs += 1
        has_hung_once = False
        if run.is_hung and not any(injection.failure.may_wait for injection in injections):
            run = await run_once(self._setting, *injections)  # the machine may have been busy
            self._runs += 1
            self._total += 1
            has_hung_once = not run.is_hung
        broken, unknown = judged(self._good, run, keep_order=self._keep_order, timeout_s=self._setting.timeout_s)
        self._unknown += unknown
        finding = Finding(injections, tuple(broken), run.records, self.options) if broken else None
        if finding is not None:
            self._findings.append(finding)
        is_made = all(str(injection) in run.reached for injection in injections)
        self._impossible += Counter(
            (injection.failure.name, run.impossible[str(injection)])
            for injection in injections
            if str(injection) in run.impossible
        )
        why = "; ".join(run.impossible.values())
        if run.is_hung and not broken:
            why, is_made = f"the client still waited after {self._setting.timeout_s:g} s", False
        if has_hung_once:
            why, is_made = "hung once in two runs", False
            self._notes.append(f"{' + '.join(map(str, injections))}: {why}")
        self._cells.append(Cell(injections, finding, is_made, why))
        if len(injections) == 1 and is_made:
            self._remember_new(injections[0], run)
        self._tell(self._runs, self._total, finding)

    def _remember_new(self, injection: Injection, run: Run) -> None:
        """Keeps the points of classes that the run without faults has not."""
        known = {point.alike for point in self._good.run.points}
        new = [alike for alike in classes_of(run.chosen) if alike.name not in known]
        second = [other for alike in new for other in self._failures_at(alike.points[0])]
        if second:
            self._newly.append((injection, second))

    def pairs(self) -> list[tuple[Injection, ...]]:
        """Returns pairs of failures, those first whose first failure has led to the most new classes."""
        seen: set[tuple[str, str, str]] = set()
        pairs: list[tuple[Injection, ...]] = []
        for first, seconds in sorted(self._newly, key=lambda entry: -len(entry[1])):
            for second in seconds:
                key = first.point.alike, second.point.alike, second.failure.name
                if key not in seen:
                    seen.add(key)
                    pairs.append((first, second))
        return pairs

    def drop_known_pairs(self) -> None:
        """Drops the findings of pairs whose kinds their first failure has alone."""
        alone = {finding.name: finding.kinds for finding in self._findings if len(finding.injections) == 1}

        def is_known(finding: Finding) -> bool:
            return len(finding.injections) > 1 and finding.kinds <= alone.get(str(finding.injections[0]), set())

        self._findings = [finding for finding in self._findings if not is_known(finding)]
        self._cells = [
            cell._replace(finding=None) if cell.finding is not None and is_known(cell.finding) else cell
            for cell in self._cells
        ]

    def result(self, plan: Plan, notes: list[str]) -> Exploration:
        """Returns the result of all runs."""
        not_injected = plan.not_injected + self._impossible
        notes = [*notes, *self._notes]
        if self._skipped:
            more = "1 more run" if self._skipped == 1 else f"{self._skipped:,} more runs"
            notes.append(f"the budget ended before {more}")
        order = {name: number for number, name in enumerate(self._names)}
        findings = sorted(self._findings, key=lambda finding: order.get(finding.name, -1))
        singles = [cell for cell in self._cells if len(cell.injections) == 1]
        unreached = [cell.injections[0] for cell in singles if not cell.is_made and not cell.why]
        return Exploration(
            self._runs, findings, unreached, plan.classes, self._cells, not_injected, self._unknown, notes
        )


# --- traces -----------------------------------------------------------------------------------------------------------

_NOT_SHORTENED: Final = frozenset({"failures", "only", "pairs", "tell", "started", "budget_s", "wanted"})
"""The options of `explore` that do not hold for a part of a trace."""


async def explore_trace(
    records: Iterable[Record], *, make_client: Callable[[Sequence[Step]], TraceClient] = TraceClient, **options: Any
) -> Exploration:
    """Like `explore`, with the requests of a trace; findings are shortened to the fewest requests that still fail.

    make_client: creates a client that makes the given requests; by default a client that reconnects, sets its writers
    up again, and resends events that were not stored. options: those of `explore`.
    """
    steps = read_script(records)

    def client_of(some: Sequence[Step]) -> Client:
        return lambda mock: make_client(some).run(mock.host, mock.port)

    budget_s = options.get("budget_s")
    until_s = None if budget_s is None else time.monotonic() + budget_s
    explored = await explore(client_of(steps), **options)
    keep = {name: value for name, value in options.items() if name not in _NOT_SHORTENED}
    smallest_of: dict[int, Finding] = {}
    runs = explored.runs
    for finding in explored.findings:
        smallest = finding

        async def breaks(some: Sequence[Step], finding: Finding = finding) -> bool:
            nonlocal smallest, runs
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            pattern = [finding.injections[0].failure.name]
            try:
                again = await explore(client_of(some), failures=pattern, budget_s=left_s, **keep)
            except (ConnectionError, TimeoutError, ValueError):
                return False  # the shortened dialogue fails even without a fault, or has no such failure
            runs += again.runs
            for candidate in again.findings:
                if candidate.injections and candidate.kinds & finding.kinds:
                    smallest = candidate
                    return True
            return False

        if len(finding.injections) == 1:
            await shortened(steps, breaks)
        smallest_of[id(finding)] = smallest
    # Several may have been shortened to the same.
    distinct = {(finding.name, finding.broken): finding for finding in smallest_of.values()}
    cells = [cell._replace(finding=smallest_of.get(id(cell.finding))) for cell in explored.cells]
    return explored._replace(runs=runs, findings=list(distinct.values()), cells=cells)


async def wanted_of(records: Iterable[Record], timeout_s: float) -> Segments:
    """Returns the events that a trace's requests store. Raises the errors of `TraceClient`."""
    steps = read_script(records)
    setting = RunSetting(lambda mock: TraceClient(steps).run(mock.host, mock.port), "", timeout_s, 1, None)
    return (await _good_run(setting)).segments
