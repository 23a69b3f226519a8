"""Judges registers: the keys of a table, the attributes of a segment.

Operations are judged at the end, register by register: first the order of versions, then the values that reads return,
then whether the operations have an order that explains them (`segstore.wire.history.linearizable`). One verdict a
register names the fewest operations that still have no such order.

Invariants: what a client that was not recorded may have written explains a read, and is counted as open; so does the
content when the recording began. A table that is deleted or created again starts new histories; an update that runs at
that time may belong to either. The times of one file alone are compared: another file may have another clock. Memory
grows with the operations.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any, Final, NamedTuple

from segstore.wire.commands import NOT_EXISTS
from segstore.wire.history.facts import Broken, Fact, Key, Open, Operation, Place
from segstore.wire.history.linearizable import ABSENT, OTHER, UNKNOWN, Step, is_linearizable

FOREIGN: Final = "no recorded request wrote a content that was found"
TWO_CLOCKS: Final = "two files may have two clocks"
MAYBE_DELETED: Final = "a deletion was not answered"
CUT_OFF: Final = "the search for an order of the operations was cut off"
MOST_TRIALS: Final = 500
_SHOWN: Final = 6


class _Done(NamedTuple):
    """An operation and its reply's place."""

    value: Operation
    place: Place

    @property
    def start(self) -> int:
        return self.value.invoked.time_ns

    @property
    def end(self) -> float:
        return inf if self.value.outcome == "unknown" else self.place.time_ns

    def maybe(self) -> _Done:
        """Returns the operation as if it had no reply: it may have its effect, now or later."""
        return self._replace(value=self.value._replace(outcome="unknown", version=None))

    @property
    def is_update(self) -> bool:
        return self.value.what != "read" and self.value.outcome != "refused"

    def __str__(self) -> str:
        operation, parts = self.value, [self.value.what]
        if operation.what in ("put", "set") or (operation.what == "read" and operation.version is None):
            parts.append("nothing" if operation.value is None else repr(operation.value))
        if operation.expected is not None:
            parts.append(f"if at {'nothing' if operation.expected in (NOT_EXISTS, '') else operation.expected}")
        if operation.version is not None:
            parts.append(f"→ {'nothing' if operation.version == NOT_EXISTS else operation.version}")
        return " ".join([*parts, *([] if operation.outcome == "ok" else [f"({operation.outcome})"])])


@dataclass(slots=True)
class _History:
    """The operations between two creations or deletions. initial: the first content."""

    since: float
    initial: Any
    until: float = inf
    registers: dict[str, list[_Done]] = field(default_factory=dict)


@dataclass(slots=True)
class _File:
    """The operations that one file has. maybe_deleted: the times of deletions without a reply."""

    histories: list[_History]
    unknown: dict[str, list[_Done]] = field(default_factory=dict)
    maybe_deleted: list[int] = field(default_factory=list)


