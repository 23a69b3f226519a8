"""Checkpoints: each reader takes part between two events, and the whole splits the events into before and after."""

from __future__ import annotations

import asyncio

import pytest

from segstore.client import Checkpoint, CheckpointTaken, GroupChange, GroupReader, ReaderGroup
from segstore.client.client import Client
from segstore.client.errors import ConditionFailed, NoSuchReaderGroup, RequestTimedOut
from segstore.server.cluster import MockCluster
from tests.client.groups.support import client, fill, group
from tests.client.support import until

pytestmark = pytest.mark.usefixtures("grpc_runs")


class Worker:
    """A reader that handles events until it is cancelled, and keeps what it had handled at each checkpoint."""

    def __init__(self, shared: ReaderGroup, name: str, pause_s: float = 0) -> None:
        self.handled: list[bytes] = []
        self.at: dict[str, set[bytes]] = {}
        self.reader: GroupReader = shared.reader(name, listener=self._on)
        self._pause_s = pause_s

    def _on(self, change: GroupChange) -> None:
        if isinstance(change, CheckpointTaken):
            self.at[change.name] = set(self.handled)

    async def run(self) -> None:
        async with self.reader as reader:
            async for event in reader:
                await asyncio.sleep(self._pause_s)
                self.handled.append(event.data)


async def rest(pravega: Client, checkpoint: Checkpoint, name: str, count: int) -> set[bytes]:
    """Reads what follows a checkpoint, in a group that starts there."""
    found: set[bytes] = set()
    async with group(pravega, name, from_=checkpoint.cuts) as after, after.reader("r") as reader:
        while len(found) < count:
            event = await reader.read()
            assert event is not None
            found.add(event.data)
    return found


async def test_what_was_handled_at_a_checkpoint_and_what_follows_it_is_everything_once() -> None:
    async with MockCluster(watched=False) as mock, client(mock) as pravega:
        await fill(pravega, 400, segments=3)
        everything = {b"k%d:%d" % (number % 8, number) for number in range(400)}
        async with group(pravega) as shared:
            workers = [Worker(shared, f"r{number}", 0.002) for number in range(3)]
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(each.run()) for each in workers]
                await until(lambda: all(each.handled for each in workers))
                checkpoint = await shared.checkpoint("c")
                sealed = [segment.segment_id for segment in await pravega.controller.current_segments("a", "s")]
                ranges = [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)]
                await pravega.controller.scale("a", "s", sealed, ranges, wait_ms=10_000)
                again = await anext(aiter(shared.checkpoints(60)))
                assert again.name != "c"
                for task in running:
                    task.cancel()
            assert (checkpoint.name, list(checkpoint.cuts)) == ("c", ["a/s"])
            for each in (checkpoint, again):
                before = set().union(*[worker.at[each.name] for worker in workers])
                assert before
                after = await rest(pravega, each, f"after-{each.name}", len(everything) - len(before))
                assert before | after == everything
                assert not before & after


async def test_a_reader_at_the_tail_takes_a_checkpoint_and_one_that_does_not_read_is_named(pravega: Client) -> None:
    await fill(pravega, 10, segments=2)
    async with group(pravega) as shared:
        worker = Worker(shared, "busy")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(worker.run())
            await until(lambda: len(worker.handled) >= 10)
            checkpoint = await shared.checkpoint()
            ends = {each: info for each, info in checkpoint.cuts["a/s"].items() if info}
            assert sum(ends.values()) == sum(8 + len(each) for each in worker.handled)
            async with shared.reader("idle"):
                with pytest.raises(RequestTimedOut, match="the readers idle did not take the checkpoint c within"):
                    await shared.checkpoint("c", timeout_ms=300)
                waiting = asyncio.ensure_future(shared.checkpoint("d"))
                await until(lambda: "d" in worker.at)
                with pytest.raises(ConditionFailed, match="a checkpoint d of a/g is in progress"):
                    await shared.checkpoint("d")
            assert (await waiting).cuts == checkpoint.cuts  # the idle reader went offline, which takes it
            running.cancel()


async def test_a_group_without_readers_has_its_positions_as_a_checkpoint(pravega: Client) -> None:
    await fill(pravega, 10, segments=2)
    async with group(pravega) as shared:
        assert (await shared.checkpoint()).cuts == await shared.cuts() == {"a/s": {0: 0, 1: 0}}
        await shared.delete()
        with pytest.raises(NoSuchReaderGroup):
            await shared.checkpoint()


async def test_a_listener_that_raises_does_not_take_the_checkpoint_and_is_called_again(pravega: Client) -> None:
    await fill(pravega, 10, segments=1)
    called: list[GroupChange] = []

    def listener(change: GroupChange) -> None:
        called.append(change)
        if isinstance(change, CheckpointTaken) and len(called) == 2:
            raise ZeroDivisionError

    async with group(pravega) as shared, shared.reader("r", listener=listener) as reader:
        assert await reader.read() is not None
        checkpoint = asyncio.ensure_future(shared.checkpoint("c"))

        async def read_on() -> None:
            while True:
                await asyncio.sleep(0.01)
                await reader.read()

        with pytest.raises(ZeroDivisionError):
            await read_on()
        handled = dict(reader.positions)
        while not checkpoint.done():
            await asyncio.sleep(0.01)
            reading = asyncio.ensure_future(reader.read())
            await asyncio.sleep(0.01)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        assert len([each for each in called if isinstance(each, CheckpointTaken)]) == 2
        assert (await checkpoint).cuts["a/s"][0] >= next(iter(handled.values()))


async def test_a_checkpoint_that_is_cancelled_or_whose_group_is_deleted_leaves_nothing(pravega: Client) -> None:
    await fill(pravega, 10, segments=1)
    async with group(pravega) as shared, shared.reader("idle") as reader:
        asked = asyncio.ensure_future(shared.checkpoint("c"))
        await until(lambda: reader._wanted == ["c"])
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (await shared._shared.fetch()).checkpoints.waiting == {}
        assert await reader.read() is not None  # takes what is no more
        assert (await shared._shared.fetch()).checkpoints.waiting == {}
        again = asyncio.ensure_future(shared.checkpoint("d"))
        await until(lambda: "d" in reader._wanted)
        await shared.delete()
        with pytest.raises(NoSuchReaderGroup):
            await again


async def test_a_checkpoint_that_is_cancelled_while_it_begins_leaves_nothing() -> None:
    async with MockCluster() as mock, client(mock) as pravega:
        await fill(pravega, 10, segments=1)
        async with group(pravega) as shared:
            rule = mock.faults.add("type = CONDITIONAL_APPEND", nth=1, do="hold")
            asked = asyncio.ensure_future(shared.checkpoint("c"))
            await mock.faults.wait_held(rule)
            asked.cancel()
            await asyncio.sleep(0)
            mock.faults.release(rule)
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert (await shared._shared.fetch()).checkpoints.waiting == {}
