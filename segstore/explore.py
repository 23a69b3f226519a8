"""The race explorer: reruns a working dialogue once for each point at which its connection can be cut.

    found = await explore(lambda mock: my_test(mock.host, mock.port))
    assert not found.findings, found

For each request of the fault-free run, the connection is cut before the store receives it, after the store has applied
it but before the reply, and within the reply. The client may reconnect. When it is done, the store's contents are
compared with the fault-free run's: events may be lost, duplicated, reordered or foreign; a client that does not finish
has hung. If the client raises, its user knows about the failure, so lost events are not a finding; duplicates are.

A finding holds the records of its run or, for requests from a trace, of the shortest trace that fails in the same way.

In the command of a client, `{host}`, `{port}` and `{controller}` are filled in; `{{name}}` becomes `{name}`, and
`${name}` is left for a shell.

Invariants: every run has a fresh store; the fault-free run must succeed; a client that hangs is cancelled, and its run
counts; unknown placeholders, a line that cannot be split and a missing program are refused with one sentence, before or
instead of a run; words with an address filled in are not split again.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import re
import shlex
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypedDict
from uuid import UUID

from segstore.server import MockSegmentStore, SegmentStoreServer
from segstore.server.recording import TraceRecorder
from segstore.server.replay import Step, read_script
from segstore.traces import TraceClient, shortened
from segstore.wire.blocks import Append, split_events
from segstore.wire.names import is_index, is_transient
from segstore.wire.printable import printable
from segstore.wire.trace import Metadata, Record, TraceWriter, check_possible, make_mark, parse_filter, read_records

Where = Literal["before", "after", "within"]
Mock = Any
"""A `MockSegmentStore`, or a `MockCluster` for clients that need a controller."""

Client = Callable[[Mock], Awaitable[Any]]

_EVERYWHERE: Final[tuple[Where, ...]] = ("before", "after", "within")
_WITHIN_BYTES: Final = 11
PLACES: Final = ("host", "port", "controller")
"""The placeholders of a command."""
_PLACE: Final = re.compile(r"\{\{(\w+)\}\}|(?<!\$)\{([A-Za-z_]\w*)\}")
_MEANINGS: Final = {
    "before": "before the store has it",
    "after": "after the store has applied it, before the reply",
    "within": "within its reply",
}


class ClientFailed(RuntimeError):
    """The client's command failed. Attributes: status (its exit status), said (its standard error)."""

    def __init__(self, status: int, said: str) -> None:
        shown = "\n".join(map(printable, said.strip()[-500:].splitlines()))
        super().__init__(f"the client ended with status {status}: {shown}")
        self.status = status
        self.said = said


class CutPoint(NamedTuple):
    """A point at which a connection is cut: the `nth` request of a type, and when."""

    type_name: str
    nth: int
    where: Where

    def __str__(self) -> str:
        return f"{self.type_name} number {self.nth}, cut {_MEANINGS[self.where]}"

    def add_to(self, mock: Mock) -> None:
        """Adds a fault rule to a store that cuts the connection there."""
        close: dict[str, Any] = {"close": "before" if self.where == "before" else "after"}
        if self.where == "within":
            close["reply_bytes"] = _WITHIN_BYTES
        mock.faults.add(f"type = {self.type_name}", nth=self.nth, do=close, name="cut")


class Outcome(NamedTuple):
    """The outcome of a run: the contents of each segment, the client's error, whether it hung, and the traffic.

    violation: the failure that the caller's check found.
    """

    segments: dict[str, list[bytes]]
    raised: BaseException | None
    hung: bool
    records: list[Record]
    requests: list[tuple[str, int]]
    was_cut: bool
    violation: str | None


class Finding(NamedTuple):
    """A cut point with a failure. broken: the failures, one per line. records: of the run, or of a shortened run."""

    cut: CutPoint
    broken: tuple[str, ...]
    records: list[Record]

    @property
    def kinds(self) -> set[str]:
        """The kinds of its failures, such as "lost"."""
        return {failure.partition(":")[0] for failure in self.broken}

    def __str__(self) -> str:
        return "\n".join([str(self.cut), *(f"  {printable(failure)}" for failure in self.broken)])


Tell = Callable[[int, int, Finding | None], object]
"""Takes progress: the number of runs so far, the total, and the finding of the last run, if any."""


