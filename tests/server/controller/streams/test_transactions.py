"""Transactions: ids, leases, commits in order, rolling after a scale, and what a failing store leaves behind."""

from uuid import UUID

import pytest

from segstore.server.controller.errors import (
    ExecutionTimeExceeded,
    IllegalState,
    InvalidArgument,
    LeaseTooLarge,
    TooMany,
)
from segstore.server.controller.state import TransactionStatus, transaction_epoch
from segstore.server.controller.state import operations as op
from segstore.server.controller.state.operations import decode
from tests.server.controller.conftest import World

LEASE_MS = 90_000


def parts(transaction: UUID, *segments: str) -> list[str]:
    return [f"{segment}#transaction.{transaction.hex}" for segment in segments]


async def open_in_new_stream(world: World, count: int = 1) -> list[UUID]:
    """Opens transactions in a new stream."""
    await world.stream()
    return [(await world.controller.transactions.open("a", "s", LEASE_MS))[0] for _ in range(count)]


async def test_a_transaction_gets_a_segment_beside_each_of_its_epoch(world: World) -> None:
    await world.stream(2)
    transaction, segments = await world.controller.transactions.open("a", "s", LEASE_MS)
    assert [segment.number for segment in segments] == [0, 1]
    assert set(parts(transaction, "a/s/0.#epoch.0", "a/s/1.#epoch.0")) <= world.store.lengths.keys()
    assert transaction_epoch(transaction) == 0
    assert transaction.int & (1 << 63) == 0
    assert world.controller.transactions.status("a", "s", transaction) is TransactionStatus.OPEN


async def test_a_commit_without_delay_is_done_when_it_answers_and_done_once(world: World) -> None:
    (transaction,) = await open_in_new_stream(world)
    (part,) = parts(transaction, "a/s/0.#epoch.0")
    world.store.lengths[part] = 30
    for _ in range(2):
        await world.controller.transactions.commit("a", "s", transaction)
    assert world.store.lengths == {"a/s/0.#epoch.0": 30}
    assert sum(call[0] == "merge" for call in world.store.calls) == 1
    assert world.controller.transactions.status("a", "s", transaction) is TransactionStatus.COMMITTED
    assert world.controller.transactions.completed("a", "s") == {transaction: TransactionStatus.COMMITTED}


async def test_an_abort_deletes_the_transactions_segments(world: World) -> None:
    (transaction,) = await open_in_new_stream(world)
    await world.controller.transactions.abort("a", "s", transaction)
    await world.controller.transactions.abort("a", "s", transaction)
    assert world.store.lengths == {"a/s/0.#epoch.0": 0}
    assert world.controller.transactions.status("a", "s", transaction) is TransactionStatus.ABORTED


@pytest.mark.parametrize("delay_ms", [0, 500])
async def test_the_first_request_to_end_decides(world: World, delay_ms: int) -> None:
    world.make(commit_delay_ms=delay_ms)
    committed, aborted = await open_in_new_stream(world, 2)
    await world.controller.transactions.commit("a", "s", committed)
    await world.controller.transactions.abort("a", "s", aborted)
    with pytest.raises(IllegalState):
        await world.controller.transactions.abort("a", "s", committed)
    with pytest.raises(IllegalState):
        await world.controller.transactions.commit("a", "s", aborted)


async def test_a_delayed_commit_happens_at_its_time(world: World) -> None:
    world.make(commit_delay_ms=500)
    (transaction,) = await open_in_new_stream(world)
    await world.controller.transactions.commit("a", "s", transaction)
    await world.pass_time(499)
    assert world.controller.transactions.status("a", "s", transaction) is TransactionStatus.COMMITTING
    await world.pass_time(1)
    assert world.controller.transactions.status("a", "s", transaction) is TransactionStatus.COMMITTED


async def test_commits_happen_in_the_order_in_which_they_were_asked_for(world: World) -> None:
    world.make(commit_delay_ms=500)
    first, second = await open_in_new_stream(world, 2)
    await world.controller.transactions.commit("a", "s", second)
    await world.controller.transactions.commit("a", "s", first)
    await world.pass_time(500)
    (merge,) = (call for call in world.store.calls if call[0] == "merge")
    assert merge == ("merge", "a/s/0.#epoch.0", *parts(second, "a/s/0.#epoch.0"), *parts(first, "a/s/0.#epoch.0"))


async def test_many_commits_at_once_are_merged_in_batches(world: World) -> None:
    world.make(commit_delay_ms=500)
    committing = await open_in_new_stream(world, 250)
    for transaction in committing:
        await world.controller.transactions.commit("a", "s", transaction)
    world.store.calls.clear()
    await world.pass_time(500)
    merges = [call[2:] for call in world.store.calls if call[0] == "merge"]
    assert [len(merge) for merge in merges] == [100, 100, 50]
    merged = [name for merge in merges for name in merge]
    assert merged == [parts(transaction, "a/s/0.#epoch.0")[0] for transaction in committing]
    assert len(world.controller.transactions.completed("a", "s")) == 250


