"""A store whose memory is full: growth is refused; everything else still works and frees memory."""

import asyncio
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest

from segstore.cli.serving import machine_bytes
from segstore.server import LimitSettings, MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.server.store.chunks import CHUNK_BYTES
from segstore.server.store.errors import StoreFull
from segstore.server.store.memory import MemoryAccount
from segstore.wire import (
    AppendSetup,
    Command,
    CreateTableSegment,
    CreateTransientSegment,
    DataAppended,
    DeleteSegment,
    GetStreamSegmentInfo,
    MergeSegments,
    ReadSegment,
    ReadTable,
    RemoveTableKeys,
    SealSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentRead,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    StreamSegmentInfo,
    TableEntries,
    TableEntry,
    TableKey,
    TableKeysRemoved,
    TableRead,
    TableValue,
    TruncateSegment,
    UpdateSegmentAttribute,
    UpdateTableEntries,
)
from tests.looped import looped
from tests.server.support import HELLO, SEGMENT, WRITER, Peer, append, create, set_up

MIB = 1024 * 1024
LIMIT = 8 * MIB
LIMITS = LimitSettings(max_memory_bytes=LIMIT)
OTHER = "scope/other/0.#epoch.0"
TABLE = "scope/table"


def appends() -> Iterator[Command]:
    for number in count():
        yield append(number, bytes(64 * 1024))


def names() -> Iterator[Command]:
    for number in count():
        yield create(f"scope/filling/{number}.#epoch.0")


def attributes() -> Iterator[Command]:
    for number in count(1):
        yield UpdateSegmentAttribute(5, SEGMENT, UUID(int=number << 64 | 1), 1, -(2**63), "")


def entries() -> Iterator[Command]:
    for number in count():
        some = [(b"%d %d" % (number, each), b"v" * 100) for each in range(50)]
        yield UpdateTableEntries(5, TABLE, "", table_entries(some), -1)


def updates_of_one_key() -> Iterator[Command]:
    for _ in count():
        yield UpdateTableEntries(5, TABLE, "", table_entries([(b"key", bytes(100_000))]), -1)


def table_entries(some: list[tuple[bytes, bytes]]) -> TableEntries:
    return TableEntries(tuple(TableEntry(TableKey(key, -(2**63)), TableValue(value)) for key, value in some))


FILLING: dict[Callable[[], Iterator[Command]], tuple[int, int]] = {
    appends: (LIMIT, 20),
    names: (MIB, 200),
    attributes: (MIB, 500),
    entries: (2 * MIB, 20),
}
"""Requests that fill a store, a low limit, and the number of requests to send together."""


async def filled(store: MockSegmentStore, filling: Callable[[], Iterator[Command]], together: int) -> int:
    """Sends requests until the store refuses one; returns their number."""
    taken, requests = 0, filling()
    async with await Peer.connect(store) as peer:
        await peer.ask(HELLO, create(), create(OTHER, 2), CreateTableSegment(3, TABLE, False, 0, "", 0), set_up())
        while True:
            some = [next(requests) for _ in range(together)]
            try:
                replies = await peer.ask(*some)
            except ConnectionError:  # closed while requests were sent; some replies were lost
                return taken
            taken += len(replies)
            if len(replies) < together:
                return taken
            assert taken < 200_000