class Exploration(NamedTuple):
    """The result of an exploration. unreached: cut points that no run reached."""

    runs: int
    findings: list[Finding]
    unreached: list[CutPoint]

    @property
    def unreached_lines(self) -> list[str]:
        """The cut points that no run reached, in a line for each type of request."""
        by_type: dict[str, list[CutPoint]] = {}
        for point in self.unreached:
            by_type.setdefault(point.type_name, []).append(point)
        return [
            f"not reached: {points[0]}" + (f", and {len(points) - 1} more of this type" if points[1:] else "")
            for points in by_type.values()
        ]

    def __str__(self) -> str:
        head = f"{self.runs} runs, {len(self.findings)} broke"
        return "\n".join([head, *map(str, self.findings), *self.unreached_lines])


class ExploreOptions(TypedDict, total=False):
    """The keyword arguments of `explore`."""

    match: str
    cuts: Sequence[Where]
    timeout_s: float
    keep_order: bool
    check: Callable[[Mock], str | None] | None
    make_store: Callable[[], Mock]
    wanted: dict[str, list[bytes]] | None
    tell: Tell


async def explore(
    client: Client,
    *,
    match: str = "",
    cuts: Sequence[Where] = _EVERYWHERE,
    timeout_s: float = 5.0,
    keep_order: bool = True,
    check: Callable[[Mock], str | None] | None = None,
    make_store: Callable[[], Mock] = MockSegmentStore,
    wanted: dict[str, list[bytes]] | None = None,
    tell: Tell = lambda done, of, finding: None,
) -> Exploration:
    """Cuts a client's connections at every point, one point per run.

    client: called with a fresh, started store; returns when done. make_store: creates the store or a `MockCluster`.
    match: a filter of the requests at which to cut, KeepAlives excepted. keep_order: whether each writer's events must
    keep the order of the fault-free run. check: called after each run; returns what else is broken, or None. wanted:
    the events of each segment, if known in advance. tell: called after each run.

    Raises the client's error in the fault-free run, TimeoutError if that does not end, ValueError if its results differ
    from `wanted` or no request can match `match`, and FilterError.
    """
    if match.strip():
        check_possible(parse_filter(match, "request"), "log")
    good = await _run(client, None, match, timeout_s, make_store)
    if good.hung:
        raise TimeoutError(f"the client does not finish within {timeout_s:g} s, even without a fault")
    if good.raised is not None:
        raise good.raised
    if wanted is not None:
        expected = good._replace(segments=wanted)
        if missed := compared(expected, good, keep_order=keep_order, timeout_s=timeout_s):
            raise ValueError(f"the client's results differ from what is wanted: {'; '.join(missed)}")
        good = expected
    runs, findings, unreached = 1, [], []
    for type_name, nth in good.requests:
        for where in cuts:
            cut = CutPoint(type_name, nth, where)
            outcome = await _run(client, cut, match, timeout_s, make_store, check)
            runs += 1
            if not outcome.was_cut:
                unreached.append(cut)
            broken = tuple(compared(good, outcome, keep_order=keep_order, timeout_s=timeout_s))
            if outcome.violation:
                broken += (outcome.violation,)
            finding = Finding(cut, broken, outcome.records) if broken else None
            if finding is not None:
                findings.append(finding)
            tell(runs, 1 + len(good.requests) * len(cuts), finding)
    return Exploration(runs, findings, unreached)


async def explore_trace(
    records: Iterable[Record],
    *,
    make_client: Callable[[Sequence[Step]], TraceClient] = TraceClient,
    match: str = "",
    cuts: Sequence[Where] = _EVERYWHERE,
    timeout_s: float = 5.0,
    keep_order: bool = True,
    tell: Tell = lambda done, of, finding: None,
) -> Exploration:
    """Like `explore`, with the requests of a trace; failures are shortened to the fewest requests that still fail.

    make_client: creates a client that makes the given requests; by default a client that reconnects, sets its writers
    up again, and resends events that were not stored.
    """
    steps = read_script(records)

    async def explored(some: Sequence[Step], there: Sequence[Where], **how: Any) -> Exploration:
        return await explore(
            lambda mock: make_client(some).run(mock.host, mock.port),
            match=match,
            cuts=there,
            timeout_s=timeout_s,
            keep_order=keep_order,
            **how,
        )

    found = await explored(steps, cuts, tell=tell)
    findings, runs = [], found.runs
    for finding in found.findings:
        smallest = finding

        async def breaks(some: Sequence[Step], finding: Finding = finding) -> bool:
            nonlocal smallest, runs
            try:
                again = await explored(some, [finding.cut.where])
            except (ConnectionError, TimeoutError):
                return False  # the shortened dialogue fails even without a fault
            runs += again.runs
            for candidate in again.findings:
                if candidate.cut.where == finding.cut.where and candidate.kinds & finding.kinds:
                    smallest = candidate
                    return True
            return False

        await shortened(steps, breaks)
        findings.append(smallest)
    # Several may have been shortened to the same.
    distinct = {(finding.cut, finding.broken): finding for finding in findings}
    return Exploration(runs, list(distinct.values()), found.unreached)


