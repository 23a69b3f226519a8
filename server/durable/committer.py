"""Group commit: writes executed operations to the journal in groups and reports what is durable.

The operations executed in one loop iteration form a batch. Batches are atomic: a request that changes two segments or
two containers is in one batch. The thread writes all queued batches as one group, and meanwhile the next batches queue:
a slow disk makes groups larger but does not slow the loop. The loop never waits.

Visibility: requests are executed before their changes are durable, so each reply, to a read or a change, is held until
`committed` reaches the `mark` at the time of the reply. So no peer sees changes that a crash could undo, and replies
are sent in order. The reference shows readers data only once its log has it; here any read during the write of a group
waits for that group.

Invariants: batches are numbered without gaps and become durable in that order; after a `failure`, such as the loss of
the directory, no reply is sent. `full` is set while more than `max_bytes` are queued; callers should then wait.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from math import inf
from queue import Empty, SimpleQueue
from struct import Struct
from typing import Final, NamedTuple, Protocol

from segstore.server.durable.data_directory import DataDirectory, DirectoryGone
from segstore.server.durable.fence import Fenced
from segstore.server.durable.journal import Group, JournalFailed, JournalWriter
from segstore.wire import Buffer

log = logging.getLogger(__name__)

BATCH: Final = -2
"""Instead of a container's number: start of a batch, followed by the batch's number."""

_RECORD: Final = Struct(">iI")
_BEGIN: Final = Struct(">iIQ")
_GROUP_BYTES: Final = 8 * 1024 * 1024
_LOOK_S: Final = 0.5
"""How often the directory is looked for while nothing is written."""


class Gated(Protocol):
    """A sender that holds replies until their changes are durable."""

    def release(self, out: list[Buffer]) -> None:
        """Sends replies that were held; called once for each list, in their order."""

    def go_on(self) -> None:
        """Called when there is room again."""

    def failed(self, why: str) -> None:
        """Called when held replies will never be sent."""


class Gate(ABC):
    """Releases held replies once their changes are durable.

    Attributes:
        committed: everything up to this number is durable.
        mark: the number that `committed` must reach before a reply made now may be sent.
        failure: why nothing more becomes durable, in one sentence; "" if there was no failure.
        stalled: senders that wait for room.
        held: (mark, sender, replies) in the order of marks. Senders append, and leave the list of replies to the gate.
    """

    def __init__(self, last: int) -> None:
        self.committed = self.mark = last
        self.failure = ""
        self.stalled: dict[Gated, None] = {}
        self.held: deque[tuple[int, Gated, list[Buffer]]] = deque()

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether the disk does not keep up, so that senders should wait for room."""

    def catch_up(self) -> None:  # noqa: B027 — a gate may release all at once
        """Releases replies to changes that are durable already, before the loop is notified."""

    def forget(self, gated: Gated) -> None:
        """Frees the replies that are held for a sender."""
        for _, owner, out in self.held:
            if owner is gated:
                out.clear()

    def _release(self) -> None:
        held = self.held
        while held and held[0][0] <= self.committed:
            _, gated, out = held.popleft()
            try:
                if out:
                    gated.release(out)
            except Exception:  # it fails alone
                log.exception("unexpected error when replies were sent")
                self.forget(gated)
                gated.failed("its replies could not be sent")

    def _resume(self) -> None:
        stalled, self.stalled = self.stalled, {}
        for gated in stalled:
            gated.go_on()

    def _drop(self, why: str, *others: Gated) -> None:
        """Tells all senders with held replies, and `others`, that these will never be sent."""
        ended = dict.fromkeys(chain((gated for _, gated, _ in self.held), others))
        self.held.clear()
        for gated in ended:
            gated.failed(why)


class _Batch(NamedTuple):
    number: int
    records: list[bytes]
    size: int


def records(payload: bytes) -> list[tuple[int, memoryview]]:
    """Returns a group's records: container number or `BATCH`, and bytes. Raises `ValueError` for malformed bytes."""
    view, at, entries = memoryview(payload), 0, []
    while at < len(payload):
        if at + _RECORD.size > len(payload):
            raise ValueError(f"a record is cut off at byte {at}")
        log_id, size = _RECORD.unpack_from(payload, at)
        at += _RECORD.size
        if at + size > len(payload):
            raise ValueError(f"a record of {size} bytes is cut off at byte {at}")
        entries.append((log_id, view[at : at + size]))
        at += size
    return entries