@pytest.mark.parametrize(("filling", "watched"), [(names, True), *((filling, False) for filling in FILLING)])
async def test_a_full_store_refuses_growth_and_serves_everything_else(
    filling: Callable[[], Iterator[Command]], watched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    limit, together = FILLING[filling]
    async with MockSegmentStore(limits=LimitSettings(max_memory_bytes=limit), watched=watched) as store:
        memory = store.store.pool.memory
        assert await filled(store, filling, together) > 20
        assert "the store is full" in caplog.text
        assert "unexpected error" not in caplog.text
        assert memory.used <= limit + CHUNK_BYTES

        for request in (
            create("scope/one/more.#epoch.0"),
            CreateTransientSegment(5, WRITER, SEGMENT, ""),
            CreateTableSegment(5, "scope/another/table", False, 0, "", 0),
            UpdateSegmentAttribute(5, SEGMENT, UUID(int=1), 1, -(2**63), ""),
            UpdateTableEntries(5, TABLE, "", table_entries([(bytes(8000), bytes(900_000))]), -1),
            set_up(SEGMENT, UUID(int=99)),
        ):
            memory.limit = memory.used  # there may be room left for a smaller request
            async with await Peer.connect(store) as peer:
                assert len(await peer.ask(HELLO, request)) == 1  # the Hello, then the connection is closed

        async with await Peer.connect(store) as peer:
            replies = await peer.ask(
                HELLO,
                GetStreamSegmentInfo(5, SEGMENT, ""),
                ReadTable(5, TABLE, "", (TableKey(b"0 0", -1),)),
                RemoveTableKeys(5, TABLE, "", (TableKey(b"0 0", -(2**63)),), -1),
                MergeSegments(5, SEGMENT, OTHER, ""),
                SealSegment(5, SEGMENT, ""),
            )
            assert [type(each) for each in replies[1:]] == [
                StreamSegmentInfo,
                TableRead,
                TableKeysRemoved,
                SegmentsMerged,
                SegmentSealed,
            ]
            info = replies[1]
            assert isinstance(info, StreamSegmentInfo)
            if info.write_offset:
                assert isinstance((await peer.ask(ReadSegment(SEGMENT, 0, 100, "", 5)))[0], SegmentRead)
            replies = await peer.ask(TruncateSegment(5, SEGMENT, info.write_offset, ""))
            assert [type(reply) for reply in replies] == [SegmentTruncated]
            for container in list(store.store.containers.values()):
                for name in [segment for segment in container.segments if not segment.endswith("#index")]:
                    assert [type(each) for each in await peer.ask(DeleteSegment(5, name, ""))] == [SegmentDeleted]
        memory.limit = limit
        assert memory.used < limit
        async with await Peer.connect(store) as peer:
            replies = await peer.ask(HELLO, create(OTHER + "1"), set_up(OTHER + "1"), append(1, bytes(20_000)))
            assert [type(each) for each in replies[1:]] == [SegmentCreated, AppendSetup, DataAppended]


@looped("filling", [appends, updates_of_one_key])
async def test_memory_freed_by_truncation_is_used_again(filling: Callable[[], Iterator[Command]]) -> None:
    async with MockSegmentStore(limits=LIMITS, watched=False) as store:
        assert await filled(store, filling, together=1) > 20
        name = SEGMENT if filling is appends else TABLE
        async with await Peer.connect(store) as peer:
            info = store.store.segment_info(name)
            await peer.ask(HELLO, TruncateSegment(5, name, info.length, ""))
            assert isinstance((await peer.ask(set_up()))[0], AppendSetup)
        assert store.store.pool.memory.used < MIB


async def test_appends_up_to_the_limit_are_acknowledged_and_none_beyond_is_stored() -> None:
    for together in (1, 7, 200):  # alone, together, more than there is room for
        async with MockSegmentStore(limits=LIMITS, watched=False) as store:
            acknowledged = await filled(store, appends, together)
            stored = store.segments[SEGMENT].length // (64 * 1024)
            assert acknowledged <= stored <= acknowledged + together
            async with await Peer.connect(store) as peer:
                store.store.pool.memory.limit = None
                last = (await peer.ask(HELLO, set_up()))[1]
                assert isinstance(last, AppendSetup)
                assert last.last_event_number == stored - 1


async def test_the_stores_of_a_process_share_the_limit(grpc_runs: None) -> None:
    async with MockCluster(stores=3, limits=LIMITS) as mock:
        first, *others = mock.stores
        assert all(each.store.pool is first.store.pool for each in others)
        await mock.move(container=1, to=0)
        names = [f"scope/stream/{number}.#epoch.0" for number in range(30)]
        for name in names:
            next(store for store in mock.stores if store.store.owns(name)).store.create_segment(name, now_ms=1)
        used = first.store.pool.memory.used
        assert used > 60 * 1000
        await mock.stop_store(0)
        assert first.store.pool.memory.used == used


async def test_with_a_data_directory_only_the_rest_counts_as_memory(grpc_runs: None, tmp_path: Path) -> None:
    limit, together = FILLING[entries]
    limits = LimitSettings(max_memory_bytes=limit)
    async with MockCluster(data=tmp_path, limits=limits) as mock:
        memory = mock.stores[0].store.pool.memory
        host, port = mock.address or ("", 0)
        async with Peer(*await asyncio.open_connection(host, port)) as peer:
            await peer.ask(HELLO, create(), CreateTableSegment(3, TABLE, False, 0, "", 0), set_up())
            before = memory.used
            replies = await peer.ask(*(append(number, bytes(MIB)) for number in range(1, 21)))
            assert len(replies) == 20
            assert memory.used == before
            requests = entries()
            while len(await peer.ask(*(next(requests) for _ in range(together)))) == together:
                assert memory.used <= limit
        used = memory.used
    async with MockCluster(data=tmp_path, limits=limits) as mock:
        memory = mock.stores[0].store.pool.memory
        writers = 2000
        assert abs(memory.used - used) < writers
        memory.limit = memory.used
        host, port = mock.address or ("", 0)
        async with Peer(*await asyncio.open_connection(host, port)) as peer:
            replies = await peer.ask(HELLO, ReadSegment(SEGMENT, 0, 100, "", 5), DeleteSegment(5, SEGMENT, ""))
            assert [type(reply) for reply in replies[1:]] == [SegmentRead, SegmentDeleted]
            assert isinstance((await peer.ask(create(OTHER)))[0], SegmentCreated)


def physical() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("line", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "5000000"}, 5_000_000),
        ("0::/a\n", {"a/memory.max": "5000000", "memory.max": "4000000"}, 4_000_000),
        ("4:cpu,memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "3000000"}, 3_000_000),
        ("4:memory:/elsewhere\n", {"memory/memory.limit_in_bytes": "3000000"}, 3_000_000),
        ("4:cpu:/a\n", {"memory/a/memory.limit_in_bytes": "3000000"}, None),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("", {}, None),
    ],
)
def test_a_control_groups_limit_counts_where_it_is_below_the_machines_memory(
    tmp_path: Path, line: str, limits: dict[str, str], expected: int | None
) -> None:
    for name, value in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(value + "\n")
    (tmp_path / "own").write_text(line)
    assert machine_bytes(tmp_path, tmp_path / "own") == (physical() if expected is None else expected)
    assert machine_bytes(tmp_path, tmp_path / "missing") == physical()


