"""Nobody hears of anything before it is durable: replies wait for the group that holds what they tell of, in order."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from segstore.server.cluster import MockCluster
from segstore.server.durable import Durability, Files
from segstore.server.durable.journal import Group, JournalWriter
from segstore.wire import AppendSetup, DataAppended, Hello, SegmentCreated, SegmentRead
from tests.server.support import HELLO, Peer, append, create, read, set_up, until


class Held:
    """A journal that writes nothing until it is let."""

    gate = threading.Event()

    def __init__(self, path: Path, files: Files, _: int) -> None:
        self._journal = JournalWriter(path, files, 16 * 1024)

    @property
    def base_crc(self) -> int:
        return self._journal.base_crc

    @property
    def is_full(self) -> bool:
        return False

    def append(self, group: Group) -> None:
        Held.gate.wait(60)
        self._journal.append(group)

    def close(self) -> None:
        self._journal.close()


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals are held."""
    made = Durability.__init__

    def init(self: Durability, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self._journal_maker = Held

    monkeypatch.setattr(Durability, "__init__", init)
    Held.gate.set()


async def connected(mock: MockCluster) -> Peer:
    host, port = mock.address or ("", 0)
    return Peer(*await asyncio.open_connection(host, port))


async def silent(peer: Peer, mock: MockCluster, requests: int) -> bool:
    """Whether nothing has come although so many requests were carried out."""
    counters = mock.stores[0].service.counters
    await until(lambda: counters.requests + counters.appends >= requests)
    await asyncio.sleep(0.02)
    return not peer.reader._buffer  # type: ignore[attr-defined]


@pytest.mark.parametrize("watched", [False, True], ids=["bare", "with faults"])
async def test_an_append_and_a_read_of_it_are_answered_after_the_commit_and_in_order(
    grpc_runs: None, tmp_path: Path, watched: bool
) -> None:
    async with (
        MockCluster(data=tmp_path, watched=watched, containers=2) as mock,
        await connected(mock) as writer,
        await connected(mock) as reader,
    ):
        await writer.ask(HELLO, create(), set_up())
        await reader.ask(HELLO)
        Held.gate.clear()
        writer.send(append(1, b"one"), append(2, b"two"), HELLO)
        store = mock.stores[0].store
        await until(lambda: store.segment_info("scope/stream/0.#epoch.0").length == 6)
        reader.send(read(0))
        assert await silent(writer, mock, 3)
        assert await silent(reader, mock, 4)
        Held.gate.set()
        kinds = [type(each) for each in await writer.receive(3)]
        assert kinds == [DataAppended, DataAppended, Hello]
        (found,) = await reader.receive()
        assert isinstance(found, SegmentRead)
        assert found.data == b"onetwo"


async def test_what_was_acknowledged_to_a_peer_that_has_ended_its_side_still_reaches_it(
    grpc_runs: None, tmp_path: Path
) -> None:
    async with MockCluster(data=tmp_path, watched=False, containers=2) as mock, await connected(mock) as peer:
        await peer.ask(HELLO)
        Held.gate.clear()
        peer.send(create(), set_up(), append(1))
        peer.writer.write_eof()
        store = mock.stores[0].store
        await until(lambda: "scope/stream/0.#epoch.0" in store.container_for("scope/stream/0.#epoch.0").segments)
        Held.gate.set()
        assert [type(each) for each in await peer.receive(4)] == [SegmentCreated, AppendSetup, DataAppended]


async def test_a_peer_that_brings_more_than_the_disk_takes_is_not_read(grpc_runs: None, tmp_path: Path) -> None:
    async with (
        MockCluster(data=tmp_path, watched=False, containers=2, memory_bytes=32 << 20) as mock,
        await connected(mock) as peer,
    ):
        await peer.ask(HELLO, create(), set_up())
        Held.gate.clear()
        store, name = mock.stores[0].store, "scope/stream/0.#epoch.0"
        committer = mock.durability.committer
        sent = 0
        while not committer.full or peer.writer.transport.get_write_buffer_size() < (4 << 20):
            sent += 1
            peer.send(append(sent, bytes(1 << 20)))
            await asyncio.sleep(0)
        length = store.segment_info(name).length
        await asyncio.sleep(0.02)
        assert store.segment_info(name).length == length < sent << 20
        Held.gate.set()
        assert len(await peer.receive(sent)) == sent
        assert store.segment_info(name).length == sent << 20
