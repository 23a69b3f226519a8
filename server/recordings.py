"""Recordings: parts of a server's traffic, started and stopped while it runs.

A recording keeps a copy of the blocks that `Traffic` makes between its start and its stop, in memory; simultaneous
recordings share the copy. It is a capture as from `Traffic.trace`: a connection that was open before has no record of
its opening.

Invariants: all recordings together hold at most `max_bytes`, because a recording reserves its limit until it is
stopped; a recording that reaches its limit ends there and keeps its records; delegation tokens are not recorded. A
deleted recording counts while it is read.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from segstore.server.config import UnknownName
from segstore.wire.trace import HEADER_BYTES, Columns, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segstore.server.traffic import Traffic
    from segstore.wire.trace import Pending, Record

MOST_BYTES: Final = 512 * 1024 * 1024
DEFAULT_BYTES: Final = 64 * 1024 * 1024


class RecordingRefused(Exception):
    """A recording cannot be started or stopped; the text is one sentence."""


class NoSuchRecording(UnknownName):
    """No recording has that name."""

    kind = "recording"


class KeptRecording:
    """A recording, running or stopped.

    Attributes:
        name, max_bytes: as given.
        started_ms, stopped_ms: in ms since 1970; `stopped_ms` is None while it runs.
        size: its bytes. records: number of its records.
        problem: why it has ended before it was stopped; empty if it has not.
    """

    def __init__(self, name: str, max_bytes: int, start: bytes, now_ms: int) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self.started_ms = now_ms
        self.stopped_ms: int | None = None
        self.size = len(start)
        self.records = 0
        self.problem = ""
        self._start = start
        self._blocks: list[bytes] = []

    def take(self, block: bytes, records: int, now_ms: int) -> None:
        """Adds a block with this number of records, or ends at the limit."""
        if self.size + len(block) > self.max_bytes:
            self.stopped_ms = now_ms
            self.problem = f"it ended at its limit of {self.max_bytes:,} bytes; later traffic is missing"
            return
        self._blocks.append(block)
        self.size += len(block)
        self.records += records

    def trace(self) -> Iterator[bytes]:
        """Yields the pieces of the capture, as far as it has them now."""
        yield from (self._start, *self._blocks)

    def all_records(self) -> Iterator[Record]:
        """Yields the current records; the recording may grow meanwhile."""
        for block in tuple(self._blocks):
            header = read_header(block, 0)
            yield from Columns(block[HEADER_BYTES : HEADER_BYTES + header.stored], header.records)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Recordings:
    """The recordings of a server's traffic, by name."""

    def __init__(self, traffic: Traffic, max_bytes: int = MOST_BYTES) -> None:
        self.max_bytes = max_bytes
        self._traffic = traffic
        self._all: dict[str, KeptRecording] = {}
        self._deleted: WeakSet[KeptRecording] = WeakSet()
        self._started = 0

    def __iter__(self) -> Iterator[KeptRecording]:
        self._traffic.flush()
        return iter(tuple(self._all.values()))

    def _take(self, pending: Pending) -> None:
        running = [recording for recording in self._all.values() if recording.stopped_ms is None]
        if not running:
            self._traffic.give_to(None)
        else:
            block = b"".join(pending.block(self._traffic.mark))
            for recording in running:
                recording.take(block, pending.records, _now_ms())

    def get(self, name: str) -> KeptRecording:
        """Returns a recording, with all traffic so far. Raises NoSuchRecording."""
        self._traffic.flush()
        recording = self._all.get(name)
        if recording is None:
            raise NoSuchRecording(name, tuple(self._all))
        return recording

    def start(self, name: str = "", max_bytes: int = DEFAULT_BYTES) -> KeptRecording:
        """Starts a recording. name: a new name; "" for a generated name. Raises RecordingRefused."""
        recordings = (*self._all.values(), *self._deleted)
        reserved = sum(
            recording.max_bytes if recording.stopped_ms is None else recording.size for recording in recordings
        )
        if reserved + max_bytes > self.max_bytes:
            left = max(0, self.max_bytes - reserved)
            raise RecordingRefused(f"max_bytes: {left:,} bytes are left for recordings; stop or delete others first")
        while not name:
            self._started += 1
            generated = f"recording {self._started}"
            name = "" if generated in self._all else generated
        if name in self._all:
            raise RecordingRefused(f"there is a recording {name!r}")
        self._traffic.flush()
        self._traffic.give_to(self._take)
        started = self._all[name] = KeptRecording(name, max_bytes, self._traffic.start, _now_ms())
        return started

    def stop(self, name: str) -> KeptRecording:
        """Stops a recording, unless it is stopped. Raises NoSuchRecording; RecordingRefused if it ended at its limit.

        It can be downloaded in both cases.
        """
        recording = self.get(name)
        if recording.problem:
            raise RecordingRefused(f"recording {name!r} is not complete: {recording.problem}")
        if recording.stopped_ms is None:
            recording.stopped_ms = _now_ms()
        return recording

    def delete(self, name: str) -> None:
        """Removes a recording, running or not. Raises NoSuchRecording."""
        self._deleted.add(self.get(name))
        del self._all[name]
