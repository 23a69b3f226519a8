"""Judges a run: by the rules of histories, and by what the run without faults did.

Each line of `judged` starts with its kind: `hung`, `crashed`, `gave up`, `spun`, `leaked`, `lost`, `duplicated`,
`reordered`, `foreign`, `printed`, or the id of a rule of `segstore.wire.history.RULES`; the user's check names its own.

A client that raises has told its user about the failure: missing events are then no failure, events stored twice are.
Events are compared by stream, since their segments differ after a scale; their order by writer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from os.path import commonprefix
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from segstore.explore.commands import ClientFailed, panic_of
from segstore.explore.failures import APPENDS
from segstore.explore.options import ExplorerSetting, Segments
from segstore.explore.points import subject_of
from segstore.explore.running import Run, events_of
from segstore.server.replay import read_script
from segstore.wire import decode
from segstore.wire.blocks import EVENT_HEADER_BYTES, Append
from segstore.wire.history import RULES, Broken, judge, placed
from segstore.wire.printable import printable
from segstore.wire.trace import Call, Direction, Record, RecordKind

_SPUN_PER_S: Final = 100
_SPUN_FACTOR: Final = 10
_SPUN_LEAST: Final = 200
_MOST_SHOWN: Final = 200
_BUGS: Final = (TypeError, AttributeError, NameError, LookupError, RecursionError, ArithmeticError)
"""Errors of Python that are bugs of the client, whatever the store has answered."""
_RUST_PANIC: Final = 101
_ANSWERED: Final = ("lost-write", "frames-only")
"""Rules whose open questions tell the user nothing."""


class Good(NamedTuple):
    """The run without faults, and what of it is the same in each such run.

    Args:
        segments: The events that must be stored.
        varying: Streams whose contents differ between two runs without faults.
        prints_same: Whether two runs without faults print the same.
        broken: The rules that it breaks already.
    """

    run: Run
    segments: Segments
    varying: frozenset[str]
    prints_same: bool
    broken: Mapping[str, str]


def good_of(first: Run, second: Run, segments: Segments | None = None) -> tuple[Good, list[str]]:
    """Returns what two runs without faults have in common, and how they differ, in lines."""
    one, two = _by_stream(first.segments), _by_stream(second.segments)
    varying = frozenset(name for name in {*one, *two} if Counter(one.get(name)) != Counter(two.get(name)))
    notes = [f"two runs without faults store different events in {name}, which is not compared" for name in varying]
    prints_same = first.output == second.output
    if not prints_same:
        notes.append("two runs without faults print different texts, which are not compared")
    wanted = first.segments if segments is None else segments
    broken = dict(_rules(first, frozenset())[0])
    return Good(first, wanted, frozenset() if segments is not None else varying, prints_same, broken), notes


def judged(setting: ExplorerSetting, good: Good, run: Run) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Returns the failures of a run, one per line, and the questions that its records leave open."""
    failures = [injection.failure for injection in run.injections]
    answers = any("answer" in (failure.action or ()) for failure in failures)  # which the client may print
    lines = [*_of_client(good, run, setting.timeout_s)]
    has_claimed_success = run.error is None and not run.is_hung
    if not any(failure.may_lose for failure in failures):
        # A client that raised may have stored a part of its bytes, and may not have removed its events yet.
        partial = frozenset() if has_claimed_success else frozenset(map(subject_of, good.run.unframed)) | _emptied(good)
        lines += compared(
            good.segments,
            run.segments,
            good.run.records if setting.keep_order else None,
            except_for=good.varying | partial,
            unframed=frozenset(map(subject_of, good.run.unframed | run.unframed)),
            missing=has_claimed_success,
            removed=_removed(good, run),
        )
        if has_claimed_success and good.prints_same and not answers and run.output != good.run.output:
            lines.append(f"printed: {_shown(run.output)} in place of {_shown(good.run.output)}")
    rules, unknown = _rules(run, frozenset(good.broken))
    lines += [f"{rule}: {text}" for rule, text in dict(rules).items()]
    if run.violation:
        lines.append(run.violation)
    panic = panic_of(run.stderr)
    if lines and panic and run.error is None:  # a thread's, which may be why
        lines[0] += f"; its standard error has: {panic}"
    # Stored contents were compared, whatever the client has read; the failures themselves end within frames.
    questions = {(rule, why): count for (rule, why), count in unknown.items() if rule not in _ANSWERED}
    return [printable(line) for line in lines], Counter(questions)