async def explore_command(
    command: str,
    records: Iterable[Record] | None = None,
    *,
    match: str = "",
    timeout_s: float = 10.0,
    keep_order: bool = True,
    tell: Tell = lambda done, of, finding: None,
) -> Exploration:
    """Like `explore`, with a command as the client. `{host}` and `{port}` in it are replaced by the store's address,
    `{controller}` by the host:port of a controller, which is only started if the placeholder occurs.

    records: a trace of the command without faults; default: its fault-free run. Also raises CommandError if the command
    cannot be run.
    """
    words = words_of(command)
    make_store: Callable[[], Mock] = MockSegmentStore
    if with_controller := names_place(words, "controller"):
        from segstore.server.cluster import MockCluster

        make_store = MockCluster

    async def client(mock: Mock) -> None:
        host, port = _servers(mock)[0].address or ("", 0)
        controller = mock.controller_uri if with_controller else ""
        process = await start(words, {"host": host, "port": str(port), "controller": controller})
        try:
            _, said = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            raise ClientFailed(process.returncode, said.decode(errors="replace"))

    wanted = None
    if records is not None:
        steps = read_script(records)
        good = await _run(
            lambda mock: TraceClient(steps).run(mock.host, mock.port), None, "", timeout_s, MockSegmentStore
        )
        if good.raised is not None:
            raise good.raised
        wanted = good.segments
    return await explore(
        client, match=match, timeout_s=timeout_s, keep_order=keep_order, wanted=wanted, make_store=make_store, tell=tell
    )


async def _run(
    client: Client,
    cut: CutPoint | None,
    match: str,
    timeout_s: float,
    make_store: Callable[[], Mock],
    check: Callable[[Mock], str | None] | None = None,
) -> Outcome:
    recorder, hung = _Recorder(), False
    raised: BaseException | None = None
    async with make_store() as mock:
        for server in _servers(mock):
            server.hub.recorder = recorder
        if cut is not None:
            cut.add_to(mock)
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await client(mock)
        except TimeoutError as error:
            hung, raised = limit.expired(), None if limit.expired() else error
        except Exception as error:  # noqa: BLE001 — whatever the client raises, its user knows of the failure
            raised = error
        segments = _contents(mock)
        violation = None if check is None else check(mock)
        counts: Counter[str] = Counter()
        requests = []
        wanted = {seen.number for seen in mock.requests(match)}
        for seen in mock.requests("kind = frame"):
            counts[seen.type_name] += 1
            if seen.number in wanted and seen.type_name != "KEEP_ALIVE":
                requests.append((seen.type_name, counts[seen.type_name]))
        was_cut = bool(mock.faults.decisions)
        mock.faults.clear()
    return Outcome(segments, raised, hung, recorder.records(), requests, was_cut, violation)


def _servers(mock: Mock) -> list[SegmentStoreServer]:
    return mock.stores if hasattr(mock, "stores") else [mock.server]


def _contents(mock: Mock) -> dict[str, list[bytes]]:
    """Returns the events of each segment except tables; other contents count as a single event.

    The contents of a table, such as a reader group's state, often differ between fault-free runs.
    """
    containers = (part for server in _servers(mock) for part in server.store.containers.values())
    return {
        name: _events(segment.read_bytes(segment.start_offset, segment.length - segment.start_offset))
        for part in containers
        for name, segment in part.segments.items()
        if not (is_index(name) or is_transient(name) or segment.is_table)
    }


def _events(data: bytes) -> list[bytes]:
    """Returns the events without their headers; all bytes as one if they are not events."""
    events: list[bytes] = []
    end = split_events(data, 0, len(data), 0, lambda event, *_: event, None, events)
    return events if end == len(data) else [data]


