"""Bytes without event headers, such as those of a byte stream: whether what was read is what was appended.

Reads and appends have no ends in common but by chance, and payloads are not held. Both have digests, which can be
joined and taken apart: the bytes between any two ends that both have are compared.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from segstore.wire.history.facts import Broken, Key, Open
from segstore.wire.history.segments.contents import PlaceList
from segstore.wire.history.segments.written import Written

NOT_PLACED: Final = "it is not known where appended bytes without event headers are stored"
NO_COMMON_ENDS: Final = "no two ends of reads are ends of appends without event headers"
_PRIME: Final = (1 << 30) - 35  # one digit of Python's integers, by which they are divided fast


def digest(data: bytes) -> int:
    """Returns the digest of bytes: the number that they are, modulo a prime."""
    return int.from_bytes(data, "big") % _PRIME


class Digests:
    """The digests of bytes that follow each other, from `ends[0]`: of all bytes before each end.

    places: of each end the place of its bytes; of the first end 0.
    """

    __slots__ = ("ends", "places", "sums")

    def __init__(self, start: int) -> None:
        self.ends, self.sums, self.places = array("q", [start]), array("q", [0]), array("q", [0])

    def add(self, size: int, digest: int, place: int) -> None:
        self.sums.append((self.sums[-1] * pow(256, size, _PRIME) + digest) % _PRIME)
        self.ends.append(self.ends[-1] + size)
        self.places.append(place)

    def between(self, first: int, last: int) -> int:
        """Returns the digest of the bytes between two ends, by their indexes."""
        size = self.ends[last] - self.ends[first]
        return (self.sums[last] - self.sums[first] * pow(256, size, _PRIME)) % _PRIME


class RawReads:
    """What was read of a segment: `runs` of reads, each of which starts where the one before ended."""

    def __init__(self) -> None:
        self.runs: list[Digests] = []
        self._open: dict[int, Digests] = {}
        """The end of a run → the run."""

    def read(self, offset: int, data: bytes, place: int) -> None:
        """Takes bytes that were read."""
        run = self._open.pop(offset, None)
        if run is None:
            run = Digests(offset)
            self.runs.append(run)
        run.add(len(data), digest(data), place)
        self._open[run.ends[-1]] = run


def judge_raw(
    key: Key, places: PlaceList, name: str, writers: Sequence[Written], reads: RawReads
) -> Iterator[Broken | Open]:
    """Compares the reads of a segment with the appends of its writers. name: the segment's."""
    stored = _stored(writers)
    if stored is None or not reads.runs:
        yield Open("garbage-read", key, NOT_PLACED)
        return
    indexes = {end: index for index, end in enumerate(stored.ends)}
    for run in reads.runs:
        common = [(indexes[end], index) for index, end in enumerate(run.ends) if end in indexes]
        if len(common) < 2:
            yield Open("garbage-read", key, NO_COMMON_ENDS)
        for (first, begin), (last, end) in pairwise(common):
            if stored.between(first, last) != run.between(begin, end):
                low, high = run.ends[begin], run.ends[end]
                text = f"bytes {low} to {high} of {name} are read, and others were appended there"
                yield Broken("garbage-read", key, (places[stored.places[last]], places[run.places[end]]), text)
                break  # what follows is often shifted by the same bytes


def _stored(writers: Sequence[Written]) -> Digests | None:
    """Returns the digests of appends where they are stored; None if it is not known where.

    The appends that an acknowledgement covers end at its length. They follow each other if they fill the range from the
    end of the acknowledged appends before; of the first ones it must be known that they begin the segment, unless the
    acknowledgement covers one append.
    """
    blocks: list[tuple[int, int, Written, list[int]]] = []
    for written in writers:
        if written.unknown or written.raw_from != 0:
            return None
        first = 0
        for number, length in zip(written.acked, written.lengths, strict=True):
            last = bisect_right(written.lasts, number)
            appends = [index for index in range(first, last) if written.lasts[index] not in written.refused]
            first, start = last, length - sum(written.sizes[index] for index in appends)
            blocks.append((start, length, written, appends))
    blocks.sort(key=lambda block: block[:2])
    if not blocks or (blocks[0][0] != 0 and len(blocks[0][3]) > 1):
        return None
    stored = Digests(blocks[0][0])
    for start, _, written, appends in blocks:
        if start != stored.ends[-1] or start < 0:
            return None
        for index in appends:
            stored.add(written.sizes[index], written.hashes[written.firsts[index]], written.sent[index])
    return stored