def failure_of(directory: DataDirectory, error: Exception) -> tuple[str, int]:
    """Returns why nothing is acknowledged any more after an error, in one sentence, and its level in the log."""
    if isinstance(error, Fenced):
        return str(error), logging.WARNING
    if directory.is_over:
        return f"{directory.path} is another store's now: {error}", logging.WARNING
    try:
        directory.check_place()
    except DirectoryGone as gone:
        return f"{gone}: nothing is acknowledged any more", logging.CRITICAL
    except OSError:  # the disk has failed
        pass
    why = (
        f"{directory.path} cannot be written to ({error}): nothing is acknowledged any more; "
        "what was acknowledged is there when the store is started again"
    )
    return why, logging.CRITICAL


class Committer(Gate):
    """One thread that writes one journal; its gate counts batches. Created and called on the loop.

    Attributes:
        batch_bytes: total bytes of operations handed over so far.
        room_until_bytes: `full` is set when `batch_bytes` exceeds this, because the data stays in memory until a
            snapshot has it.
        look_at_bytes: `on_look` is called when `batch_bytes` exceeds this.
        next: the journal to use when the current journal is full; None if it is not ready.
        watcher: is notified of new batches and of progress; None for a single committer.
        written: numbers and sizes of batches that are on disk and were not reported; the thread appends, the loop pops.
    """

    full = False

    def __init__(
        self,
        journal: JournalWriter,
        directory: DataDirectory,
        last: int,
        *,
        max_bytes: int,
        on_failure: Callable[[str], None],
        on_look: Callable[[], None],
        on_switch: Callable[[int], None],
    ) -> None:
        """directory: records the last durable batch, at first `last`. on_switch: called with a journal's last batch
        once the next journal replaces it.
        """
        super().__init__(last)
        self.batch_bytes = 0
        self.room_until_bytes: float = inf
        self.look_at_bytes: float = inf
        self.watcher: Committers | None = None
        self._directory = directory
        self._on_failure = on_failure
        self._on_look = on_look
        self._on_switch = on_switch
        self._loop = asyncio.get_running_loop()
        self._number = last
        self._forming: list[bytes] = []
        self._room_bytes = max_bytes
        self._queue: SimpleQueue[_Batch | None] = SimpleQueue()
        self.written: deque[tuple[int, int]] = deque()
        self._futures: dict[asyncio.Future[None], int] = {}
        self._journal = journal
        self.next: JournalWriter | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="segstore journal", daemon=True)
        self._thread.start()

    # --- on the loop ------------------------------------------------------------------------------------------------

    def add(self, log_id: int, data: bytes) -> None:
        """Adds an executed operation to the current batch."""
        self.add_record(_RECORD.pack(log_id, len(data)) + data)

    def add_record(self, record: bytes) -> None:
        """As `add`, for a record that already begins with the container's number and its size."""
        forming = self._forming
        if not forming:
            if self.failure:
                return
            number = self.mark = self._number + 1
            forming.append(_BEGIN.pack(BATCH, _BEGIN.size - _RECORD.size, number))
            self._room_bytes -= _BEGIN.size
            self._loop.call_soon(self.hand_over)
            if self.watcher is not None:
                self.watcher.forming(self)
        forming.append(record)
        left_bytes = self._room_bytes = self._room_bytes - len(record)
        if left_bytes < 0:
            self.full = True

    def hand_over(self) -> int:
        """Ends the current batch and queues it; returns its number, or the last number if it is empty."""
        if self._forming and not self.failure:
            self._number += 1
            size = sum(map(len, self._forming))
            self.batch_bytes += size
            self._queue.put(_Batch(self._number, self._forming, size))
            self._forming = []
            if self.batch_bytes > self.look_at_bytes:
                self.look_at_bytes = inf
                self._on_look()
            if self.batch_bytes > self.room_until_bytes:
                self.full = True
        return self._number

    async def settled(self) -> None:
        """Waits until all executed operations are durable. Raises `JournalFailed`."""
        if self.failure:
            raise JournalFailed(self.failure)
        mark = self.mark
        if mark > self.committed:
            future = self._loop.create_future()
            self._futures[future] = mark
            try:
                await future
            finally:
                self._futures.pop(future, None)

    def look_for_room(self) -> None:
        """Updates `full`, and resumes waiting senders if there is room."""
        self.full = self.batch_bytes > self.room_until_bytes or self._room_bytes < 0
        if not self.full and self.stalled:
            self._resume()
        if not self.full and self.watcher is not None:
            self.watcher.moved()

    def catch_up(self) -> None:
        written = self.written
        if not written or self.failure:
            return
        while written:
            number, size = written.popleft()
            self._room_bytes += size
        self.committed = number
        self._release()
        for future, mark in tuple(self._futures.items()):
            if mark <= number and not future.done():
                future.set_result(None)
        if self.full:
            self.look_for_room()
        if self.watcher is not None:
            self.watcher.moved()

    def fail(self, why: str, level: int = logging.CRITICAL) -> None:
        """Stops all acknowledgements; `why` is one sentence. Only the first call has an effect."""
        if self.failure:
            return
        log.log(level, "%s", why)
        self.failure = why
        self._forming.clear()
        for future in tuple(self._futures):
            if not future.done():
                future.set_exception(JournalFailed(why))
        stalled, self.stalled = self.stalled, {}
        self._drop(why, *stalled)
        self._on_failure(why)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Writes the queue, ends the thread, closes the journals."""
        self.hand_over()
        self._queue.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()
        for journal in (self._journal, self.next):
            if journal is not None:
                journal.close()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._write_all()
        finally:
            self._tell(self._ended.set_result, None)

    def _write_all(self) -> None:
        queue, failed, ending = self._queue, False, False
        while not ending:
            batches: list[_Batch] = []
            size = 0
            with suppress(Empty):
                more = queue.get(timeout=_LOOK_S)
                while more is not None:
                    batches.append(more)
                    size += more.size
                    if size >= _GROUP_BYTES or queue.empty():  # this thread is the only consumer
                        break
                    more = queue.get()
                ending = more is None
            if failed or self.failure:
                continue
            try:
                if batches:
                    self._write(batches)
                self._directory.check_place()
                if batches:
                    self._report(batches[-1].number, size)
            except Exception as error:  # waiters must be notified of any error
                failed = True
                if not isinstance(error, (OSError, MemoryError)):
                    log.exception("unexpected error in a commit to %s", self._directory.path)
                self._tell(self.fail, *failure_of(self._directory, error))

    def _write(self, batches: list[_Batch]) -> None:
        last = batches[-1].number
        payload = b"".join([record for batch in batches for record in batch.records])
        for batch in batches:  # the disk may take long
            batch.records.clear()
        self._journal.append(Group(batches[0].number, last, payload))
        self._directory.note(last)

    def _report(self, last: int, size: int) -> None:
        """Reports a written group, which ends with batch `last`, and switches journals if this journal is full."""
        self.written.append((last, size))
        self._tell(self.catch_up)
        following = self.next
        if following is not None and self._journal.is_full:
            before, self._journal, self.next = self._journal, following, None
            before.close()
            self._tell(self._on_switch, last)

    def _tell(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop was closed meanwhile
            log.warning("the loop ended before the journal")


class Committers(Gate):
    """The gate of a store with a journal per container.

    The operations executed in one loop iteration form a round, over all journals. A round is durable when all its
    batches and all earlier rounds are. So replies are sent in order, as with one journal, and no peer sees changes that
    a crash could undo.

    Invariant: `mark` is the number of the last round, and no executed operation belongs to a later round. When a
    journal is lost, replies that may depend on its undurable batches are dropped.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self._committers: dict[Committer, None] = {}
        self._forming: dict[Committer, None] = {}
        self._rounds: deque[tuple[int, dict[Committer, int]]] = deque()

    @property
    def full(self) -> bool:
        return any(committer.full for committer in self._committers)

    def catch_up(self) -> None:
        for committer in tuple(self._committers):
            if committer.written:
                committer.catch_up()

    def add(self, committer: Committer) -> None:
        """Adds the committer of a new journal, to which nothing was written."""
        self._committers[committer] = None
        committer.watcher = self

    def remove(self, committer: Committer, why: str) -> None:
        """Removes a committer. If it has undurable batches, held replies are dropped, with `why` as the reason."""
        if committer not in self._committers:
            return
        del self._committers[committer]
        committer.watcher = None
        pending = self._forming.pop(committer, committer) is None
        for _, numbers in self._rounds:
            pending = numbers.pop(committer, 0) > committer.committed or pending
        if pending:
            self._drop(why)
        self.moved()

    def fail(self, why: str) -> None:
        """Stops all acknowledgements; `why` is one sentence. Only the first call has an effect."""
        if not self.failure:
            self.failure = why
            self._drop(why)

    # --- notifications of committers --------------------------------------------------------------------------------

    def forming(self, committer: Committer) -> None:
        """Called when a batch of a committer starts."""
        if not self._forming:
            self.mark += 1
            asyncio.get_running_loop().call_soon(self._end_round)
        self._forming[committer] = None

    def _end_round(self) -> None:
        forming, self._forming = self._forming, {}
        self._rounds.append((self.mark, {committer: committer.hand_over() for committer in forming}))
        self.moved()

    def moved(self) -> None:
        """Called when more is durable, or there is room again."""
        if self.failure:
            return
        rounds, before = self._rounds, self.committed
        while rounds and all(committer.committed >= number for committer, number in rounds[0][1].items()):
            self.committed = rounds.popleft()[0]
        if self.committed > before:
            self._release()
        if self.stalled and not self.full:
            self._resume()
