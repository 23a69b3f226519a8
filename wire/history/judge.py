"""Judges a history: passes each record to the fold of its connection, and each fact to the fold of its key.

    judge = Judge()
    judge.see(records)
    verdicts = judge.end()

Records and facts must come in the order of their times; a fold may then decide at once, or at the end. `Judge` runs all
folds in one process. On several machines, the folds of `FIRST` run for each connection, and the folds of `FOLDS` for
each key over facts in the order of their places; the verdicts are the same.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from segstore.wire.history.facts import Broken, Fact, Finding, Key, Open, Place
from segstore.wire.history.groups import GroupFold
from segstore.wire.history.logs import LogFold
from segstore.wire.history.positions import PositionsFold
from segstore.wire.history.registers import RegisterFold
from segstore.wire.history.segments import SegmentFold
from segstore.wire.history.streams import StreamFold
from segstore.wire.history.traces import CallsFold, ConnectionFold, every_key
from segstore.wire.history.transactions import TransactionFold
from segstore.wire.trace import Record, RecordKind


class Fold(Protocol):
    """Follows the facts of one key in the order of their times, and yields the rules that they break, without I/O."""

    def __init__(self, key: Key) -> None: ...

    def see(self, fact: Fact) -> Iterable[Broken | Open]:
        """Takes the next fact."""
        ...

    def end(self) -> Iterable[Broken | Open]:
        """Called after the last fact; returns the rules that only the whole history shows as broken."""
        ...


FOLDS: Final[Mapping[str, type[Fold]]] = {
    "segment": SegmentFold,
    "register": RegisterFold,
    "transaction": TransactionFold,
    "group": GroupFold,
    "positions": PositionsFold,
    "log": LogFold,
    "stream": StreamFold,
}
"""The kind of a key → the fold of its facts."""


_AT_ONCE: Final = 32
"""Findings that are taken at once: few, since facts may hold payloads."""
UNREAD: Final = "parts of the recording could not be read"
"""Why verdicts on a file are unknown that has records behind such a part."""


class Verdicts(NamedTuple):
    """The result. broken: in the order of their last records. unknown: (rule, why) → how often."""

    broken: list[Broken]
    unknown: Counter[tuple[str, str]]
    records: int

    @property
    def by_rule(self) -> dict[str, list[Broken]]:
        rules: dict[str, list[Broken]] = {}
        for verdict in self.broken:
            rules.setdefault(verdict.rule, []).append(verdict)
        return rules

    @property
    def by_record(self) -> dict[int, tuple[str, ...]]:
        """Of one trace: the rules whose verdicts name a record, by the number of its place."""
        rules: dict[int, dict[str, None]] = {}
        for verdict in self.broken:
            for place in verdict.places:
                rules.setdefault(place.record, {})[verdict.rule] = None
        return {number: tuple(named) for number, named in rules.items()}

    def known(self, damaged: Collection[str]) -> Verdicts:
        """Returns verdicts that missing records may explain as unknown.

        Missing records concern the connections of a damaged file, and all keys that files share.
        """
        broken, unknown = [], Counter(self.unknown)
        for verdict in self.broken:
            if not damaged or (verdict.key.kind == "connection" and verdict.places[-1].file not in damaged):
                broken.append(verdict)
            else:
                unknown[verdict.rule, UNREAD] += 1
        return Verdicts(broken, unknown, self.records)

    def joined(self, other: Verdicts) -> Verdicts:
        """Returns the verdicts of both judges, in the order of their last records."""
        broken = sorted((*self.broken, *other.broken), key=_last_place)
        return Verdicts(broken, self.unknown + other.unknown, self.records + other.records)


def first_key(place: Place, record: Record) -> Key:
    """Returns the key of a record: its connection, or the controller calls of its file."""
    if record.kind is RecordKind.CALL:
        return Key("calls", place.file)
    return Key("connection", f"{place.file}:{place.connection}")


FirstFold = ConnectionFold | CallsFold
"""A fold of records."""


def first_fold(key: Key, findings: list[Finding], is_judged: Callable[[Key], bool] = every_key) -> FirstFold:
    """Returns a new fold of records, which adds its findings to a list; appends only if their segments are judged."""
    return CallsFold(key, findings) if key.kind == "calls" else ConnectionFold(key, findings, is_judged)


def _is_in_half(half: int, key: Key) -> bool:
    return sum(key.name.encode("utf-8", "surrogatepass")) % 2 == half  # numbers that follow each other alternate


class Judge:
    """Judges one history. Memory grows with what its folds hold: see each fold.

    half: 0 or 1 to judge one half of the keys, by the bytes of their names; connections and calls belong to 0.
    """

    def __init__(self, half: int | None = None) -> None:
        self._half = half
        self._is_judged: Callable[[Key], bool] = every_key if half is None else partial(_is_in_half, half)
        self._first: dict[tuple[str, int], FirstFold] = {}
        """The folds of records, by file and connection: controller calls have a connection of their own."""
        self._folds: dict[Key, Fold] = {}
        self._findings: list[Finding] = []
        """A few findings that are not taken yet."""
        self._broken: list[Broken] = []
        self._unknown: Counter[tuple[str, str]] = Counter()
        self._records = 0

    def see(self, records: Iterable[tuple[Place, Record]]) -> None:
        """Takes the next records of traces."""
        folds, waiting, count = self._first, self._findings, 0
        for place, record in records:
            count += 1
            whose = place[0], place[3]
            fold = folds.get(whose)
            if fold is None:
                fold = folds[whose] = first_fold(first_key(place, record), waiting, self._is_judged)
            fold.see(place, record)
            if len(waiting) >= _AT_ONCE:
                self.take(waiting)
                waiting.clear()
        self._records += count

    def fact(self, fact: Fact) -> None:
        """Takes the next fact, for histories that are no traces."""
        self.take((fact,))

    def end(self) -> Verdicts:
        """Returns the verdicts, after the last record."""
        for first in self._first.values():
            first.end()
        self.take(self._findings)
        for fold in self._folds.values():
            self._decide(fold.end())
        self._broken.sort(key=_last_place)
        return Verdicts(self._broken, self._unknown, self._records if self._half != 1 else 0)

    def take(self, findings: Iterable[Finding]) -> None:
        """Takes the next findings of connections, calls and histories: passes facts to the folds of their keys."""
        folds = self._folds
        for finding in findings:
            if isinstance(finding, Fact):
                fold = folds.get(finding[0])
                if fold is None:
                    key = Key(*finding[0])
                    if not self._is_judged(key):  # another process judges it
                        continue
                    fold = folds[key] = FOLDS[key.kind](key)
                verdicts = fold.see(finding)
                if verdicts:
                    self._decide(verdicts)
            elif self._half != 1:
                self._decide((finding,))

    def _decide(self, verdicts: Iterable[Broken | Open]) -> None:
        for verdict in verdicts:
            if isinstance(verdict, Broken):
                self._broken.append(verdict)
            else:
                self._unknown[verdict.rule, verdict.why] += verdict.times


def _last_place(broken: Broken) -> tuple[Any, ...]:
    return *broken.places[-1].order, broken.rule


def judge(records: Iterable[tuple[Place, Record]], half: int | None = None) -> Verdicts:
    """Judges the records of traces, in the order of their times. half: as in `Judge`."""
    whole = Judge(half)
    whole.see(records)
    return whole.end()


def placed(records: Iterable[Record], file: str = "") -> Iterator[tuple[Place, Record]]:
    """Yields records with their places, for records that come from no file: the block is 0."""
    yield from timed(
        (Place(file, 0, number, record.connection, record.ts_ns), record) for number, record in enumerate(records)
    )


def timed(records: Iterable[tuple[Place, Record]]) -> Iterator[tuple[Place, Record]]:
    """Yields the records of one file, in its order, with times that never decrease: a clock may be set back."""
    latest = -sys.maxsize
    for pair in records:
        time = pair[0][4]
        if time >= latest:
            latest = time
            yield pair
        else:
            yield pair[0]._replace(time_ns=latest), pair[1]
