"""A durable store that is killed, again and again, at random moments under load, and what it must hold afterwards.

    python -m tests.soak.killed [--rounds 200] [--seed N]

`segstore serve --data` runs in a process of its own. Actors send to it, each about segments of its own, and keep what
was acknowledged and what is under way. Then SIGKILL comes, at times while the store is still starting, at times
SIGTERM, and the store is started again. Everything acknowledged must be there and nothing by half: a segment holds
the acknowledged bytes, then a prefix of the appends and merges that were under way, each of them whole; the writer's
last event number says the same; the source of a merge is there exactly if the target does not have its bytes; an
attribute and a table hold the acknowledged value or the one that was under way; streams and transactions of the
controller are there. `segstore verify` finds no fault between the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from uuid import UUID

from segstore.client import connect
from segstore.client.errors import ClientError
from segstore.server.durable import verify
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Command,
    CreateSegment,
    CreateTableSegment,
    DataAppended,
    DeleteSegment,
    FrameDecoder,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    Hello,
    MergeSegments,
    NoSuchSegment,
    ReadSegment,
    ReadTable,
    SegmentAttribute,
    SegmentAttributeUpdated,
    SegmentRead,
    SegmentsMerged,
    SegmentTruncated,
    SetupAppend,
    StreamSegmentInfo,
    TableEntries,
    TableEntriesUpdated,
    TableEntry,
    TableKey,
    TableRead,
    TableValue,
    TruncateSegment,
    UpdateSegmentAttribute,
    UpdateTableEntries,
    encode,
)

__all__ = ["Killing"]

PATIENCE_S = 120.0
NONE = -(1 << 63)
WRITER = UUID(int=7)
OTHER_WRITER = UUID(int=8)
ATTRIBUTE = UUID(int=99)
GONE = (OSError, ClientError)
"""How a store that was killed looks to those who talk to it."""


class Peer:
    """One connection: requests out, replies in, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._replies: list[Command] = []
        self.last_id = 0

    @classmethod
    async def open(cls, address: str) -> Peer:
        host, _, port = address.rpartition(":")
        self = cls(*await asyncio.open_connection(host, int(port)))
        try:
            await self.ask(Hello(17, 5))
        except BaseException:
            await self.close()
            raise
        return self

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def send(self, *commands: Command) -> None:
        self.writer.write(b"".join(map(encode, commands)))

    async def reply(self) -> Command:
        while not self._replies:
            data = await self.reader.read(1 << 18)
            if not data:
                raise ConnectionResetError("the store is gone")
            self._replies = list(reversed(self._decoder.feed(bytes(data))))
        return self._replies.pop()

    async def ask(self, command: Command) -> Command:
        self.send(command)
        return await self.reply()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


