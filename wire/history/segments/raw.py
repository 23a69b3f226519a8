"""Compares bytes without event headers, such as the contents of byte streams: whether reads return the appended bytes.

Reads and appends have common ends only by chance, and payloads are not held. Digests can be joined and subtracted, so
the bytes between any two common ends are compared.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

from segstore.wire.history.facts import Broken, Key, Open
from segstore.wire.history.segments.contents import PlaceList
from segstore.wire.history.segments.written import Written

NOT_COMPARED: Final = "bytes without event headers were read that no known append explains"
_PRIME: Final = sys.hash_info.modulus


def digest(data: bytes) -> int:
    """Returns the digest of bytes: the number that they encode, modulo a prime."""
    return hash(int.from_bytes(data, "big"))  # is the remainder, and fast


class Digests:
    """The digests of bytes that follow each other from offset `ends[0]`.

    Attributes:
        ends: the offset `ends[0]`, and the offset at which each piece ends.
        sums: the digest of all bytes before each end. places: the index of each piece's place; 0 for `ends[0]`.
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
    """The reads of a segment. runs: the digests of reads that start where the read before ended."""

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
    ends = {end: (digests, index) for digests in stored for index, end in enumerate(digests.ends)}
    for run in reads.runs:
        common = [(*ends[end], index) for index, end in enumerate(run.ends) if end in ends]
        compared = 0
        for (appended, first, begin), (other, last, end) in pairwise(common):
            if appended is not other:
                continue  # a hole lies between the two ends
            low, high = run.ends[begin], run.ends[end]
            compared += high - low
            if appended.between(first, last) != run.between(begin, end):
                text = f"bytes {low} to {high} of {name} are read, and others were appended there"
                yield Broken("garbage-read", key, (places[appended.places[last]], places[run.places[end]]), text)
                break  # the bytes that follow are often shifted by the same bytes
        else:
            if compared < run.ends[-1] - run.ends[0]:
                yield Open("garbage-read", key, NOT_COMPARED)


def _stored(writers: Sequence[Written]) -> list[Digests]:
    """Returns the digests of the appends, one object for each range that they fill without a hole.

    The last append that an acknowledgement covers ends at its length. The earlier appends lie directly before it if
    they fill the range up to there, and if none of them can lie before the range: then no other bytes lie between.
    """
    stored: list[Digests] = []
    blocks = chain.from_iterable(map(_acknowledged, writers))
    for length, start, written, appends in sorted(blocks, key=lambda block: block[:2]):
        lowest = stored[-1].ends[0] if stored and stored[-1].ends[-1] == start else start
        is_conditional = not written.expected.keys().isdisjoint(appends[:-1])  # and may have been refused
        if len(appends) > 1 and (is_conditional or not lowest <= max(written.lows[appends[0]], 0) <= start):
            appends = appends[-1:]
            start = length - written.sizes[appends[0]]
        if start < 0:
            continue
        if not stored or stored[-1].ends[-1] != start:
            stored.append(Digests(start))
        for index in appends:
            stored[-1].add(written.sizes[index], written.hashes[written.firsts[index]], written.sent[index])
    return stored


def _acknowledged(written: Written) -> Iterator[tuple[int, int, Written, list[int]]]:
    """Yields what each acknowledgement covers: its length, the first offset, the writer, and the indexes of appends.

    The first offset is right if the appends are contiguous.
    """
    if written.unknown or written.raw_from < 0:
        return
    first = written.raw_from
    for number, length in zip(written.acked, written.lengths, strict=True):
        last = bisect_right(written.lasts, number)
        appends = [index for index in range(first, last) if written.lasts[index] not in written.refused]
        first = max(first, last)
        if appends and written.lasts[appends[-1]] == number:
            yield length, length - sum(written.sizes[index] for index in appends), written, appends
