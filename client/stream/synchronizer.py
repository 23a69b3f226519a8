"""State replicated through a revisioned stream: each process keeps a copy and updates it optimistically.

A record of the stream is an initial state or a run of updates; applying them in order gives everyone the same state. A
change is made from the state that was read last and stored only if nobody was faster; else what is new is read and the
change is made anew. Compaction writes the whole state as a record, moves the mark before it, and drops what lies before
the mark that was.

Invariants: the state is that of `revision`; no update is applied twice; a change that raises changes nothing. Records
are laid out as `UpdateOrInitSerializer` does (Pravega's client): an int32, 1 for an initial state and its bytes, 2 for
updates, each an int32 length and its bytes. Refused: records of another kind or with lengths that do not fit. Follows
`StateSynchronizerImpl`.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from segstore.client.attempts import Attempts
from segstore.client.errors import ConditionFailed, ProtocolViolation, SegmentTruncated
from segstore.client.lifecycle import ClosedAfter
from segstore.client.stream.revisioned import Revision, RevisionedStream

S = TypeVar("S")
_int32 = struct.Struct(">i")
_INITIAL: Final = 1
_UPDATES: Final = 2


class StateRules(Protocol[S]):
    """What a state is made of. Pure, the same for everyone who shares it; a state is never changed in place."""

    def create(self, initial: bytes) -> S:
        """The state that an initial record stands for."""

    def apply(self, state: S, update: bytes) -> S:
        """The state after an update."""

    def compact(self, state: S) -> bytes:
        """The initial record that stands for the state."""


def encode_initial(initial: bytes) -> bytes:
    """A record with an initial state."""
    return _int32.pack(_INITIAL) + initial


def encode_updates(updates: Sequence[bytes]) -> bytes:
    """A record with updates."""
    return _int32.pack(_UPDATES) + b"".join(_int32.pack(len(each)) + each for each in updates)


def decode_record(record: bytes) -> tuple[bytes | None, list[bytes]]:
    """The initial state, or None and the updates. Raises ValueError."""
    if len(record) < _int32.size:
        raise ValueError(f"a record of {len(record)} bytes has no kind")
    (kind,) = _int32.unpack_from(record)
    at = _int32.size
    if kind == _INITIAL:
        return record[at:], []
    if kind != _UPDATES:
        raise ValueError(f"a record of kind {kind}: 1 and 2 are known")
    updates = []
    while at < len(record):
        if len(record) - at < _int32.size:
            raise ValueError(f"no length at {at} of a record of {len(record)} bytes")
        (length,) = _int32.unpack_from(record, at)
        at += _int32.size
        if not 0 <= length <= len(record) - at:
            raise ValueError(f"an update of {length} bytes at {at} of a record of {len(record)} bytes")
        updates.append(record[at : at + length])
        at += length
    return None, updates


class StateSynchronizer(ClosedAfter, Generic[S]):
    """A shared state. Use with `async with`, or `aclose` it; closes its revisioned stream.

    Attributes:
        state: as of the last `fetch` or change, None before it was initialised.
        revision: what the state is of.
    """

    def __init__(self, stream: RevisionedStream, rules: StateRules[S]) -> None:
        self.state: S | None = None
        self.revision: Revision | None = None
        self._stream = stream
        self._rules = rules

    async def initialise(self, initial: bytes) -> bool:
        """Writes the initial state if the stream is empty; returns whether it was. Reads the state if not."""
        written = await self._stream.write_conditionally(Revision(self._stream.segment, 0), encode_initial(initial))
        if written is None:
            await self.fetch()
            return False
        self.state, self.revision = self._rules.create(initial), written
        return True

    async def fetch(self) -> S | None:
        """Reads what is new; returns the state, None if it was never initialised.

        If what is new was truncated, begins at the mark.
        """
        attempts = self._stream.attempts(f"reading the state in {self._stream.segment}")
        while True:
            start = self.revision
            if start is None:
                oldest = await self._stream.oldest()
                start = max(await self._stream.mark() or oldest, oldest)
            try:
                async for entry in self._stream.read(start):
                    self._take(entry.revision, entry.data)
                return self.state
            except SegmentTruncated as truncated:
                self.state = self.revision = None  # updates are missing: only an initial record goes on
                pause_s = attempts.failed(truncated)
            await asyncio.sleep(pause_s)

    async def _catch_up(self, revision: Revision, attempts: Attempts) -> None:
        """Reads what was written after a revision; pauses if the write that caused a refusal is not visible yet."""
        await self.fetch()
        if self.revision != revision:
            attempts.progress()
        else:
            await asyncio.sleep(attempts.failed(None))

    def _take(self, revision: Revision, record: bytes) -> None:
        try:
            initial, updates = decode_record(record)
        except ValueError as cause:
            raise ProtocolViolation(
                f"{revision.segment} holds no record before {revision.offset}: {cause}", segment=revision.segment
            ) from cause
        if self.revision is not None and revision <= self.revision:
            return
        if initial is not None:
            self.state, self.revision = self._rules.create(initial), revision
        elif self.state is not None:
            state = self.state
            for update in updates:
                state = self._rules.apply(state, update)
            self.state, self.revision = state, revision
        # Updates before any initial state were truncated in part: an initial record is behind them.

    async def update(self, change: Callable[[S], Sequence[bytes]]) -> S:
        """Changes the state by the updates that `change` makes of it, none to leave it; returns the new state.

        `change` is called again, with the newer state, each time that somebody else was faster. Raises ConditionFailed
        if the state was never initialised, and what `change` raises.
        """
        attempts = self._stream.attempts(f"changing the state in {self._stream.segment}")
        while True:
            state, revision = await self._current()
            updates = list(change(state))
            if not updates:
                return state
            for each in updates:
                state = self._rules.apply(state, each)
            written = await self._stream.write_conditionally(revision, encode_updates(updates))
            if written is not None:
                self.state, self.revision = state, written
                return state
            await self._catch_up(revision, attempts)

    async def update_unconditionally(self, updates: Sequence[bytes]) -> None:
        """Writes updates whatever the state is; they show after the next `fetch`."""
        await self._stream.write(encode_updates(updates))

    async def compact(self) -> None:
        """Writes the state as a whole, so that who comes later begins there, and drops what is before the last such."""
        attempts = self._stream.attempts(f"compacting the state in {self._stream.segment}")
        while True:
            state, revision = await self._current()
            record = encode_initial(self._rules.compact(state))
            written = await self._stream.write_conditionally(revision, record)
            if written is not None:
                break
            await self._catch_up(revision, attempts)
        self.revision = written
        mark = await self._stream.mark()
        if mark is None or mark < revision:
            await self._stream.compare_and_set_mark(mark, revision)
        if mark is not None:
            await self._stream.truncate(mark)

    async def _current(self) -> tuple[S, Revision]:
        if self.state is None:
            await self.fetch()
        if self.state is None or self.revision is None:
            raise ConditionFailed(
                f"the state in {self._stream.segment} was never initialised", segment=self._stream.segment
            )
        return self.state, self.revision

    async def aclose(self) -> None:
        await self._stream.aclose()
