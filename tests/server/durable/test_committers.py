"""Rounds of several journals: a reply leaves when all that was executed before it is durable."""

from __future__ import annotations

import asyncio
from typing import cast

from segstore.server.durable.committer import Committer
from segstore.server.durable.committers import Committers
from segstore.wire import Buffer
from tests.server.durable.support import Sender


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
