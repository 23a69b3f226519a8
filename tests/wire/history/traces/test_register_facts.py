"""Tables and attributes of a store that works break no rule, whatever fails; stores with a defect break its rule."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from segstore.client import Revision, TableConfig
from segstore.client.errors import BadKeyVersion, NoSuchKey
from segstore.explore.running import MemoryRecorder
from segstore.server.cluster import MockCluster
from segstore.server.store import BadAttribute, Container
from segstore.server.store.errors import KeyBadVersion
from segstore.server.store.tables import TableSegment
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
from segstore.wire.history import Fact, Key, judge, placed
from segstore.wire.history.traces.connections import ConnectionFold
from segstore.wire.trace import Record
from tests.client.test_client import client
from tests.pipeline.planted import Scene

if TYPE_CHECKING:
    from segstore.client import KeyValueTable, RevisionedStream

pytestmark = pytest.mark.usefixtures("grpc_runs")
Patch = Callable[[Any, str, Any], None]
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
        fold = ConnectionFold(Key("connection", "a:1"))
        findings = [finding for place, record in placed(scene.records) for finding in fold.see(place, record)]
        values = [finding.value for finding in (*findings, *fold.end()) if isinstance(finding, Fact)]
        assert [(each.register, each.outcome, each.expected, each.version) for each in values] == expected, reply


def accepts_a_wrong_version(patch: Patch) -> None:
    patch(TableSegment, "_check_conditions", lambda *_: None)


def forgets_a_version(patch: Patch) -> None:
    """Versions count anew after some updates."""
    plan = TableSegment.plan_update

    def planned(table: TableSegment, *given: Any, **more: Any) -> Any:
        write = plan(table, *given, **more)
        return write._replace(versions=[version % 200 for version in write.versions])

    patch(TableSegment, "plan_update", planned)


def loses_an_update(patch: Patch) -> None:
    appended, seen = TableSegment.appended, count()

    def most(table: TableSegment, offset: int, data: Any) -> None:
        if next(seen) % 5:
            appended(table, offset, data)

    patch(TableSegment, "appended", most)


def returns_a_stale_value(patch: Patch) -> None:
    get, seen = TableSegment.get, count()
    last: dict[bytes, Any] = {}

    def stale(table: TableSegment, keys: Any) -> Any:
        entries = get(table, keys)
        shown = [last.get(entry[0], entry) if next(seen) % 9 == 0 else entry for entry in entries]
        last.update((entry[0], entry) for entry in entries)
        return shown

    patch(TableSegment, "get", stale)


def returns_another_value(patch: Patch) -> None:
    get = TableSegment.get
    patch(
        TableSegment,
        "get",
        lambda table, keys: [(key, version, value[:-1]) for key, version, value in get(table, keys)],
    )


def refuses_the_right_version(patch: Patch) -> None:
    check, seen = TableSegment._check_conditions, count()

    def refuse(table: TableSegment, conditions: Any) -> None:
        check(table, conditions)
        if any(version >= 0 for _, version in conditions) and next(seen) % 3 == 2:
            raise KeyBadVersion(table.name)

    patch(TableSegment, "_check_conditions", refuse)


def keeps_a_removed_key(patch: Patch) -> None:
    plan = TableSegment.plan_remove

    def planned(*given: Any, **more: Any) -> Any:
        return plan(*given, **more)._replace(data=b"", forgotten=())

    patch(TableSegment, "plan_remove", planned)


def accepts_a_wrong_attribute(patch: Patch) -> None:
    update = Container.update_attribute

    def accept(container: Container, *given: Any, **more: Any) -> None:
        with suppress(BadAttribute):
            update(container, *given, **more)

    patch(Container, "update_attribute", accept)


MUTANTS: list[tuple[Callable[[Patch], None], str]] = [
    (accepts_a_wrong_version, "false-compare-and-set"),
    (forgets_a_version, "version-backwards"),
    (loses_an_update, "not-linearizable"),
    (returns_a_stale_value, "not-linearizable"),
    (returns_another_value, "not-linearizable"),
    (refuses_the_right_version, "not-linearizable"),
    (keeps_a_removed_key, "not-linearizable"),
    (accepts_a_wrong_attribute, "false-compare-and-set"),
]


@pytest.mark.parametrize(("mutant", "rule"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_defect_of_the_store_breaks_its_rule(
    monkeypatch: pytest.MonkeyPatch, mutant: Callable[[Patch], None], rule: str
) -> None:
    mutant(monkeypatch.setattr)
    verdicts = judge(placed(await play(5, faulty=False)))
    assert rule in verdicts.by_rule, verdicts