def _of_client(good: Good, run: Run, timeout_s: float) -> Iterator[str]:
    """Yields the failures of the client: there are five kinds."""
    failures = [injection.failure for injection in run.injections]
    # 1. It does not end.
    if run.is_hung and not any(failure.may_wait for failure in failures):
        yield f"hung: the client did not finish within {timeout_s:g} s; {'; '.join(run.waiting)}"
    # 2. It ends by a bug of its own; 3. it ends though the reference's client continues.
    if run.error is not None:
        errors = list(_leaves(run.error))
        message = _message_of(errors[0])
        if crashes := list(filter(_is_crash, errors)):
            yield f"crashed: {_message_of(crashes[0])}"
        elif failed := [error for error in errors if isinstance(error, AssertionError)]:
            yield f"check: {_message_of(failed[0])}"
        elif all(failure.is_retried for failure in failures) and not run.is_cut_off and not _needs_segment(good, run):
            yield f"gave up: {message}; the reference's client continues"
    # 4. It makes requests without end.
    count, usual = len(run.points), len(good.run.points)
    if count > max(_SPUN_LEAST, _SPUN_FACTOR * usual, _SPUN_PER_S * run.duration_s):
        name, times = Counter(point.type_name for point in run.points).most_common(1)[0]
        yield f"spun: {count:,} requests in {run.duration_s:.1f} s, {usual} without a fault; {times:,} are {name}"
    # 5. It leaves connections behind; while a reply is late, the store does not notice that its peer has closed.
    is_late = any(failure.name == "reply late" for failure in failures)
    if run.leaked > good.run.leaked and run.error is None and not is_late:
        yield f"leaked: {run.leaked} connections are open at the end, {good.run.leaked} without a fault"


def _needs_segment(good: Good, run: Run) -> bool:
    """Whether a scale has sealed a segment that the client cannot replace.

    It is the only segment of a byte stream or a revisioned stream, or the client itself scales by the ids of segments.
    """
    scaled = {point.segment for point, failure in run.injections if failure.name.startswith("scale")}
    revisioned = {point.segment for point in good.run.points if point.type_name == "CONDITIONAL_APPEND"}
    scales = any(point.type_name == "scale" for point in good.run.points)
    return bool(scaled & (good.run.unframed | revisioned)) or (bool(scaled) and scales)


def _emptied(good: Good) -> frozenset[str]:
    """Returns the streams that lose data in the run without faults. The names of transactions have a second #."""
    requests = (
        decode(record.data, unknown="keep")
        for record in good.run.records
        if record.kind is RecordKind.FRAME and record.direction is Direction.REQUEST
    )
    removals = (request for request in requests if request.type_name in ("TRUNCATE_SEGMENT", "DELETE_SEGMENT"))
    segments: list[str] = [removal.segment for removal in removals]  # type: ignore[attr-defined]  # both have one
    return frozenset(subject_of(segment) for segment in segments if segment.count("#") == 1)


def _removed(good: Good, run: Run) -> dict[str, Counter[bytes]]:
    """Returns the events of each stream that one run has and the other has truncated.

    How far a client truncates may depend on times, so both runs must have truncated the segment.
    """
    removed: dict[str, Counter[bytes]] = {}
    both = (good.segments, good.run.starts), (run.segments, run.starts)
    for (segments, starts), (_, other_starts) in permutations(both):
        for segment, events in segments.items():
            start = offset = starts.get(segment, 0)
            for event in events:
                if start > 0 and offset < other_starts.get(segment, 0):
                    removed.setdefault(subject_of(segment), Counter())[event] += 1
                offset += EVENT_HEADER_BYTES + len(event)
    return removed


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yields the errors of a group, which a TaskGroup raises, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _leaves(member)
    else:
        yield error


def _is_crash(error: BaseException) -> bool:
    if isinstance(error, ClientFailed):
        return error.status < 0 or error.status == _RUST_PANIC or panic_of(error.stderr) != ""
    return isinstance(error, _BUGS) or not isinstance(error, Exception)


def _message_of(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ClientFailed) else f"{type(error).__name__}: {text}"


def _shown(output: bytes | None) -> str:
    return repr((output or b"")[:_MOST_SHOWN].decode(errors="replace"))


def _rules(run: Run, known: frozenset[str]) -> tuple[list[tuple[str, str]], Counter[tuple[str, str]]]:
    """Returns the rules that a run breaks, without those known, and the open questions.

    What the replies say that its failures invent is not true; nor is a rule of the protocol that they break the
    client's failure.
    """

    def is_broken(verdict: Broken) -> bool:
        last = run.records[verdict.places[-1].record]
        is_injected = last.direction is Direction.REPLY and last.connection in run.faulty
        return RULES[verdict.rule].family == "Protocol" and not is_injected

    invented = _invented(run)
    verdicts = judge(placed(run.records, "run"))
    broken = [*filter(is_broken, verdicts.broken)]
    if invented:
        verdicts = judge(placed([record for record in run.records if not _is_invented(record, invented, run)], "run"))
    broken += [verdict for verdict in verdicts.broken if RULES[verdict.rule].family != "Protocol"]
    return [(verdict.rule, verdict.text) for verdict in broken if verdict.rule not in known], verdicts.unknown