class Actor:
    """Writes one segment, merges others into it, truncates it, sets an attribute and puts keys into a table.

    content: bytes acknowledged, from offset `start` on. pending: appends and merges under way, in order, each as the
    bytes it adds, the number of its last event (None for a merge) and the name of its source.
    """

    def __init__(self, number: int, chance: random.Random) -> None:
        self.number = number
        self.chance = chance
        self.segment = f"kill/stream{number}/0.#epoch.0"
        self.table = f"kill/table{number}"
        self.made = self.table_made = False
        self.start = 0
        self.later_start: int | None = None
        self.content = bytearray()
        self.pending: list[tuple[bytes, int | None, str]] = []
        self.event = NONE
        self.sources = 0
        self.attribute: tuple[int, int] = (NONE, NONE)
        self.values: dict[bytes, set[bytes]] = {}
        self.appends = self.merges = 0

    async def run(self, address: str) -> None:
        """Ask for one thing after another, until the store is gone."""
        peer = await Peer.open(address)
        try:
            if not self.made:
                # Whether a creation that was under way happened is the first thing to find out.
                await peer.ask(CreateSegment(peer.next_id(), self.segment, 0, 0, "", 0))
                self.made = True
            if not self.table_made:
                await peer.ask(CreateTableSegment(peer.next_id(), self.table, False, 0, "", 0))
                self.table_made = True
            found = await peer.ask(SetupAppend(peer.next_id(), WRITER, self.segment, ""))
            expect(isinstance(found, AppendSetup), f"{found}")
            while True:
                what = self.chance.choices(
                    [self.append, self.merge, self.truncate, self.set_attribute, self.put], [60, 15, 5, 10, 10]
                )[0]
                await what(peer)
        finally:
            await peer.close()

    def _bytes(self) -> bytes:
        size = self.chance.choice([1, 20, 100, 1000, 5000, 40_000])
        return self.chance.randbytes(self.chance.randint(1, size))

    async def append(self, peer: Peer) -> None:
        parts = [self._bytes() for _ in range(self.chance.randint(1, 8))]
        event = max(self.event, 0)
        for data in parts:
            event += 1
            self.pending.append((data, event, ""))
            peer.send(AppendBlock(WRITER, data), AppendBlockEnd(WRITER, len(data), b"", 1, event, peer.next_id()))
        while self.pending:
            found = await peer.reply()
            expect(isinstance(found, DataAppended), f"{found}")
            assert isinstance(found, DataAppended)
            while self.pending and (self.pending[0][1] or 0) <= found.event_number:
                self._done()
        self.appends += len(parts)

    def _done(self) -> None:
        data, event, _ = self.pending.pop(0)
        self.content += data
        if event is not None:
            self.event = event

    async def merge(self, peer: Peer) -> None:
        """From a segment in the same container, or in whichever its name maps to."""
        self.sources += 1
        source = f"{self.segment}#transaction.{self.sources:032x}"
        if self.chance.random() < 0.5:
            source = f"kill/source{self.number}-{self.sources}/0.#epoch.0"
        await peer.ask(CreateSegment(peer.next_id(), source, 0, 0, "", 0))
        # A writer writes to the segment that it was set up for last on its connection.
        await peer.ask(SetupAppend(peer.next_id(), OTHER_WRITER, source, ""))
        data = b"".join(self._bytes() for _ in range(self.chance.randint(1, 20)))
        peer.send(AppendBlock(OTHER_WRITER, data), AppendBlockEnd(OTHER_WRITER, len(data), b"", 1, 1, peer.next_id()))
        found = await peer.reply()
        expect(isinstance(found, DataAppended), f"{found}")
        self.pending.append((data, None, source))
        found = await peer.ask(MergeSegments(peer.next_id(), self.segment, source, ""))
        expect(isinstance(found, SegmentsMerged), f"{found}")
        self._done()
        self.merges += 1

    async def truncate(self, peer: Peer) -> None:
        offset = self.start + self.chance.randint(0, len(self.content))
        self.later_start = offset
        found = await peer.ask(TruncateSegment(peer.next_id(), self.segment, offset, ""))
        expect(isinstance(found, SegmentTruncated), f"{found}")
        self._truncated(offset)

    def _truncated(self, offset: int) -> None:
        del self.content[: offset - self.start]
        self.start, self.later_start = offset, None

    async def set_attribute(self, peer: Peer) -> None:
        old = self.attribute[0]
        new = max(old, 0) + 1
        self.attribute = (old, new)
        found = await peer.ask(UpdateSegmentAttribute(peer.next_id(), self.segment, ATTRIBUTE, new, old, ""))
        expect(isinstance(found, SegmentAttributeUpdated) and found.success, f"{found}")
        self.attribute = (new, new)

    async def put(self, peer: Peer) -> None:
        keys = self.chance.sample([b"key%d" % number for number in range(30)], self.chance.randint(1, 10))
        entries = [(key, self._bytes()[:2000]) for key in keys]
        for key, value in entries:
            self.values.setdefault(key, {b""}).add(value)
        found = await peer.ask(
            UpdateTableEntries(
                peer.next_id(),
                self.table,
                "",
                TableEntries(tuple(TableEntry(TableKey(key, NONE), TableValue(value)) for key, value in entries)),
            )
        )
        expect(isinstance(found, TableEntriesUpdated), f"{found}")
        self.values.update({key: {value} for key, value in entries})

    async def check(self, peer: Peer) -> None:
        """Look at everything after a start."""
        if not self.made:
            return
        info = await peer.ask(GetStreamSegmentInfo(peer.next_id(), self.segment, ""))
        assert isinstance(info, StreamSegmentInfo), f"{info}"
        if self.later_start is not None and info.start_offset == self.later_start:
            self._truncated(self.later_start)
        self.later_start = None
        expect(info.start_offset == self.start, f"{self.segment} starts at {info.start_offset}, not {self.start}")
        held = await self._read(peer, self.segment, info.start_offset, info.write_offset)
        expect(held[: len(self.content)] == self.content, f"{self.segment}: what was acknowledged is not there")
        for data, event, source in self.pending:
            at = len(self.content)
            there = len(held) > at
            if there:
                expect(held[at : at + len(data)] == data, f"{self.segment}: at {at} a part of an append or a merge")
            if source:
                left = await peer.ask(GetStreamSegmentInfo(peer.next_id(), source, ""))
                if there:
                    expect(isinstance(left, NoSuchSegment), f"{source} was merged and is there: {left}")
                else:
                    assert isinstance(left, StreamSegmentInfo), f"{source} was not merged and is gone: {left}"
                    expect(await self._read(peer, source, 0, left.write_offset) == data, f"{source} has other bytes")
                    await peer.ask(DeleteSegment(peer.next_id(), source, ""))
            if not there:
                break
            self.content += data
            self.event = self.event if event is None else event
        self.pending.clear()
        expect(len(held) == len(self.content), f"{self.segment} holds {len(held)} bytes, not {len(self.content)}")
        if self.event != NONE:
            found = await peer.ask(GetSegmentAttribute(peer.next_id(), self.segment, WRITER, ""))
            expect(isinstance(found, SegmentAttribute) and found.value == self.event, f"{found}, not {self.event}")
        found = await peer.ask(GetSegmentAttribute(peer.next_id(), self.segment, ATTRIBUTE, ""))
        assert isinstance(found, SegmentAttribute), f"{found}"
        expect(found.value in self.attribute, f"the attribute is {found.value}, not one of {self.attribute}")
        self.attribute = (found.value, found.value)
        await self._check_table(peer)

    async def _check_table(self, peer: Peer) -> None:
        if not self.values:
            return
        keys = list(self.values)
        read = await peer.ask(ReadTable(peer.next_id(), self.table, "", tuple(TableKey(key, NONE) for key in keys)))
        assert isinstance(read, TableRead), f"{read}"
        for key, entry in zip(keys, read.entries.entries, strict=True):
            value = bytes(entry.value.data)
            expect(value in self.values[key], f"{self.table}: {key!r} has another value")
            self.values[key] = {value}

    @staticmethod
    async def _read(peer: Peer, segment: str, start: int, end: int) -> bytes:
        held = bytearray()
        while start + len(held) < end:
            at = start + len(held)
            found = await peer.ask(ReadSegment(segment, at, end - at, "", peer.next_id()))
            assert isinstance(found, SegmentRead), f"{found}"
            held += found.data
        return bytes(held)


