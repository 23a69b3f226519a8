"""The events that one writer sent to a segment, and the numbers and lengths with which stores acknowledged them.

Invariants: an event has one entry, however often it is sent; events of one append have consecutive entries. Entries are
in the order of their numbers. Memory per append: 28 bytes and 24 for its place; per event 16; per acknowledgement 46.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from segstore.wire.history.facts import Place

NONE: Final = -(1 << 63)
"""The last event number of a writer that has stored nothing."""


class Link:
    """A writer on one connection. set_up: the place of its last set-up there, None if it was not recorded.

    stored: the highest number that a set-up answered. sent, acked: the last numbers. length: the last acknowledged
    length.
    """

    def __init__(self) -> None:
        self.set_up: Place | None = None
        self.set_ups = 0
        self.stored = self.sent = self.acked = NONE
        self.length = -1


class Written:
    """What one writer sent to one segment.

    Attributes:
        numbers, hashes: of each event. Bytes that are not as many events as their append counts have its last number.
        firsts, lasts, sizes, lows, sent: of each append its first entry, its last number, its bytes, the length that
            the segment was known to have when it was first sent, and the place of that request.
        acked, lengths, acks: of each acknowledgement that covers new events: its number, length and place.
        newest, newest_acked: the highest numbers that were sent and acknowledged.
        stored: the highest number that was acknowledged, or stored at a set-up.
        refused: numbers of refused appends. resent: numbers that were sent more than once.
        expected: the offsets of conditional appends, by their index; None if an append had several events.
        unknown: whether it sent events that are not known.
        removed: the highest number of a removed append. removed_low: the entry in `lows` of the first removed append.
        raw_from: the index of its first append without event headers, whose entry has the digest; -1 without one.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.numbers, self.hashes = array("q"), array("q")
        self.lasts, self.lows, self.acked, self.lengths = (array("q") for _ in range(4))
        self.firsts, self.sizes, self.sent, self.acks = (array("I") for _ in range(4))
        self.stores = array("H")
        self.newest = self.newest_acked = self.stored = NONE
        self.refused: set[int] = set()
        self.resent: set[int] = set()
        self.expected: dict[int, int | None] = {}
        self.latest: tuple[Link, Place, Place] | None = None
        """The link of the latest acknowledgement, the place of its append, and its own."""
        self.unknown = False
        self.raw_from = -1
        self.removed, self.removed_low = NONE, -1
        self.newest_link: Link | None = None
        """The link of the latest set-up, whose answer names the last stored append; for bytes without event headers."""

    def add(self, last: int, count: int, hashes: list[int], size: int, low: int, place: int) -> None:
        """Adds an append, whose numbers are above all earlier numbers."""
        self.newest = last
        self.firsts.append(len(self.hashes))
        if len(hashes) == 1:
            self.numbers.append(last)
        elif len(hashes) == count:
            self.numbers.extend(range(last - count + 1, last + 1))
        else:
            self.numbers.extend([last] * len(hashes))
        self.hashes.extend(hashes)
        self.lasts.append(last)
        self.sizes.append(size)
        self.lows.append(low)
        self.sent.append(place)

    def pop(self) -> None:
        """Removes the last append."""
        first = self.firsts.pop()
        del self.numbers[first:], self.hashes[first:]
        self.sizes.pop()
        self.sent.pop()
        self.removed = max(self.removed, self.newest)
        self.removed_low = self.lows.pop()
        self.refused.discard(self.lasts.pop())
        self.expected.pop(len(self.lasts), None)
        self.raw_from = min(self.raw_from, len(self.lasts))
        self.newest = self.lasts[-1] if self.lasts else NONE

    def acknowledge(self, number: int, length: int, place: int, store: int) -> None:
        """Adds an acknowledgement that covers new events."""
        self.newest_acked = number
        self.acked.append(number)
        self.lengths.append(length)
        self.acks.append(place)
        self.stores.append(store)

    def repeat(self, last: int, count: int, hashes: list[int], size: int) -> tuple[int, int]:
        """Takes events whose numbers are not above all earlier numbers, except for the last events perhaps.

        Returns how many of them are old, and the index of an old event that was another event; -1 if all are the same.
        The number of a refused append may be used for another event.
        """
        numbers, different = self.numbers, -1
        old = range(last - count + 1, min(last, self.newest) + 1)
        known = sorted(set(numbers[bisect_left(numbers, old.start) : bisect_left(numbers, old.stop)]))
        self.unknown = self.unknown or len(known) < len(old)
        for number in known:
            self.resent.add(number)
            index, position = bisect_left(numbers, number), number - old.start
            is_single = index + 1 >= len(numbers) or numbers[index + 1] != number
            if len(hashes) == count and is_single and self.hashes[index] != hashes[position]:
                append = self.append_with(index)
                if self.lasts[append] in self.refused:
                    self.hashes[index] = hashes[position]
                    if self.firsts[append] == index - position and self.lasts[append] == last:
                        self.sizes[append] = size
                else:
                    different = index if different < 0 else different
        self.refused.discard(last)
        self.expected.update((index, None) for index in [self.append_of(last)] if index in self.expected)
        return len(old), different

    def append_of(self, number: int) -> int:
        """Returns the index of the append that has this last number; -1 if no append has it."""
        lasts = self.lasts
        if lasts and lasts[-1] == number:
            return len(lasts) - 1
        index = bisect_left(lasts, number)
        return index if index < len(lasts) and lasts[index] == number else -1

    def append_with(self, event: int) -> int:
        """Returns the index of the append with an event, by the event's index."""
        return bisect_right(self.firsts, event) - 1

    def ack_of(self, number: int) -> int:
        """Returns the index of the first acknowledgement that covers a number; -1 if no acknowledgement does."""
        index = bisect_left(self.acked, number)
        return index if index < len(self.acked) else -1

    @property
    def first_start(self) -> list[int]:
        """The offset of the append that the first acknowledgement names; empty if it is not known."""
        append = self.append_of(self.acked[0]) if self.acked else -1
        return [self.lengths[0] - self.sizes[append]] if append >= 0 and self.lengths[0] >= 0 else []
