"""Group commit on a journal that does what a test says: what is written together, and what is told when."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from segstore.server.durable import JournalFailed
from segstore.server.durable.committer import BATCH, Committer, Committers, records
from segstore.server.durable.fence import Fenced
from segstore.server.durable.journal import Group
from segstore.wire import Buffer
from tests.server.durable.support import Sender
from tests.server.support import until


class Journal:
    """Keeps groups; writes them only while `gate` is open, and fails with `error`."""

    base_crc = 0

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.groups: list[Group] = []
        self.error: Exception | None = None
        self.is_full = False
        self.closed = 0

    def append(self, group: Group) -> None:
        self.gate.wait(60)
        if self.error is not None:
            raise self.error
        self.groups.append(group)

    def close(self) -> None:
        self.closed += 1


class Notes:
    """The last durable batch, as it is noted on disk."""

    path = "the journal"
    is_over = False

    def __init__(self) -> None:
        self.noted: list[int] = []

    def note(self, number: int) -> None:
        self.noted.append(number)

    def check_place(self) -> None:
        pass


class Parts:
    """A committer, and what it works with."""

    def __init__(self, journal: Journal, last: int, max_bytes: int) -> None:
        self.journal = journal
        self.notes = Notes()
        self.failures: list[str] = []
        self.looked: list[int] = []
        self.switched: list[int] = []
        self.committer = Committer(
            journal,  # type: ignore[arg-type]
            self.notes,  # type: ignore[arg-type]
            last,
            max_bytes=max_bytes,
            on_failure=self.failures.append,
            on_look=self.look,
            on_switch=self.switched.append,
        )

    def look(self) -> None:
        self.looked.append(self.committer.batch_bytes)


@asynccontextmanager
async def committing(last: int = 0, max_bytes: int = 1000, journal: Journal | None = None) -> AsyncIterator[Parts]:
    made = Parts(journal or Journal(), last, max_bytes)
    try:
        yield made
    finally:
        made.journal.gate.set()
        await made.committer.close()


def begin(number: int) -> tuple[int, bytes]:
    return BATCH, number.to_bytes(8)


def found(group: Group) -> list[tuple[int, bytes]]:
    return [(log_id, bytes(data)) for log_id, data in records(group.payload)]


async def test_what_is_executed_in_one_iteration_is_one_batch_and_what_queues_up_one_group() -> None:
    async with committing(last=7) as made:
        committer, journal = made.committer, made.journal
        assert (committer.mark, committer.committed) == (7, 7)
        journal.gate.clear()
        committer.add(0, b"one")
        committer.add(1, b"two")
        assert committer.mark == 8
        await asyncio.sleep(0)
        committer.add(2, b"three")
        assert committer.mark == 9
        await asyncio.sleep(0)
        committer.add(3, b"")
        assert committer.hand_over() == 10
        assert committer.hand_over() == 10, "there is nothing to hand over"
        assert committer.committed == 7
        journal.gate.set()
        await committer.settled()
        assert committer.committed == 10
        assert [entry for group in journal.groups for entry in found(group)] == [
            *(begin(8), (0, b"one"), (1, b"two")),
            *(begin(9), (2, b"three")),
            *(begin(10), (3, b"")),
        ]
        assert [(group.first, group.last) for group in journal.groups][-1][1] == 10
        assert journal.groups[0].first == 8
        assert made.notes.noted == [group.last for group in journal.groups]
        assert len(journal.groups) <= 2, "what queued up while the first was written is one group"


async def test_what_is_durable_can_leave_while_the_loop_has_other_work_and_leaves_once() -> None:
    async with committing() as made:
        committer, sender = made.committer, Sender()
        committer.add(0, b"one")
        committer.held.append((committer.mark, sender, [b"reply"]))
        committer.catch_up()
        assert sender.released == []
        committer.hand_over()
        until_s = time.monotonic() + 60
        while not sender.released and time.monotonic() < until_s:
            time.sleep(0.001)  # noqa: ASYNC251 — the loop is to stand still meanwhile
            committer.catch_up()
        assert (sender.released, committer.committed) == ([b"reply"], committer.mark)
        await asyncio.sleep(0.01)
        assert sender.released == [b"reply"]
        assert committer._room_bytes == 1000, "what was written takes no room"


async def test_replies_leave_when_what_they_tell_of_is_durable() -> None:
    async with committing() as made:
        committer, journal = made.committer, made.journal
        journal.gate.clear()
        committer.add(0, b"one")
        first, both = Sender(), Sender()
        for each in (first, both):
            committer.held.append((committer.mark, each, [b"one"]))
        committer.hand_over()
        await asyncio.sleep(0)
        committer.add(0, b"two")
        committer.held.append((committer.mark, both, [b"two"]))
        assert (first.released, both.released) == ([], [])
        journal.gate.set()
        await committer.settled()
        assert (first.released, both.released) == ([b"one"], [b"one", b"two"])
        await committer.settled()


@pytest.mark.parametrize(
    ("error", "level", "why"),
    [
        (OSError(5, "Input/output error"), logging.CRITICAL, "the journal cannot be written to ([Errno 5]"),
        (ZeroDivisionError("a defect"), logging.CRITICAL, "the journal cannot be written to (a defect)"),
        (Fenced(Path("containers/3"), 7), logging.WARNING, "containers/3 was opened by another store; epoch 7"),
    ],
    ids=["disk", "defect", "fenced"],
)
async def test_after_a_failure_nobody_is_acknowledged_and_everybody_is_told_once(
    caplog: pytest.LogCaptureFixture, error: Exception, level: int, why: str
) -> None:
    async with committing() as made:
        committer = made.committer
        made.journal.error = error
        made.journal.gate.clear()
        committer.add(0, b"lost")
        held, stalled = Sender(), Sender()
        committer.held.append((committer.mark, held, [b"a reply"]))
        committer.stalled[stalled] = None
        waiting = asyncio.create_task(committer.settled())
        await asyncio.sleep(0)
        made.journal.gate.set()
        with pytest.raises(JournalFailed, match="another store" if isinstance(error, Fenced) else "cannot be written"):
            await waiting
        assert committer.failure.startswith(why)
        assert made.failures == [committer.failure] == held.ended == stalled.ended
        assert (held.released, committer.committed, made.notes.noted, committer.stalled) == ([], 0, [], {})
        assert [record.levelno for record in caplog.records if record.getMessage() == committer.failure] == [level]
        made.journal.error = None
        committer.add(0, b"later")
        assert committer.hand_over() == 1
        committer.fail("again")
        assert committer.failure.startswith(why)
        with pytest.raises(JournalFailed):
            await committer.settled()
    assert made.journal.groups == []


async def test_a_committer_is_full_while_more_is_queued_than_may_be() -> None:
    async with committing(max_bytes=100) as made:
        committer, sender = made.committer, Sender()
        made.journal.gate.clear()
        committer.add(0, bytes(50))
        assert not committer.full
        await asyncio.sleep(0)
        committer.add(0, bytes(50))
        assert committer.full
        committer.stalled[sender] = None
        committer.hand_over()
        committer.look_for_room()
        assert (committer.full, sender.resumed) == (True, 0)
        made.journal.gate.set()
        await committer.settled()
        await until(lambda: sender.resumed)
        assert (committer.full, sender.resumed, committer.stalled) == (False, 1, {})


async def test_a_committer_is_full_when_memory_has_no_room_until_a_snapshot_makes_some() -> None:
    async with committing() as made:
        committer, sender, looked = made.committer, Sender(), made.looked
        committer.look_at_bytes, committer.room_until_bytes = 30, 60
        committer.add(0, b"")
        committer.hand_over()
        assert (committer.batch_bytes, looked, committer.full) == (24, [], False)
        committer.add(0, bytes(6))
        committer.hand_over()
        assert (committer.batch_bytes, looked, committer.full) == (54, [54], False)
        committer.add(0, b"")
        committer.hand_over()
        assert (committer.batch_bytes, looked, committer.full) == (78, [54], True)
        await committer.settled()
        assert committer.full, "it is in memory until a snapshot has it"
        committer.stalled[sender] = None
        committer.room_until_bytes = 78
        committer.look_for_room()
        assert (committer.full, sender.resumed) == (False, 1)


async def test_a_full_journal_is_closed_and_the_next_one_goes_on() -> None:
    class FullAtTwo(Journal):
        def append(self, group: Group) -> None:
            super().append(group)
            self.is_full = group.last >= 2

    async with committing(journal=FullAtTwo()) as made:
        committer, first, second, switched = made.committer, made.journal, Journal(), made.switched
        assert committer.next is None
        committer.next = second
        committer.add(0, b"one")
        await committer.settled()
        assert (first.closed, committer.next is not None) == (0, True)
        committer.add(0, b"two")
        await until(lambda: switched)
        assert (switched, first.closed, committer.next is not None) == ([2], 1, False)
        committer.add(0, b"three")
        await committer.settled()
        assert [len(first.groups), len(second.groups)] == [2, 1]
        third = Journal()
        committer.next = third
    assert (first.closed, second.closed, third.closed, switched) == (1, 1, 1, [2])


async def test_a_full_journal_goes_on_while_there_is_no_other() -> None:
    async with committing() as made:
        made.journal.is_full = True
        for _ in range(3):
            made.committer.add(0, b"data")
            await made.committer.settled()
        assert (len(made.journal.groups), made.journal.closed) == (3, 0)


async def test_closing_writes_what_is_queued() -> None:
    async with committing() as made:
        made.committer.add(0, b"last")
    assert [entry for group in made.journal.groups for entry in found(group)] == [begin(1), (0, b"last")]
    assert made.journal.closed == 1
    assert made.failures == []


class Watching(Committers):
    def __init__(self) -> None:
        super().__init__()
        self.formed: list[Committer] = []
        self.moves = 0

    def forming(self, committer: Committer) -> None:
        self.formed.append(committer)

    def moved(self) -> None:
        self.moves += 1


async def test_the_watcher_is_told_of_each_batch_once_and_of_what_became_durable() -> None:
    async with committing() as made:
        watcher = made.committer.watcher = Watching()
        made.committer.add(0, b"one")
        made.committer.add(0, b"two")
        assert (watcher.formed, watcher.moves) == ([made.committer], 0)
        await made.committer.settled()
        assert watcher.moves == 1
        made.committer.look_for_room()
        assert watcher.moves == 2


def test_records_that_are_cut_off_are_refused_with_their_place() -> None:
    whole = b"\x00\x00\x00\x05\x00\x00\x00\x03abc"
    assert [(log_id, bytes(data)) for log_id, data in records(whole * 2)] == [(5, b"abc")] * 2
    assert records(b"") == []
    with pytest.raises(ValueError, match="a record is cut off at byte 11"):
        records(whole + whole[:7])
    with pytest.raises(ValueError, match="a record of 3 bytes is cut off at byte 19"):
        records(whole + whole[:-1])


async def test_who_waits_is_notified_when_its_own_batch_is_durable() -> None:
    class Stepwise(Journal):
        def __init__(self) -> None:
            super().__init__()
            self.steps = threading.Semaphore(0)
            self.begun = 0

        def append(self, group: Group) -> None:
            self.begun += 1
            self.steps.acquire(timeout=60)
            super().append(group)

    journal = Stepwise()
    async with committing(journal=journal) as made:
        committer = made.committer
        committer.add(0, b"one")
        first = asyncio.create_task(committer.settled())
        await until(lambda: journal.begun)
        committer.add(0, b"two")
        second = asyncio.create_task(committer.settled())
        await asyncio.sleep(0)
        journal.steps.release()
        await first
        assert (committer.committed, second.done()) == (1, False)
        journal.steps.release()
        await second
        assert committer.committed == 2


class Journalled:
    """A committer whose batches become durable when a test says so."""

    def __init__(self, committers: Committers) -> None:
        self.written: list[int] = []
        self.committed = 0
        self.full = False
        self.watcher: Committers | None = None
        self._committers = committers
        self._number = 0
        self.handed_over = 0
        committers.add(self.one)

    @property
    def one(self) -> Committer:
        return cast("Committer", self)

    def execute(self) -> int:
        """An operation; the mark of its reply."""
        self._committers.forming(self.one)
        return self._committers.mark

    def hand_over(self) -> int:
        self._number += 1
        self.handed_over += 1
        return self._number

    def catch_up(self) -> None:
        self.written.clear()
        self.commit()

    def commit(self) -> None:
        self.committed = self._number
        if self.watcher is not None:
            self.watcher.moved()


def hold(committers: Committers, sender: Sender | None = None) -> Sender:
    """Holds a reply back, which tells its mark."""
    sender = sender or Sender()
    committers.held.append((committers.mark, sender, cast("list[Buffer]", [committers.mark])))
    return sender


async def test_a_round_is_durable_when_all_its_journals_have_it_and_all_rounds_before_are() -> None:
    committers = Committers()
    one, other = Journalled(committers), Journalled(committers)
    assert (committers.mark, committers.committed) == (0, 0)
    assert [one.execute(), other.execute(), one.execute()] == [1, 1, 1]
    sender = hold(committers)
    await asyncio.sleep(0)
    assert (one.handed_over, other.handed_over) == (1, 1)
    assert other.execute() == 2
    hold(committers, sender)
    second = hold(committers)
    await asyncio.sleep(0)
    other.commit()
    assert (committers.committed, sender.released, second.released) == (0, [], []), "the first round lacks a journal"
    one.commit()
    assert (committers.committed, sender.released, second.released) == (2, [1, 2], [2])


async def test_replies_that_cannot_be_sent_end_their_sender_once_and_no_other() -> None:
    class Broken(Sender):
        def release(self, out: list[Buffer]) -> None:
            raise ZeroDivisionError

    committers = Committers()
    journal = Journalled(committers)
    journal.execute()
    broken = hold(committers, Broken())
    hold(committers, broken)
    other = hold(committers)
    await asyncio.sleep(0)
    journal.commit()
    assert (broken.ended, other.ended, other.released) == (["its replies could not be sent"], [], [1])


async def test_rounds_that_are_durable_can_leave_before_the_loop_is_notified() -> None:
    committers = Committers()
    one, other = Journalled(committers), Journalled(committers)
    one.execute()
    other.execute()
    sender = hold(committers)
    await asyncio.sleep(0)
    one.written.append(1)
    committers.catch_up()
    assert sender.released == []
    other.written.append(1)
    committers.catch_up()
    assert (sender.released, one.written, other.written) == ([1], [], [])


async def test_a_journal_that_is_lost_with_what_is_not_durable_ends_those_who_wait() -> None:
    for handed_over in (False, True):
        committers = Committers()
        one, other = Journalled(committers), Journalled(committers)
        one.execute()
        other.execute()
        if handed_over:
            await asyncio.sleep(0)
        waiting = hold(committers)
        committers.remove(one.one, "its container was opened elsewhere")
        assert waiting.ended == ["its container was opened elsewhere"]
        assert one.watcher is None
        await asyncio.sleep(0)
        other.commit()
        assert (waiting.released, committers.committed) == ([], 1), "the others go on"
        assert committers.failure == ""


async def test_a_journal_that_leaves_with_everything_durable_ends_nobody() -> None:
    committers = Committers()
    one, other = Journalled(committers), Journalled(committers)
    one.execute()
    other.execute()
    await asyncio.sleep(0)
    waiting = hold(committers)
    one.commit()
    committers.remove(one.one, "it left")
    committers.remove(one.one, "it left twice")
    assert (waiting.ended, waiting.released) == ([], [])
    other.commit()
    assert waiting.released == [1]


async def test_the_last_journal_of_a_round_lets_it_go_when_it_leaves() -> None:
    committers = Committers()
    one, other = Journalled(committers), Journalled(committers)
    one.execute()
    await asyncio.sleep(0)
    one.committed = 1
    waiting = hold(committers)
    committers.remove(other.one, "it left")
    assert waiting.released == [1]


async def test_senders_that_stalled_go_on_when_no_disk_is_behind() -> None:
    committers = Committers()
    one, other = Journalled(committers), Journalled(committers)
    one.full = other.full = True
    sender = Sender()
    committers.stalled[sender] = None
    assert committers.full
    one.full = False
    committers.moved()
    assert (committers.full, sender.resumed) == (True, 0)
    other.full = False
    committers.moved()
    committers.moved()
    assert (committers.full, sender.resumed, committers.stalled) == (False, 1, {})


async def test_after_a_failure_nothing_is_acknowledged_and_the_first_reason_stays() -> None:
    committers = Committers()
    one = Journalled(committers)
    one.execute()
    await asyncio.sleep(0)
    waiting = hold(committers)
    committers.fail("the disk is gone")
    later = hold(committers)
    committers.fail("again")
    one.commit()
    assert (committers.failure, committers.committed) == ("the disk is gone", 0)
    assert (waiting.ended, waiting.released) == (["the disk is gone"], [])
    assert (later.ended, later.released) == ([], [])
