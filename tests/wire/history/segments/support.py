"""Histories of one segment, written step by step, as facts."""

from __future__ import annotations

from typing import Any

from segstore.wire.blocks import frame_header
from segstore.wire.history.facts import (
    Acked,
    Broken,
    Changed,
    Fact,
    Key,
    Open,
    Place,
    Read,
    Refused,
    Sent,
    SetUp,
    Transaction,
)
from segstore.wire.history.segments import SegmentFold

SEGMENT = "scope/stream/0.#epoch.0"
KEY = Key("segment", SEGMENT)


def event(payload: str) -> bytes:
    """Returns an event with its header."""
    return frame_header(len(payload)) + payload.encode()


def events(payloads: str) -> bytes:
    """Returns the events of words."""
    return b"".join(map(event, payloads.split()))


class History:
    """The facts of one segment; each step is 10 ns after the one before, or behind a remembered one (`asked`)."""

    def __init__(self, segment: str = SEGMENT) -> None:
        self.facts: list[Fact] = []
        self.segment = segment

    def place(self, connection: int = 1) -> Place:
        return Place("file", 0, len(self.facts), connection, 10 * (len(self.facts) + 1))

    def add(self, value: Any, connection: int = 1) -> History:
        self.facts.append(Fact(KEY, self.place(connection), value))
        return self

    def at(self, step: int) -> Place:
        """Returns the place of a step; of the last one for -1."""
        return self.facts[step].place

    def set_up(self, stored: int = -(1 << 63), writer: str = "w", on: int = 1) -> History:
        return self.add(SetUp(self.segment, writer, stored, self.place(on)), on)

    def send(
        self, last: int, payloads: str | bytes, writer: str = "w", on: int = 1, at: int | None = None, count: int = 0
    ) -> History:
        data = events(payloads) if isinstance(payloads, str) else payloads
        count = count or (len(payloads.split()) if isinstance(payloads, str) else 1)
        return self.add(Sent(self.segment, writer, last, count, data, at), on)

    def ack(
        self, number: int, length: int, writer: str = "w", on: int = 1, asked: int | None = None, store: str = "a:1"
    ) -> History:
        place = None if asked is None and not self.facts else self.at(-1 if asked is None else asked)
        return self.add(Acked(self.segment, writer, number, length, store, place), on)

    def refuse(self, number: int, writer: str = "w", on: int = 1) -> History:
        return self.add(Refused(self.segment, writer, number), on)

    def read(self, offset: int, data: bytes | str, on: int = 9, end: bool = False) -> History:
        data = events(data) if isinstance(data, str) else data
        return self.add(Read(self.segment, offset, data, end, self.place(on)), on)

    def change(self, what: str, segment: str = "", on: int = 8, **facts: Any) -> History:
        return self.add(Changed(segment or self.segment, what, self.place(on), **facts), on)

    def step(self, name: str, what: str, writer: str = "", asked: int | None = None) -> History:
        place = self.place(0) if asked is None else self.at(asked)
        return self.add(Transaction(name, what, place, writer), 0)

    def within(self, segment: str) -> History:
        """Continues in another segment, such as a transaction's."""
        self.segment = segment
        return self

    def verdicts(self) -> tuple[set[str], set[str]]:
        """Returns the rules that are broken, and those that are open."""
        fold = SegmentFold(KEY)
        verdicts = [verdict for fact in self.facts for verdict in fold.see(fact)]
        verdicts += fold.end()
        broken = {verdict.rule for verdict in verdicts if isinstance(verdict, Broken)}
        return broken, {verdict.rule for verdict in verdicts if isinstance(verdict, Open)}
