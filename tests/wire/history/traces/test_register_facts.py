"""Tables and attributes of a store that works break no rule, whatever fails."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from segstore.client import Revision, TableConfig
from segstore.client.errors import BadKeyVersion, NoSuchKey
from segstore.explore.running import MemoryRecorder
from segstore.server.cluster import MockCluster
from segstore.wire import Command
from segstore.wire.commands import (
    NO_VERSION,
    NOT_EXISTS,
    NoSuchSegment,
    ReadTable,
    RemoveTableKeys,
    TableEntries,
    TableEntriesUpdated,
    TableEntry,
    TableKey,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableKeysRemoved,
    TableValue,
    UpdateTableEntries,
    WrongHost,
)
from segstore.wire.history import Fact, Finding, Key, judge, placed
from segstore.wire.history.traces.connections import ConnectionFold
from segstore.wire.trace import Record
from tests.client.test_client import client
from tests.pipeline.planted import Scene

if TYPE_CHECKING:
    from segstore.client import KeyValueTable, RevisionedStream

pytestmark = pytest.mark.usefixtures("grpc_runs")
KEYS = (b"k1", b"k2", b"k3")


async def use(table: KeyValueTable, chance: random.Random, times: int) -> None:
    """Changes and reads keys at random, mostly on the versions that it read."""
    known: dict[bytes, Any] = {}
    for number in range(times):
        key = chance.choice(KEYS)
        version = known.get(key) if chance.random() < 0.7 else None
        try:
            match chance.randrange(6):
                case 0 | 1:
                    known[key] = await table.put(key, b"%d" % number, version=version)
                case 2:
                    known[key] = await table.put_if_absent(key, b"first %d" % number)
                case 3:
                    await table.remove(key, version=version)
                case 4 | 5:
                    entries = [entry for entry in await table.get_all(KEYS) if entry is not None]
                    known |= {entry.key.primary: entry.version for entry in entries}
        except (BadKeyVersion, NoSuchKey):
            known.pop(key, None)
    assert len([entry async for entry in table.entries()]) <= len(KEYS)


async def use_mark(stream: RevisionedStream, chance: random.Random, times: int) -> None:
    """Changes and reads the mark of a stream, which is an attribute of its segment."""
    known = None
    for _ in range(times):
        if chance.random() < 0.5:
            known = await stream.mark()
        else:
            await stream.compare_and_set_mark(known, Revision(stream.segment, chance.randrange(1000)))


async def play(seed: int, *, faulty: bool, times: int = 40) -> list[Record]:
    """Lets three tasks use a table; returns the traffic."""
    recorder, chance = MemoryRecorder(), random.Random(seed)
    async with MockCluster(stores=2) as mock, client(mock) as pravega:
        for store in mock.stores:
            store.hub.recorder = recorder
        await pravega.controller.create_scope("a")
        await pravega.controller.create_stream("a", "s")
        for _ in range(2):
            config = TableConfig(partitions=1, primary_key_bytes=2)
            assert await pravega.controller.create_table("a", "t", config)
            if faulty:
                mock.faults.seed = seed
                for what in ("UPDATE_TABLE_ENTRIES", "REMOVE_TABLE_KEYS", "READ_TABLE", "UPDATE_SEGMENT_ATTRIBUTE"):
                    do = chance.choice(("close before", "close after", "WrongHost"))
                    mock.faults.add(f"type = {what}", skip=3, probability=0.1, do=do)
            async with (
                pravega.table("a", "t") as table,
                pravega.revisioned_stream("a", "s") as stream,
                asyncio.TaskGroup() as tasks,
            ):
                for _ in range(3):
                    tasks.create_task(use(table, random.Random(chance.random()), times))
                    tasks.create_task(use_mark(stream, random.Random(chance.random()), times))
            mock.faults.clear()
            await pravega.controller.delete_table("a", "t")
    return recorder.records()


@pytest.mark.parametrize("seed", range(4))
async def test_a_table_with_random_faults_breaks_no_rule(seed: int) -> None:
    records = await play(seed, faulty=seed > 0)
    verdicts = judge(placed(records))
    assert (verdicts.broken, verdicts.unknown) == ([], {})
    assert sum(record.data[:4] == (74).to_bytes(4, "big") for record in records) > 50


def put(*keys: bytes, version: int = 7) -> UpdateTableEntries:
    entries = TableEntries(tuple(TableEntry(TableKey(key, version), TableValue(b"v")) for key in keys))
    return UpdateTableEntries(5, "t", "", entries, -1)


OUTCOMES: list[tuple[Command, Command | None, list[tuple[str, str, Any, Any]]]] = [
    (put(b"k"), TableEntriesUpdated(5, (40,)), [("6b", "ok", 7, 40)]),
    (put(b"k", b"l"), TableEntriesUpdated(5, (40, 60)), [("6b", "ok", 7, 40), ("6c", "ok", 7, 60)]),
    (put(b"k", b"k"), TableEntriesUpdated(5, (40, 60)), [("6b", "ok", 7, 60)]),
    (put(b"k"), TableKeyBadVersion(5, "t", ""), [("6b", "refused", 7, None)]),
    (put(b"k"), TableKeyDoesNotExist(5, "t", ""), [("6b", "refused", 7, NOT_EXISTS)]),
    (put(b"k", b"l"), TableKeyBadVersion(5, "t", ""), []),
    (put(b"k"), NoSuchSegment(5, "t", "", 0), []),
    (put(b"k"), WrongHost(5, "t", "", ""), [("6b", "unknown", 7, None)]),
    (put(b"k"), None, [("6b", "unknown", 7, None)]),
    (put(b"", version=NO_VERSION), TableEntriesUpdated(5, (40,)), []),
    (RemoveTableKeys(5, "t", "", (TableKey(b"k"),), -1), TableKeysRemoved(5, "t"), [("6b", "ok", None, None)]),
    (ReadTable(5, "t", "", (TableKey(b"k"),)), NoSuchSegment(5, "t", "", 0), []),
]


def test_replies_decide_the_outcomes_of_keys() -> None:
    for request, reply, expected in OUTCOMES:
        scene = Scene(1)
        scene.ask(request)
        if reply is not None:
            scene.reply(reply)
        findings: list[Finding] = []
        fold = ConnectionFold(Key("connection", "a:1"), findings)
        for place, record in placed(scene.records):
            fold.see(place, record)
        fold.end()
        values = [finding.value for finding in findings if isinstance(finding, Fact)]
        assert [(each.register, each.outcome, each.expected, each.version) for each in values] == expected, reply