class ControllerActor:
    """Makes streams and transactions. streams, transactions: acknowledged; the latter with whether it was committed."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.streams: list[str] = []
        self.number = 0
        self.transactions: dict[UUID, bool] = {}

    async def run(self, uri: str) -> None:
        async with connect(uri) as client:
            controller = client.controller
            await controller.create_scope("scope")
            while True:
                self.number += 1
                name = f"made{self.number}"
                await controller.create_stream("scope", name, segments=self.chance.randint(1, 4))
                self.streams.append(name)
                stream = self.chance.choice(self.streams)
                transaction, _ = await controller.create_transaction("scope", stream, 60_000)
                self.transactions[transaction] = False
                if self.chance.random() < 0.5:
                    await controller.commit_transaction("scope", stream, transaction)
                    self.transactions[transaction] = True
                    self.committed = stream

    async def check(self, uri: str) -> None:
        async with connect(uri) as client:
            if not self.streams:
                return
            found = [name async for name in client.controller.list_streams("scope")]
            lost = [name for name in self.streams if name not in found]
            expect(not lost, f"streams that were acknowledged are gone: {lost}")
            for name in self.chance.sample(self.streams, min(3, len(self.streams))):
                expect(bool(await client.controller.current_segments("scope", name)), f"{name} has no segments")


class Killing:
    """The store, its directory, and who uses it."""

    def __init__(self, folder: Path, seed: int, *, actors: int = 6, longest_s: float = 1.0) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.longest_s = longest_s
        self.actors = [Actor(number, random.Random(self.chance.random())) for number in range(actors)]
        self.controller = ControllerActor(random.Random(self.chance.random()))
        self.kills = 0

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "segstore", "serve", "--data", str(self.folder), "--memory-bytes", str(32 << 20)),
            *("--port", "0", "--controller-port", "0", "--announce", "json"),
            stdout=PIPE,
            stderr=PIPE,
        )

    async def _listening(self, process: Process) -> dict[str, str]:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        if not line:
            _, said = await process.communicate()
            raise AssertionError(f"the store did not start: {said.decode()}")
        found: dict[str, str] = json.loads(line)
        return found

    async def round(self) -> None:
        """Start, look at everything, go on, be killed."""
        if self.chance.random() < 0.15:
            process = await self._start()
            await asyncio.sleep(self.chance.uniform(0.0, 1.0))
            await self._kill(process, signal.SIGKILL)
        process = await self._start()
        try:
            where = await self._listening(process)
            peer = await Peer.open(where["segment_store"])
            try:
                for actor in self.actors:
                    await asyncio.wait_for(actor.check(peer), PATIENCE_S)
            finally:
                await peer.close()
            await asyncio.wait_for(self.controller.check(where["controller"]), PATIENCE_S)
            running = [asyncio.create_task(actor.run(where["segment_store"])) for actor in self.actors]
            running.append(asyncio.create_task(self.controller.run(where["controller"])))
            await asyncio.sleep(self.chance.uniform(0.0, self.longest_s))
            for task in running:
                if task.done():
                    task.result()
            graceful = self.chance.random() < 0.1
            await self._kill(process, signal.SIGTERM if graceful else signal.SIGKILL)
            running[-1].cancel()  # it would ask for as long as its client has patience
            for found in await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), PATIENCE_S):
                if isinstance(found, BaseException) and not isinstance(found, (*GONE, asyncio.CancelledError)):
                    raise found
        except BaseException:
            if process.returncode is None:
                await self._kill(process, signal.SIGKILL)
            raise
        found = verify(self.folder)
        expect(not found.faults, f"verify: {found.faults}")

    async def _kill(self, process: Process, number: signal.Signals) -> None:
        process.send_signal(number)
        # Its pipes are read to their end, or they are left open.
        _, said = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        if number is signal.SIGTERM:
            expect(process.returncode == 0, f"the store ended with {process.returncode}: {said.decode()}")
        self.kills += number is signal.SIGKILL


def _size(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.iterdir())


async def _rounds(folder: Path, seed: int, rounds: int) -> None:
    killing = Killing(folder, seed)
    for number in range(1, rounds + 1):
        await killing.round()
        if number % 10 == 0 or number == rounds:
            print(
                f"round {number}: {killing.kills} kills, {sum(each.appends for each in killing.actors):,} appends, "
                f"{sum(each.merges for each in killing.actors):,} merges, {len(killing.controller.streams):,} streams, "
                f"{_size(folder) >> 20} MiB in the directory",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.killed")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("KILL_ROUNDS") or 200))
    options = parser.parse_args()
    print(f"{options.rounds} rounds with seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="segstore-killed-") as folder:
        try:
            asyncio.run(_rounds(Path(folder) / "data", options.seed, options.rounds))
        except BaseException:
            print(f"failed; again with: python -m tests.soak.killed --seed {options.seed}", file=sys.stderr)
            raise
    print("nothing acknowledged was lost, nothing was there by half")
    return 0


if __name__ == "__main__":
    sys.exit(main())