def test_an_account_takes_up_to_its_limit_and_an_eighth_more_for_what_frees_memory() -> None:
    account = MemoryAccount(80)
    account.charge(60)
    account.check()
    account.check(20)
    account.check(30, frees=True)
    for size, frees in ((21, False), (31, True)):
        with pytest.raises(StoreFull) as full:
            account.check(size, frees=frees)
        assert (full.value.used, full.value.limit) == (60, 80)
    account.charge(20)
    account.check()
    account.charge(1)
    with pytest.raises(StoreFull):
        account.check()
    account.charge(-11)
    assert account.used == 70
    account.check(10)
    unlimited = MemoryAccount()
    unlimited.charge(1 << 60)
    unlimited.check(1 << 60)


def test_an_account_that_has_joined_another_counts_there_until_it_leaves() -> None:
    whole, part = MemoryAccount(100), MemoryAccount(10)
    whole.charge(30)
    part.charge(50)
    part.join(whole)
    assert (whole.used, part.used) == (80, 50)
    part.charge(5)
    assert (whole.used, part.used) == (85, 55)
    part.check(15)
    with pytest.raises(StoreFull) as full:
        part.check(16)
    assert (full.value.used, full.value.limit) == (85, 100)
    part.leave()
    part.leave()
    assert (whole.used, part.used) == (30, 55)
    with pytest.raises(StoreFull):
        part.check()