def _invented(run: Run) -> set[tuple[str, str]]:
    """Returns the outcomes that a run's failures invent: calls with their status, and replies.

    A refused append is true: it is not stored.
    """
    invented: set[tuple[str, str]] = set()
    for point, failure in run.injections:
        action = failure.action or {}
        outcomes = [action.get("status"), *action.get("answer", {}).values()]
        invented |= {(point.type_name, outcome) for outcome in outcomes if outcome}
        if "error" in action and point.type_name not in APPENDS:
            invented.add(("", action["error"].casefold()))
    return invented


def _is_invented(record: Record, invented: set[tuple[str, str]], run: Run) -> bool:
    if record.direction is Direction.REQUEST:
        return False
    if record.kind is RecordKind.CALL:
        call = Call.unpack(record.data)
        return call is not None and (call.rpc, call.outcome) in invented
    if record.kind is not RecordKind.FRAME or record.connection not in run.faulty:
        return False
    return ("", decode(record.data, unknown="keep").type_name.replace("_", "").casefold()) in invented


# --- stored events ----------------------------------------------------------------------------------------------------


def compared(
    wanted: Segments,
    stored: Segments,
    records: Iterable[Record] | None,
    *,
    except_for: frozenset[str] = frozenset(),
    unframed: frozenset[str] = frozenset(),
    missing: bool = True,
    removed: Mapping[str, Counter[bytes]] = MappingProxyType({}),
) -> list[str]:
    """Returns how stored events differ, one line per kind and stream.

    records: of the run without faults, which tell the writers; None if events may have another order. except_for:
    streams that are not compared. unframed: streams of bytes. missing: whether missing events count. removed: events of
    each stream that may be missing on either side.
    """
    lines: list[str] = []
    writer_of = {} if records is None else _writers(records)
    by_stream, stored_by_stream = _by_stream(wanted), _by_stream(stored)
    for name in dict.fromkeys((*by_stream, *stored_by_stream)):
        expected, actual = Counter(by_stream.get(name, ())), Counter(stored_by_stream.get(name, ()))
        if name in except_for:
            continue
        if name in unframed:
            lines += _compared_bytes(name, b"".join(by_stream.get(name, ())), b"".join(stored_by_stream.get(name, ())))
            continue
        gone = removed.get(name, Counter())
        lacking, extra = expected - actual - gone, actual - expected - gone
        again = Counter({event: count for event, count in extra.items() if event in expected})
        if missing and lacking:
            lines.append(f"lost: {name} lacks {_shown_events(lacking)}")
        if again:
            lines.append(f"duplicated: {name} has {_shown_events(again)} more than once")
        if extra - again:
            lines.append(f"foreign: {name} has {_shown_events(extra - again)}, which is unexpected")
        if records is not None and not _in_order(wanted, stored, name, writer_of):
            lines.append(f"reordered: {name} has a writer's events in another order; if it may, use --any-order")
    return lines


def _compared_bytes(name: str, wanted: bytes, stored: bytes) -> Iterator[str]:
    """Yields how the contents of a byte stream differ."""
    same = len(commonprefix([wanted, stored]))  # noqa: RUF071 — bytes, not paths
    if same < len(stored):
        yield f"foreign: {name} has other bytes from offset {same:,} on: {len(stored):,} in all, not {len(wanted):,}"
    elif same < len(wanted):
        yield f"lost: {name} has {same:,} of {len(wanted):,} bytes"


def _by_stream(segments: Segments) -> dict[str, list[bytes]]:
    streams: dict[str, list[bytes]] = {}
    for segment, events in segments.items():
        streams.setdefault(subject_of(segment), []).extend(events)
    return streams


def _in_order(wanted: Segments, stored: Segments, name: str, writer_of: Mapping[bytes, UUID]) -> bool:
    """Whether events of a writer that shared a segment keep their order; different writers may interleave.

    Merged events have no writer here, so all of them must keep one order.
    """
    return all(
        _same_order(
            [event for event in before if writer_of.get(event) == writer],
            [event for event in now if writer_of.get(event) == writer],
        )
        for segment, before in wanted.items()
        for other, now in stored.items()
        if subject_of(segment) == name == subject_of(other)
        for writer in {writer_of.get(event) for event in before}
    )


def _writers(records: Iterable[Record]) -> dict[bytes, UUID]:
    """Returns event → its first writer."""
    writers: dict[bytes, UUID] = {}
    for step in read_script(records):
        if isinstance(step.item, Append):
            for event in events_of(bytes(step.item.data))[0]:
                writers.setdefault(event, step.item.writer_id)
    return writers


def _same_order(before: Sequence[bytes], now: Sequence[bytes]) -> bool:
    """Whether the common events are in the same order, as far as events can be distinguished."""
    if len(set(before)) < len(before):
        return Counter(before) != Counter(now) or list(before) == list(now)
    there, known = set(now), set(before)
    return [event for event in before if event in there] == [event for event in dict.fromkeys(now) if event in known]


def _shown_events(events: Counter[bytes]) -> str:
    first = next(iter(events))
    more = events.total() - 1
    return f"the event {first[:40]!r}" + (f" and {more} other{'s' if more > 1 else ''}" if more else "")