def compared(good: Outcome, other: Outcome, *, keep_order: bool, timeout_s: float) -> list[str]:
    """Returns the failures, one per line, starting with the kind: hung, lost, duplicated, reordered, foreign."""
    broken = [f"hung: the client did not finish within {timeout_s:g} s"] if other.hung else []
    for name in dict.fromkeys((*good.segments, *other.segments)):
        wanted, found = good.segments.get(name, []), other.segments.get(name, [])
        if wanted == found:
            continue
        missing, extra = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
        again = Counter({each: count for each, count in extra.items() if each in wanted})
        foreign = extra - again
        # A client that raised or hung has not claimed success.
        if missing and other.raised is None and not other.hung:
            broken.append(f"lost: {name} has not {_said(missing)}")
        if again:
            broken.append(f"duplicated: {name} has {_said(again)} more than once")
        if foreign:
            broken.append(f"foreign: {name} has {_said(foreign)}, which no client sent")
        if keep_order and not _in_order(wanted, found, good.records, name):
            broken.append(f"reordered: {name} has a writer's events in another order")
    return broken


def _in_order(wanted: list[bytes], found: list[bytes], records: Iterable[Record], segment: str) -> bool:
    """Whether each writer's events are in order; events of different writers may interleave."""
    if _same_order(wanted, found):
        return True
    writer_of: dict[bytes, UUID] = {}
    for step in read_script(records):
        if isinstance(step.item, Append) and step.item.segment == segment:
            for event in _events(bytes(step.item.data)):
                writer_of.setdefault(event, step.item.writer_id)
    # Merged events have no writer here, so all of them must keep one order.
    return all(
        _same_order(
            [event for event in wanted if writer_of.get(event) == writer],
            [event for event in found if writer_of.get(event) == writer],
        )
        for writer in {writer_of.get(event) for event in wanted}
    )


def _same_order(wanted: list[bytes], found: list[bytes]) -> bool:
    """Whether the events found are in order, as far as events can be distinguished."""
    if len(set(wanted)) < len(wanted):
        return Counter(wanted) != Counter(found) or wanted == found
    there, known = set(found), set(wanted)
    return [event for event in wanted if event in there] == [event for event in dict.fromkeys(found) if event in known]


def _said(events: Counter[bytes]) -> str:
    first = next(iter(events))
    more = events.total() - 1
    return f"the event {first[:40]!r}" + (f" and {more} more" if more else "")


class _Recorder(TraceRecorder):
    """Keeps a run's traffic in memory."""

    def __init__(self) -> None:
        super().__init__(TraceWriter(make_mark(os.urandom(8)), Metadata(17, "segstore explore")))
        self._blocks = [self._writer.start()]

    def take_block(self) -> None:
        self._blocks.append(self._writer.take())

    def records(self) -> list[Record]:
        """Ends the recording and returns its records."""
        self._blocks.append(self._writer.finish(self._clock()))
        return [record for record in read_records(b"".join(self._blocks)) if isinstance(record, Record)]


# --- the client's command ---------------------------------------------------------------------------------------------


class CommandError(ValueError):
    """A command that cannot be run. Attribute: command."""

    def __init__(self, command: str, why: str) -> None:
        super().__init__(why)
        self.command = command


def words_of(command: str) -> list[str]:
    """Splits a command into words, with placeholders. Raises CommandError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise CommandError(command, f"the command cannot be split into words: {error}") from error
    if not words:
        raise CommandError(command, "the command is empty")
    for word in words:
        for found in _PLACE.finditer(word):
            name = found[2]
            if name is not None and name not in PLACES:
                near = difflib.get_close_matches(name, PLACES, 1)
                hint = f" ({{{near[0]}}}?)" if near else ""
                there = ", ".join(f"{{{place}}}" for place in PLACES)
                why = f"unknown placeholder {{{name}}}{hint}, only {there}; write {{{{{name}}}}} for the literal text"
                raise CommandError(command, why)
    return words


def names_place(words: list[str], place: str) -> bool:
    """Whether the words contain a placeholder."""
    return any(found[2] == place for word in words for found in _PLACE.finditer(word))


async def start(words: list[str], places: dict[str, str]) -> Process:
    """Starts a command with its placeholders filled in; its standard error is a pipe. Raises CommandError."""
    filled = [_PLACE.sub(lambda found: places[found[2]] if found[2] else f"{{{found[1]}}}", word) for word in words]
    try:
        return await asyncio.create_subprocess_exec(*filled, stdout=DEVNULL, stderr=PIPE)
    except OSError as error:
        raise CommandError(shlex.join(words), f"{filled[0]!r} cannot be started: {error.strerror}") from error