async def test_open_transactions_of_a_stream_are_bounded_until_one_has_ended(world: World) -> None:
    world.make(max_transactions=2)
    (first,) = await open_in_new_stream(world)
    await world.controller.transactions.open("a", "s", LEASE_MS)
    before = dict(world.store.lengths)
    with pytest.raises(TooMany, match="3 open transactions of a stream exceed the limit of 2"):
        await world.controller.transactions.open("a", "s", LEASE_MS)
    assert world.store.lengths == before
    await world.controller.transactions.abort("a", "s", first)
    await world.controller.transactions.open("a", "s", LEASE_MS)


async def test_a_commit_of_a_writer_too_many_is_done_without_its_time(world: World) -> None:
    world.make(max_writers=1)
    await world.stream()
    for writer in ("one", "two"):
        transaction, _ = await world.controller.transactions.open("a", "s", LEASE_MS)
        await world.controller.transactions.commit("a", "s", transaction, writer, 7)
        assert world.controller.transactions.status("a", "s", transaction) is TransactionStatus.COMMITTED
    assert set(world.controller.state.stream("a", "s").writers) == {"one"}


async def test_a_ping_gives_a_new_lease(world: World) -> None:
    (transaction,) = await open_in_new_stream(world)
    for _ in range(5):
        await world.pass_time(LEASE_MS)
        assert world.controller.transactions.ping("a", "s", transaction, LEASE_MS) is TransactionStatus.OPEN
    await world.pass_time(LEASE_MS + 30_000)
    assert world.controller.transactions.ping("a", "s", transaction, LEASE_MS) is TransactionStatus.ABORTED


@pytest.mark.parametrize(
    ("settings", "end_ms"),
    [({}, LEASE_MS + 30_000), ({"lease_cap_ms": 1_000}, 1_000), ({"lease_cap_ms": 1_000, "lease_slack_ms": 70}, 1_070)],
)
async def test_a_lease_that_ends_aborts_after_the_slack(world: World, settings: dict[str, int], end_ms: int) -> None:
    world.make(**settings)
    (transaction,) = await open_in_new_stream(world)
    await world.pass_time(end_ms - 1)
    assert world.controller.transactions.status("a", "s", transaction) is TransactionStatus.OPEN
    await world.pass_time(1)
    assert world.controller.transactions.status("a", "s", transaction) is TransactionStatus.ABORTED
    assert world.store.lengths == {"a/s/0.#epoch.0": 0}


async def test_a_lease_out_of_bounds_opens_nothing(world: World) -> None:
    await world.stream()
    for lease_ms in (-1, 9_999, 600_001):
        with pytest.raises(InvalidArgument):
            await world.controller.transactions.open("a", "s", lease_ms)
    assert world.store.lengths == {"a/s/0.#epoch.0": 0}


async def test_a_ping_beyond_the_maximum_is_refused(world: World) -> None:
    world.make(max_transaction_ms=100_000)
    (transaction,) = await open_in_new_stream(world)
    with pytest.raises(LeaseTooLarge):
        world.controller.transactions.ping("a", "s", transaction, 600_001)
    await world.pass_time(20_000)
    with pytest.raises(ExecutionTimeExceeded):
        world.controller.transactions.ping("a", "s", transaction, LEASE_MS)


async def test_a_transaction_of_an_older_epoch_rolls_the_stream(world: World) -> None:
    (transaction,) = await open_in_new_stream(world)
    world.store.lengths[parts(transaction, "a/s/0.#epoch.0")[0]] = 12
    await world.controller.scaling.start("a", "s", [0], [(0.0, 0.5), (0.5, 1.0)])
    await world.controller.transactions.commit("a", "s", transaction)
    stream = world.controller.state.stream("a", "s")
    names = [[stream.segment_name(segment) for segment in epoch.segments] for epoch in stream.epochs]
    assert names == [
        ["a/s/0.#epoch.0"],
        ["a/s/1.#epoch.1", "a/s/2.#epoch.1"],
        ["a/s/0.#epoch.2"],
        ["a/s/1.#epoch.3", "a/s/2.#epoch.3"],
    ]
    assert world.store.lengths["a/s/0.#epoch.2"] == 12
    assert world.store.sealed == {"a/s/0.#epoch.0", "a/s/1.#epoch.1", "a/s/2.#epoch.1", "a/s/0.#epoch.2"}
    # A reader goes through all of it.
    assert {each.id for each in await world.controller.streams.following("a", "s", 1 << 32 | 1)} == {2 << 32}
    assert len(await world.controller.streams.following("a", "s", 2 << 32)) == 2


async def test_after_rolling_transactions_belong_to_the_epoch_that_is_repeated(world: World) -> None:
    (old,) = await open_in_new_stream(world)
    await world.controller.scaling.start("a", "s", [0], [(0.0, 0.5), (0.5, 1.0)])
    await world.controller.transactions.commit("a", "s", old)
    transaction, segments = await world.controller.transactions.open("a", "s", LEASE_MS)
    assert transaction_epoch(transaction) == 1
    assert [(segment.number, segment.epoch) for segment in segments] == [(1, 1), (2, 1)]
    await world.controller.transactions.commit("a", "s", transaction)
    assert len(world.controller.state.stream("a", "s").epochs) == 4