class RegisterFold:
    """Judges the registers of a table, of a segment, or one register of a history."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self._files: dict[str, _File] = {}

    def see(self, fact: Fact) -> Iterator[Broken | Open]:
        file = self._files.setdefault(fact.place.file, _File([_History(-inf, UNKNOWN)]))
        operation, last, done = fact.value, file.histories[-1], _Done(fact.value, fact.place)
        if operation.what == "deleted" and operation.outcome == "unknown":
            file.maybe_deleted.append(operation.invoked.time_ns)
        elif operation.what in ("created", "deleted"):
            last.until = fact.place.time_ns
            file.histories.append(_History(last.until, ABSENT if operation.what == "created" else UNKNOWN))
        elif operation.outcome == "unknown" or operation.invoked.time_ns <= last.since:
            if done.is_update:
                file.unknown.setdefault(operation.register, []).append(done.maybe())
        else:
            last.registers.setdefault(operation.register, []).append(done)
        return iter(())

    def end(self) -> Iterator[Broken | Open]:
        """Judges all registers; of several files each for itself, the others as foreign clients."""
        is_one = len(self._files) <= 1
        if not is_one:
            yield Open("not-linearizable", self.key, TWO_CLOCKS)
            if any(len(file.histories) > 1 or file.maybe_deleted for file in self._files.values()):
                return
        for file in self._files.values():
            for history in file.histories:
                yield from self._history(file, history, is_one=is_one)

    def _history(self, file: _File, history: _History, *, is_one: bool) -> Iterator[Broken | Open]:
        deleted = min((time for time in file.maybe_deleted if history.since <= time <= history.until), default=inf)
        if any(done[-1].end >= deleted for done in history.registers.values()):
            yield Open("not-linearizable", self.key, MAYBE_DELETED)
        for register, done in history.registers.items():
            operations = [operation for operation in done if operation.end < deleted]
            unknown = [update for update in file.unknown.get(register, ()) if update.start <= history.until]
            unknown += (update.maybe() for update in _updates(done) if update.start <= deleted <= update.end)
            if operations:
                name = f"{self.key.name} {register}".strip()
                yield from self._judge(name, operations, unknown, history.initial, is_one=is_one)

    def _judge(
        self, register: str, operations: list[_Done], unknown: list[_Done], initial: Any, *, is_one: bool
    ) -> Iterator[Broken | Open]:
        versions = not any(
            done.value.what == "set"
            or (done.value.version is None and done.value.outcome == "ok" and done.value.what != "remove")
            for done in operations
        )
        others = _others_write(operations, unknown, initial, versions=versions)
        if others and is_one:
            yield Open("not-linearizable", self.key, FOREIGN)
        verdict = None
        if versions:
            verdict = self._version_backwards(register, operations) or self._other_value(register, operations)
        if verdict is not None:
            yield verdict
            return
        others = others or not is_one
        yield from self._order(register, [*operations, *unknown], initial, versions=versions, others=others)

    def _broken(self, rule: str, text: str, operations: Sequence[_Done], expected: Any, actual: Any) -> Broken:
        places = sorted(
            {place for done in operations for place in (done.value.invoked, done.place)},
            key=lambda place: (place.time_ns, place),
        )
        return Broken(rule, self.key, tuple(places), text, expected, actual)

    def _version_backwards(self, register: str, operations: list[_Done]) -> Broken | None:
        """Checks that an update which starts after another update has ended has the higher version."""
        updates = [done for done in operations if done.value.what == "put" and done.value.outcome == "ok"]
        ending = deque(sorted(updates, key=lambda done: done.end))
        highest: _Done | None = None
        by_version: dict[int, _Done] = {}
        for update in sorted(updates, key=lambda done: done.start):
            while ending and ending[0].end < update.start:
                ended = ending.popleft()
                if highest is None or ended.value.version > highest.value.version:
                    highest = ended
            version = update.value.version
            earlier = by_version.setdefault(version, update)
            if earlier is update and highest is not None and highest.value.version > version:
                earlier = highest
            if earlier is not update:
                before = earlier.value.version
                text = f"an update of {register} has version {version}, after an update with version {before}"
                return self._broken("version-backwards", text, (earlier, update), before, version)
        return None

    def _other_value(self, register: str, operations: list[_Done]) -> Broken | None:
        """Checks that a version has one value."""
        values: dict[int, _Done] = {}
        for done in sorted(operations, key=lambda done: done.value.what == "read"):
            version, value = done.value.version, done.value.value
            if version is None or version == NOT_EXISTS or value is None or done.value.outcome != "ok":
                continue
            first = values.setdefault(version, done)
            if first.value.value != value:
                text = f"version {version} of {register} was read with another value"
                return self._broken("not-linearizable", text, (first, done), first.value.value, value)
        return None

    def _order(
        self, register: str, operations: list[_Done], initial: Any, *, versions: bool, others: bool
    ) -> Iterator[Broken | Open]:
        def explained(some: Sequence[_Done]) -> bool | None:
            steps = [_step(done, versions=versions) for done in some]
            return is_linearizable(steps, initial, versions=versions, others=others)

        verdict = explained(operations)
        if verdict is None:
            yield Open("not-linearizable", self.key, CUT_OFF)
        if verdict is not False:
            return
        fewest = _fewest(operations, lambda some: explained(some) is False, versions=versions)
        shown = "; ".join(map(str, fewest[-_SHOWN:]))
        for index, done in reversed([*enumerate(fewest)]):
            if done.value.expected is None or done.value.outcome != "ok":
                continue
            unconditional = done._replace(value=done.value._replace(expected=None))
            if explained([*fewest[:index], unconditional, *fewest[index + 1 :]]):
                text = f"an update of {register} succeeded though its content was not what the update names: {shown}"
                yield self._broken("false-compare-and-set", text, fewest, done.value.expected, None)
                return
        text = f"no order of these operations on {register} explains their results: {shown}"
        yield self._broken("not-linearizable", text, fewest, None, None)


def _token(value: Any) -> Any:
    """Returns a value as the content of a register without versions."""
    if value is None:
        return ABSENT
    return repr(value) if isinstance(value, list | dict) else value


def _content(operation: Operation, *, versions: bool) -> Any:
    """Returns the content that a read returned, or that an update wrote."""
    if operation.what == "remove" or operation.version == NOT_EXISTS:
        return ABSENT
    if versions:
        return OTHER if operation.version is None else operation.version
    return _token(operation.value)


def _step(done: _Done, *, versions: bool) -> Step:
    """Makes a step of an operation: of a read, a refusal, or an update, which may not have been applied."""
    operation, condition, content = done.value, None, _content(done.value, versions=versions)
    if operation.expected == ("" if operation.what == "set" else NOT_EXISTS):
        condition = ABSENT
    elif operation.expected is not None and (versions or operation.what == "set"):  # else its content is not known
        condition = _token(operation.expected)
    if operation.what == "read":
        return Step(done.start, done.end, needs=content)
    if operation.outcome == "refused":
        missing = ABSENT if operation.version == NOT_EXISTS else None
        return Step(done.start, done.end, needs=missing, rejects=condition)
    return Step(done.start, done.end, needs=condition, writes=content)


def _others_write(operations: list[_Done], unknown: list[_Done], initial: Any, *, versions: bool) -> bool:
    """Returns whether contents were found that no recorded request wrote, except one that may be the first content."""
    requests = (done.value for done in chain(operations, unknown) if done.value.what != "read")
    written = {_content(request, versions=versions) for request in requests} - {OTHER, ABSENT}
    sent = {_token(done.value.value) for done in unknown}
    found: dict[Any, Any] = {}
    for done in operations:
        if done.value.outcome == "ok":
            content = _step(done, versions=versions).needs
            found[content] = _token(done.value.value) if done.value.what == "read" else found.get(content)
    foreign = {content for content, value in found.items() if value not in sent} - written - {None, ABSENT}
    if initial is UNKNOWN and versions and foreign:
        foreign -= {min(foreign | written)}
    elif initial is UNKNOWN and len(foreign) == 1:
        foreign.clear()
    return bool(foreign)


def _fewest(operations: list[_Done], is_broken: Callable[[list[_Done]], bool], *, versions: bool) -> list[_Done]:
    """Returns the fewest operations that are still broken, as far as at most `MOST_TRIALS` trials find them.

    First reads and refusals go, which only ask for explanations, then updates.
    """
    fewest, trials = _shortest(operations, is_broken), MOST_TRIALS
    for needed in (_updates, lambda part, others: _needed(part, others, versions=versions)):
        size = len(fewest)
        while size:
            at = 0
            while at < len(fewest) and trials:
                before, part, after = fewest[:at], fewest[at : at + size], fewest[at + size :]
                stays = needed(part, [*before, *after])
                trials -= len(stays) < len(part)
                if len(stays) < len(part) and is_broken([*before, *stays, *after]):
                    fewest, at = [*before, *stays, *after], at + len(stays)
                else:
                    at += size
            size //= 2
    return fewest


def _shortest(operations: list[_Done], is_broken: Callable[[list[_Done]], bool]) -> list[_Done]:
    """Returns the shortest beginning of a history that is broken; the updates that run then may have their effect."""
    ordered = sorted(operations, key=lambda done: (done.end, done.start))
    low, high = 1, sum(done.end < inf for done in ordered)
    certain = high

    def until(count: int) -> list[_Done]:
        running = (done for done in _updates(ordered[count:certain]) if done.start <= ordered[count - 1].end)
        return [*ordered[:count], *(done.maybe() for done in running), *ordered[certain:]]

    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_broken(until(middle)) else (middle + 1, high)
    return until(low)


def _updates(part: list[_Done], _: object = None) -> list[_Done]:
    return [done for done in part if done.is_update]


def _needed(part: list[_Done], others: list[_Done], *, versions: bool) -> list[_Done]:
    """Returns the operations without which the others would explain less.

    The content that an update writes is foreign without it, and so explained; but a refusal needs updates, a missing
    key removals. An update may go if each of these ends before it, or starts after a later update. A value that two
    updates write stays.
    """
    steps = [_step(done, versions=versions) for done in others]
    updates = [step for step in steps if step.writes is not None and step.end < inf]
    needs = []  # time of a later update, end, and whether it needs a removal
    for step in (*(_step(done, versions=versions) for done in part), *steps):
        if step.rejects is not None or step.needs is ABSENT:
            later = max((update.start for update in updates if update.end < step.start), default=-inf)
            needs.append((later, step.end, step.rejects is None))
    contents = Counter(_content(done.value, versions=versions) for done in (*part, *others))

    def is_needed(done: _Done) -> bool:
        content = _content(done.value, versions=versions)
        return (not versions and contents[content] > 1) or not all(
            done.start > end or done.end < later or (needs_removal and content is not ABSENT)
            for later, end, needs_removal in needs
        )

    return [done for done in part if is_needed(done)]
