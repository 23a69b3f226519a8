"""State replicated through a revisioned stream: each process keeps a copy and updates it optimistically.

A stream record is an initial state or a list of updates; applying all records in order gives every process the same
state. A change is computed from the last state read and stored conditionally; on a conflict, new records are read and
the change is computed again. Compaction writes the whole state as a record, moves the mark before it, and truncates
everything before the previous mark.

Invariants: the state belongs to `revision`; no update is applied twice; a change that raises changes nothing. Refused:
records that `segstore.wire.revisioned` refuses, and states and updates for which the rules raise ValueError. Follows
`StateSynchronizerImpl` (Pravega's client).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from segstore.client.attempts import Attempts
from segstore.client.errors import ConditionFailed, ProtocolViolation, SegmentTruncated
from segstore.client.lifecycle import ClosedAfter
from segstore.client.stream.revisioned import Revision, RevisionedStream
from segstore.wire.revisioned import decode_record, encode_initial, encode_updates

S = TypeVar("S")


class StateRules(Protocol[S]):
    """The operations on a state. They must be pure and the same in all processes, and never modify a state in place."""

    def create(self, initial: bytes) -> S:
        """Decodes an initial state. Raises ValueError."""

    def apply(self, state: S, update: bytes) -> S:
        """Returns the state after an update. Raises ValueError."""

    def compact(self, state: S) -> bytes:
        """Encodes a state, so that `create` restores it."""


class StateSynchronizer(ClosedAfter, Generic[S]):
    """A shared state. Use with `async with`, or call `aclose`, which closes its revisioned stream.

    Attributes:
        state: as of the last `fetch` or change, None until initialised.
        revision: the revision of the state.
    """

    state: S | None
    revision: Revision | None

    def __init__(self, stream: RevisionedStream, rules: StateRules[S]) -> None:
        self.state = None
        self.revision = None
        self._stream = stream
        self._rules = rules
        self._begins = 0

    async def initialise(self, initial: bytes) -> bool:
        """Writes the initial state if the stream is empty, else reads the state; returns whether it was empty."""
        written = await self._stream.write_conditionally(Revision(self._stream.segment, 0), encode_initial(initial))
        if written is None:
            await self.fetch()
            return False
        self.state, self.revision, self._begins = self._rules.create(initial), written, written.offset
        return True

    async def fetch(self) -> S | None:
        """Reads new records; returns the state, None if it was never initialised.

        Restarts from the mark if new records were truncated.
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
            except ValueError as shorter:
                raise ProtocolViolation(
                    f"{start.segment} is shorter than it was: {shorter}", segment=start.segment
                ) from shorter
            except SegmentTruncated as truncated:
                self.state = self.revision = None  # updates are missing: restart from an initial record
                pause_s = attempts.failed(truncated)
            await asyncio.sleep(pause_s)

    async def _catch_up(self, revision: Revision, attempts: Attempts) -> None:
        """Reads records after a revision; pauses if the write that caused a conflict is not visible yet."""
        await self.fetch()
        if self.revision != revision:
            attempts.progress()
        else:
            await asyncio.sleep(attempts.failed(None))

    def _take(self, revision: Revision, record: bytes) -> None:
        if self.revision is not None and revision <= self.revision:
            return
        try:
            initial, updates = decode_record(record)
            state = self.state if initial is None else self._rules.create(initial)
            if state is None:
                return  # updates before any initial state are left over from truncation; an initial record follows
            for update in updates:
                state = self._rules.apply(state, update)
        except ValueError as cause:
            raise ProtocolViolation(
                f"{revision.segment} has no valid record before {revision.offset}: {cause}", segment=revision.segment
            ) from cause
        if initial is not None:
            self._begins = revision.offset
        self.state, self.revision = state, revision

    @property
    def bytes_since_compaction(self) -> int:
        """Number of bytes of the updates that were read or written since the last initial record."""
        return 0 if self.revision is None else self.revision.offset - self._begins

    async def update(self, change: Callable[[S], Sequence[bytes]]) -> S:
        """Applies the updates that `change` returns, [] for no change; returns the new state.

        On a conflict `change` is called again with the newer state. Raises ConditionFailed if the state was never
        initialised, and what `change` raises.
        """
        attempts = self._stream.attempts(f"changing the state in {self._stream.segment}")
        while True:
            state, revision = await self._current()
            updates = list(change(state))
            if not updates:
                return state
            for update in updates:
                state = self._rules.apply(state, update)
            written = await self._stream.write_conditionally(revision, encode_updates(updates))
            if written is not None:
                self.state, self.revision = state, written
                return state
            await self._catch_up(revision, attempts)

    async def update_unconditionally(self, updates: Sequence[bytes]) -> None:
        """Writes updates unconditionally; they are visible after the next `fetch`."""
        await self._stream.write(encode_updates(updates))

    async def compact(self) -> None:
        """Writes the whole state, so that new processes start there, and truncates records before the last mark."""
        attempts = self._stream.attempts(f"compacting the state in {self._stream.segment}")
        while True:
            state, revision = await self._current()
            record = encode_initial(self._rules.compact(state))
            written = await self._stream.write_conditionally(revision, record)
            if written is not None:
                break
            await self._catch_up(revision, attempts)
        self.revision, self._begins = written, written.offset
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