async def test_a_commit_that_the_store_fails_is_done_later(world: World) -> None:
    (transaction,) = await open_in_new_stream(world)
    world.store.broken = {"merge"}
    await world.controller.transactions.commit("a", "s", transaction)
    await world.pass_time(3_000)
    assert world.controller.transactions.status("a", "s", transaction) is TransactionStatus.COMMITTING
    world.store.broken = set()
    await world.pass_time(1_000)
    assert world.controller.transactions.status("a", "s", transaction) is TransactionStatus.COMMITTED


async def test_accepted_work_continues_after_a_restart_of_the_controller(world: World) -> None:
    world.make(commit_delay_ms=500, scale_delay_ms=500)
    committing, left = await open_in_new_stream(world, 2)
    await world.controller.transactions.commit("a", "s", committing)
    await world.controller.scaling.start("a", "s", [0], [(0.0, 0.5), (0.5, 1.0)])
    world.make(world.replayed())
    await world.pass_time(500)
    assert world.controller.transactions.status("a", "s", committing) is TransactionStatus.COMMITTED
    assert len(world.controller.state.stream("a", "s").current.segments) == 2
    await world.pass_time(LEASE_MS + 30_000)
    assert world.controller.transactions.status("a", "s", left) is TransactionStatus.ABORTED


async def test_the_ends_of_transactions_are_forgotten_after_a_day(world: World) -> None:
    (old,) = await open_in_new_stream(world)
    await world.controller.transactions.abort("a", "s", old)
    await world.pass_time(86_400_001)
    new, _ = await world.controller.transactions.open("a", "s", LEASE_MS)
    await world.controller.transactions.abort("a", "s", new)
    assert list(world.controller.transactions.completed("a", "s")) == [new]


async def ended(world: World, count: int) -> list[UUID]:
    """Opens transactions and aborts them in reverse order, a millisecond apart; returns them in order of opening."""
    opened = [(await world.controller.transactions.open("a", "s", LEASE_MS))[0] for _ in range(count)]
    for each in reversed(opened):
        world.clock.now_ms += 1
        await world.controller.transactions.abort("a", "s", each)
    return opened


async def test_the_outcomes_of_a_bounded_number_of_transactions_are_remembered(world: World) -> None:
    world.make(completed_max=50)
    await world.stream()
    status = world.controller.transactions.status
    for _ in range(20):
        opened = await ended(world, 10)
        assert all(status("a", "s", each) is TransactionStatus.ABORTED for each in opened)
        assert len(world.controller.state.stream("a", "s").completed) <= 55
    assert len(world.controller.state.stream("a", "s").completed) >= 50
    forgotten = sum(type(decode(each)) is op.CompletedForgotten for each in world.journal)
    assert 20 <= forgotten <= 40, "they are forgotten in batches"


async def test_ids_are_the_epoch_and_a_number_that_counts_up(world: World) -> None:
    await world.stream()
    await world.stream(name="t")
    opened = [(await world.controller.transactions.open("a", name, LEASE_MS))[0] for name in ("s", "t", "s")]
    await world.controller.scaling.start("a", "s", [0], [(0.0, 0.5), (0.5, 1.0)])
    opened.append((await world.controller.transactions.open("a", "s", LEASE_MS))[0])
    first = world.clock.now_ms << 20
    assert [each.int for each in opened] == [first, first + 1, first + 2, 1 << 96 | first + 3]
    world.clock.now_ms += 1_000_000
    world.make(world.replayed())
    again, _ = await world.controller.transactions.open("a", "t", LEASE_MS)
    assert again.int == first + 4


async def test_sealing_commits_what_was_asked_for_and_aborts_the_rest(world: World) -> None:
    world.make(commit_delay_ms=60_000)
    committing, left = await open_in_new_stream(world, 2)
    await world.controller.transactions.commit("a", "s", committing)
    await world.controller.streams.seal("a", "s")
    assert world.controller.transactions.completed("a", "s") == {
        committing: TransactionStatus.COMMITTED,
        left: TransactionStatus.ABORTED,
    }
    with pytest.raises(IllegalState):
        await world.controller.transactions.open("a", "s", LEASE_MS)


async def test_a_commit_with_a_time_notes_it_for_the_writer(world: World) -> None:
    timed, untimed = await open_in_new_stream(world, 2)
    world.store.lengths[parts(timed, "a/s/0.#epoch.0")[0]] = 9
    await world.controller.transactions.commit("a", "s", timed, "w", 77)
    await world.controller.transactions.commit("a", "s", untimed, "v", -(2**63))
    (mark,) = world.controller.state.stream("a", "s").writers.values()
    assert (mark.timestamp, mark.position) == (77, {0: 9})
