"""Containers in a folder that several stores share: an opening fences the older ones, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from segstore.server.cluster.leader import ControllerLeader, Leading
from segstore.server.coordination import (
    ContainerOwnership,
    ContainerRefused,
    CoordinationError,
    Disconnected,
    InProcessCoordinator,
    InProcessSession,
    OwnershipSettings,
    container_path,
)
from segstore.server.durable import (
    MIN_MEMORY_BYTES,
    DataDirectory,
    DirectoryDamaged,
    DirectoryForeign,
    DirectoryUnusable,
    Durability,
    Epoch,
    Fenced,
    FencedDirectory,
    JournalFailed,
    epochs_of,
)
from segstore.server.durable.committer import Committer
from segstore.server.shared_folder import FolderStorage, SharedFolder, identify, verify_cluster
from segstore.server.shared_folder.identity import CLUSTER
from segstore.server.shared_folder.leader import CONTROLLER
from segstore.server.store import Container, SegmentStore
from segstore.wire.names import container_of
from tests.server.durable.support import everything, write
from tests.server.support import PATIENCE_S

CONTAINERS = 2


class Holder:
    """One that holds an answer back."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.why = ""

    def release(self, committed: int) -> int:
        self.released.append(committed)
        return 0

    def go_on(self) -> None:
        raise AssertionError("nothing is full")

    def failed(self, why: str) -> None:
        self.why = why


class Member:
    """A store and its view of the shared folder."""

    def __init__(self, path: Path, cluster: str = "ours", *, made: bool = True) -> None:
        self.store = SegmentStore(CONTAINERS, [])
        self.lost: list[int] = []
        self.failures: list[str] = []
        folder = SharedFolder(path, cluster, CONTAINERS)
        if made:
            folder.make()
        self.storage = FolderStorage(
            folder,
            lambda number, durability: Container(
                number, pool=durability.pool, journal=durability.journal(number), waiters=self.store.waiters
            ),
            MIN_MEMORY_BYTES * CONTAINERS,
        )
        self.storage.on_lost = self.lost.append
        self.storage.on_failure = self.failures.append

    async def open(self, number: int = 0) -> int:
        def fenced() -> Container | None:
            return self.store.release(number)

        epoch, container = await self.storage.open(number, fenced)
        assert container is not None
        self.store.own(number, container)
        return epoch

    async def open_all(self) -> None:
        for number in range(CONTAINERS):
            await self.open(number)

    async def settled(self) -> None:
        """What was carried out until now is durable, or its answers are dropped; nothing is done any more.

        An opening has its next journal made in a thread, which looks whether it is still the owner: one that was not
        waited for may hear of its fence by that, before the test has it write.
        """
        gate, mark = self.storage.gate, self.storage.gate.mark
        await until(lambda: gate.committed >= mark and all(each.has_next for each in self.committers()))

    def committers(self) -> list[Committer]:
        """Of all that is open."""
        return [each.durability.committer for each in self.storage._open.values()]

    def hold(self) -> Holder:
        """An answer that is made now, behind a change that is not durable yet."""
        holder = Holder()
        assert self.storage.gate.mark > self.storage.gate.committed
        self.storage.gate.hold(holder, self.storage.gate.mark)
        return holder


@contextlib.asynccontextmanager
async def members(path: Path, count: int = 2) -> AsyncIterator[list[Member]]:
    made = [Member(path) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            await each.storage.aclose()


def in_container(number: int) -> str:
    """A segment of a container."""
    names = (f"scope/stream{each}/0.#epoch.0" for each in range(99))
    return next(name for name in names if container_of(name, CONTAINERS) == number)


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  what is looked at has no event
            await asyncio.sleep(0.002)


# --- epochs -------------------------------------------------------------------------------------------------------


def test_a_claim_ends_the_epochs_before_it(tmp_path: Path) -> None:
    first = Epoch.claim(tmp_path)
    first.check()
    second = Epoch.claim(tmp_path)
    assert (first.number, second.number) == (1, 2)
    second.check()
    with pytest.raises(Fenced, match=r"was opened by another store; epoch 1 has ended"):
        first.check()


def test_an_epoch_is_over_also_when_later_folders_have_come_and_gone(tmp_path: Path) -> None:
    epochs = [Epoch.claim(tmp_path) for _ in range(4)]
    epochs[3].remove_older()
    assert epochs_of(tmp_path) == [4]
    assert [each.is_over for each in epochs] == [True, True, True, False]


# --- taking over --------------------------------------------------------------------------------------------------


async def test_what_one_store_had_committed_the_next_one_has(tmp_path: Path) -> None:
    async with members(tmp_path) as (old, new):
        await old.open_all()
        for number in range(20):
            old.store.create_segment(f"scope/s{number}/0.#epoch.0", now_ms=1)
            write(old.store, f"scope/s{number}/0.#epoch.0", b"%d" % number * 100)
        await old.settled()
        before = everything(old.store, with_index=False)
        await new.open_all()
        assert everything(new.store, with_index=False) == before


async def test_the_older_owner_is_fenced_by_its_next_change_and_its_answer_never_leaves(tmp_path: Path) -> None:
    async with members(tmp_path) as (old, new):
        await old.open()
        name = in_container(0)
        old.store.create_segment(name, now_ms=1)
        await old.settled()
        Epoch.claim(tmp_path / "containers" / "0")
        write(old.store, name, b"too late")
        holder = old.hold()
        await until(lambda: old.lost == [0])
        assert "opened by another store" in holder.why
        assert not holder.released
        assert not old.store.owns(name)
        assert not old.failures
        assert await new.open() == 3
        write(new.store, name, b"in time")
        await new.settled()


async def test_what_the_older_owner_still_wrote_into_its_journal_is_nothing_to_those_after(tmp_path: Path) -> None:
    async with members(tmp_path, 3) as (old, new, last):
        await old.open()
        name = in_container(0)
        old.store.create_segment(name, now_ms=1)
        await old.settled()
        await new.open()
        write(old.store, name, b"too late")  # it is in the journal that both directories have
        await until(lambda: old.lost == [0])
        write(new.store, name, b"mine")
        await new.settled()
        before = everything(new.store)
        await last.open()
        assert everything(last.store) == before


@pytest.mark.seed("57.7")
async def test_an_older_owner_that_changes_nothing_is_fenced_before_it_answers(tmp_path: Path) -> None:
    async with members(tmp_path) as (old, new):
        await old.open_all()
        old.store.create_segment(in_container(0), now_ms=1)
        await old.settled()
        old.storage.fence()
        assert old.store.owns(in_container(0))
        await new.open(0)  # not served before that look is good no more
        old.storage.fence()
        assert old.lost == [0]
        assert not old.store.owns(in_container(0))
        assert old.store.owns(in_container(1))
        assert not old.failures


async def test_an_answer_of_another_container_leaves_though_one_is_lost(tmp_path: Path) -> None:
    async with members(tmp_path, 1) as (old,):
        await old.open_all()
        await old.settled()
        Epoch.claim(tmp_path / "containers" / "0")
        old.store.create_segment(in_container(0), now_ms=1)
        await until(lambda: old.lost == [0])
        old.store.create_segment(in_container(1), now_ms=1)
        holder = old.hold()
        await old.settled()
        assert holder.released
        assert not holder.why


async def test_verify_names_the_folders_of_containers_that_were_exchanged(tmp_path: Path) -> None:
    session = await InProcessCoordinator().connect()
    member = Member(tmp_path, (await identify(session, "here", tmp_path, CONTAINERS)).cluster)
    await member.open_all()
    write_some(member)
    await member.settled()
    await member.storage.aclose()
    assert verify_cluster(tmp_path).faults == []
    folders = [tmp_path / "containers" / str(each) for each in range(CONTAINERS)]
    for before, after in ((folders[0], tmp_path / "kept"), (folders[1], folders[0]), (tmp_path / "kept", folders[1])):
        before.rename(after)
    assert verify_cluster(tmp_path).faults == [
        f"{folder}/epoch-0000000001 holds containers ({1 - each},), but this cluster has ({each},) there"
        for each, folder in enumerate(folders)
    ]


async def test_an_opening_that_was_broken_off_is_passed_over(tmp_path: Path) -> None:
    async with members(tmp_path) as (old, new):
        await old.open_all()
        write_some(old)
        await old.settled()
        before = everything(old.store)
        for number in range(CONTAINERS):  # one that claimed and was killed, one that had begun to take files over
            Epoch.claim(tmp_path / "containers" / str(number))
            half = Epoch.claim(tmp_path / "containers" / str(number))
            (half.path / "journal-0000000001.sqlite").write_bytes(b"")
        await new.open_all()
        assert everything(new.store) == before


async def test_a_directory_is_taken_over_after_a_snapshot_and_what_it_left_is_removed(tmp_path: Path) -> None:
    async with members(tmp_path) as (old, new):
        await old.open_all()
        write_some(old, 200_000)
        await old.settled()
        for each in old.storage._open.values():
            await each.durability.checkpoint()
        write_some(old, 10)
        await old.settled()
        before = everything(old.store)
        await new.open_all()
        assert everything(new.store) == before
        assert [epochs_of(tmp_path / "containers" / str(number)) for number in range(CONTAINERS)] == [[2], [2]]


async def test_a_snapshot_of_the_older_owner_changes_nothing_for_the_new_one(tmp_path: Path) -> None:
    async with members(tmp_path, 3) as (old, new, last):
        await old.open_all()
        write_some(old, 100_000)
        await old.settled()
        durabilities = [each.durability for each in old.storage._open.values()]
        await new.open_all()
        write_some(new, 5)
        await new.settled()
        for each in durabilities:
            with pytest.raises(JournalFailed):
                await each.checkpoint()
        await until(lambda: sorted(old.lost) == [0, 1])
        before = everything(new.store)
        await last.open_all()
        assert everything(last.store) == before


async def test_a_store_that_gives_a_container_back_writes_all_before(tmp_path: Path) -> None:
    async with members(tmp_path) as (old, new):
        epoch = await old.open()
        write_some(old)
        holder = old.hold()
        before = everything(old.store)
        old.storage.close(0, epoch, old.store.release(0))
        await until(lambda: not old.storage._ending)
        assert holder.released
        await new.open()
        assert everything(new.store, with_index=False) == {
            name: each for name, each in before.items() if not name.endswith("#index")
        }


async def test_the_same_store_may_open_again(tmp_path: Path) -> None:
    async with members(tmp_path, 1) as (only,):
        before = await given_back(only)
        assert await only.open() == 2
        assert everything(only.store, with_index=False) == before
        assert await only.storage.epoch(0) == 2


async def test_an_opening_that_another_one_overtakes_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members(tmp_path) as (slow, fast):
        inner = slow.storage._make

        def overtaken(number: int, durability: Any) -> Container:
            Epoch.claim(tmp_path / "containers" / str(number))
            return inner(number, durability)

        monkeypatch.setattr(slow.storage, "_make", overtaken)
        with pytest.raises(Disconnected, match="was opened by another store"):
            await slow.open()
        assert await fast.open() == 3


async def test_what_a_cancelled_opening_opens_is_given_up_and_the_next_one_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members(tmp_path, 1) as (only,):
        before = await given_back(only)
        inner, begun, go_on = only.storage._make, threading.Event(), threading.Event()
        made: list[Durability] = []

        def slow(number: int, durability: Any) -> Container:
            made.append(durability)
            begun.set()
            assert go_on.wait(PATIENCE_S)
            return inner(number, durability)

        monkeypatch.setattr(only.storage, "_make", slow)
        try:
            first = asyncio.create_task(only.open())
            await until(begun.is_set)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            second = asyncio.create_task(only.open())
            await asyncio.sleep(0.01)
            assert len(made) == 1
        finally:
            go_on.set()
        assert await second == 3
        assert len(made) == 2
        assert made[0].directory._lock == -1
        assert everything(only.store, with_index=False) == before


@pytest.mark.parametrize("part", ["calls", "segments", "durability"])
async def test_a_resignation_that_is_cancelled_lets_go_of_all_and_nobody_waits_for_it(part: str) -> None:
    did: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name
            self.committer = self

        async def aclose(self) -> None:
            did.append(self.name)
            if self.name == part:
                raise asyncio.CancelledError

        close = aclose

        def fail(self, why: str, _: int) -> None:
            did.append(why)

    nothing: Any = SimpleNamespace(withdraw=lambda: did.append("withdrawn"))
    leader = ControllerLeader(nothing, nothing, nothing, nothing, nothing, list, {}, on_failure=print, on_lost=print)
    parts: Any = {each: Part(each) for each in ("epoch", "durability", "controller", "calls", "segments")}
    leader.leading = Leading(**parts)
    with pytest.raises(asyncio.CancelledError):
        await leader.resign()
    assert did == ["withdrawn", "calls", "segments", "durability", "another process leads the controller now"]
    assert leader.leading is None


async def test_an_opening_that_was_fenced_and_then_cancelled_is_cancelled() -> None:
    async def opened(_: int, fenced: Callable[[], Container | None]) -> None:
        fenced()
        raise asyncio.CancelledError

    nothing: Any = SimpleNamespace(open=opened)
    ownership = ContainerOwnership("a", nothing, nothing, nothing, 1, OwnershipSettings())
    with pytest.raises(asyncio.CancelledError):
        await ownership._open(0)


async def test_a_controllers_opening_that_is_cancelled_is_given_up_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SharedFolder(tmp_path, "ours", CONTAINERS)
    folder.make()
    nothing: Any = SimpleNamespace()
    leader = ControllerLeader(nothing, folder, nothing, nothing, nothing, list, {}, on_failure=print, on_lost=print)
    inner, begun, go_on = leader._open, threading.Event(), threading.Event()

    def slow() -> tuple[Epoch, Durability]:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return inner()

    monkeypatch.setattr(leader, "_open", slow)
    try:
        leading = asyncio.create_task(leader.lead())
        await until(begun.is_set)
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
    finally:
        go_on.set()
    await leader.resign()
    assert epochs_of(folder.controller) == [1]
    assert not list((folder.controller / "epoch-0000000001").iterdir())


async def test_a_disk_that_cannot_be_looked_at_is_no_other_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Path) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    epoch = Epoch.claim(tmp_path)
    directory = FencedDirectory.adopt(epoch, containers=1, held=(0,), cluster="ours")
    with monkeypatch.context() as broken:
        broken.setattr(Path, "exists", fails)
        assert [epoch.is_known_over, directory.is_over] == [False, False]
        with pytest.raises(OSError, match="Input/output"):
            epoch.check()
    Epoch.claim(tmp_path)
    assert [epoch.is_known_over, directory.is_over] == [True, True]
    directory.close()


# --- what is refused ----------------------------------------------------------------------------------------------


async def test_a_folder_of_another_cluster_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    async with members(tmp_path, 1) as (only,):
        await only.open()
        write_some(only)
    other = Member(tmp_path, "theirs")
    with pytest.raises(ContainerRefused, match="belongs to cluster ours, but this cluster has theirs there"):
        await other.open()
    await other.storage.aclose()
    async with members(tmp_path, 1) as (again,):
        await again.open()
        assert again.store.containers[0].segments


async def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with members(tmp_path, 1) as (only,):

        def claim(_: Path) -> Epoch:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(Epoch, "claim", claim)
        with pytest.raises(DirectoryUnusable, match="containers/0 cannot be used as a data directory: Read-only"):
            await only.open()


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    async with members(tmp_path, 2) as (only, other):
        await only.open()
        write_some(only)
        await only.settled()
        before = everything(only.store)
        folder = tmp_path / "containers" / "0"
        gone = next(folder.glob("*/journal*wal"))
        shutil.copy(gone, tmp_path / "kept")
        gone.unlink()
        with pytest.raises(
            ContainerRefused,
            match=r"container 0 cannot be opened: .*/containers/0/epoch-0000000001/journal-0000000001.sqlite-wal is "
            r"damaged: it is missing; restore .*/containers/0 from a copy, `segstore verify .*` says what else is",
        ):
            await other.open()
        assert not other.failures
        assert "it is missing" in await other.storage.refused(0)
        assert await other.storage.refused(1) == ""
        assert not list((folder / "epoch-0000000002").iterdir())
        shutil.copy(tmp_path / "kept", gone)
        assert await other.storage.refused(0) == ""
        assert await other.open() == 3
        assert everything(other.store) == before


async def test_a_damaged_byte_is_named_where_the_last_owner_wrote_it(tmp_path: Path) -> None:
    async with members(tmp_path, 1) as (only,):
        await only.open()
        write_some(only)
    snapshot = next((tmp_path / "containers" / "0" / "epoch-0000000001").glob("snapshot-*"))
    data = bytearray(snapshot.read_bytes())
    data[len(data) // 2] ^= 1
    snapshot.write_bytes(data)
    async with members(tmp_path, 1) as (again,):
        for epoch in (2, 3):
            with pytest.raises(ContainerRefused, match=r"containers/0/epoch-0000000001/snapshot-\d+ is damaged"):
                await again.open()
            assert not list((tmp_path / "containers" / "0" / f"epoch-{epoch:010}").iterdir())
        data[len(data) // 2] ^= 1
        snapshot.write_bytes(data)
        assert await again.open() == 4


@pytest.mark.parametrize("what", ["folder", "manifest", "all that was in it"])
async def test_a_container_that_was_taken_away_is_not_taken_for_a_new_one(tmp_path: Path, what: str) -> None:
    for size in (100, 200):
        async with members(tmp_path, 1) as (only,):
            await only.open()
            write_some(only, size)
            shutil.rmtree(tmp_path / "containers" / "1")
            with pytest.raises(ContainerRefused, match=r"containers/1 is damaged: it is missing"):
                await only.open(1)
    folder = tmp_path / "containers" / "0"
    epoch = folder / "epoch-0000000002"
    if what == "folder":
        shutil.rmtree(folder)
        missing = folder
    else:
        missing = epoch / "MANIFEST"
        for each in tuple(epoch.iterdir()):
            if what != "manifest" or each == missing:
                each.unlink()
    other = Member(tmp_path, made=False)
    with pytest.raises(ContainerRefused, match=f"{missing} is damaged: it is missing"):
        await other.open()
    with pytest.raises(ContainerRefused, match="is missing"):
        await other.open()
    await other.storage.aclose()


async def test_stores_that_refuse_a_container_without_a_manifest_do_not_make_each_other_try_again(
    tmp_path: Path,
) -> None:
    async with members(tmp_path, 1) as (only,):
        await only.open()
        write_some(only)
    folder = tmp_path / "containers" / "0"
    manifest = folder / "epoch-0000000001" / "MANIFEST"
    manifest.rename(tmp_path / "kept")
    async with members(tmp_path, 2) as both:
        for each in both:
            with pytest.raises(ContainerRefused, match="MANIFEST is damaged: it is missing"):
                await each.open()
        tried = epochs_of(folder)
        assert tried == [1, 2, 3]
        for each in both:
            assert "it is missing" in await each.storage.refused(0)
        (tmp_path / "kept").rename(manifest)
        for each in both:
            assert await each.storage.refused(0) == ""
        assert await both[0].open() == 4
        assert both[0].store.containers[0].segments


def test_a_cluster_folder_is_no_data_directory_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "CLUSTER").write_text("{}")
    with pytest.raises(DirectoryForeign, match="is that of a cluster of processes; start it with --zookeeper"):
        DataDirectory.open(tmp_path, containers=1, held=(0,))


def test_memory_is_for_all_containers_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="memory_bytes must be at least 67108864 for 2 containers, not 40000000"):
        FolderStorage(SharedFolder(tmp_path, "ours", 2), lambda *_: Container(), 40_000_000)


def write_some(member: Member, size: int = 100) -> None:
    """A segment or two in each container that is owned."""
    for number in range(8):
        name = f"scope/some{number}-{size}/0.#epoch.0"
        if member.store.owns(name):
            member.store.create_segment(name, now_ms=1)
            write(member.store, name, bytes([number]) * size)


async def given_back(member: Member) -> dict[str, Any]:
    """What it had of its only container, which it opened, wrote to and released."""
    await member.open()
    write_some(member)
    await member.settled()
    before = everything(member.store, with_index=False)
    member.store.release(0)
    return before


# --- whose folder it is -------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def coordination() -> AsyncIterator[InProcessSession]:
    coordinator = InProcessCoordinator()
    session = await coordinator.connect()
    try:
        yield session
    finally:
        await session.aclose()
        coordinator.close()


async def test_the_first_process_says_whose_the_folder_is_and_the_others_read_it(tmp_path: Path) -> None:
    async with coordination() as session:
        first, second = await asyncio.gather(*[identify(session, "zk", tmp_path / "new", 4) for _ in range(2)])
        assert first == second
        assert await identify(session, "zk", tmp_path / "new", 4) == first
        assert sorted(each.name for each in (tmp_path / "new").iterdir()) == ["CLUSTER", "containers", "controller"]
        (tmp_path / "new" / "CLUSTER").rename(tmp_path / "kept")  # as one that was killed leaves it
    async with coordination() as session:
        assert await identify(session, "zk", tmp_path / "new", 4) != first
        (tmp_path / "kept").replace(tmp_path / "new" / "CLUSTER")
    async with coordination() as empty:  # a coordination service that knows nothing is told
        assert await identify(empty, "zk", tmp_path / "new", 4) == first


async def test_a_folder_that_is_not_the_clusters_is_refused_in_one_sentence(tmp_path: Path) -> None:
    async with coordination() as ours, coordination() as theirs, coordination() as fresh:
        data = tmp_path / "data"
        cluster = (await identify(ours, "zk", data, 4)).cluster
        other = (await identify(theirs, "zk2", tmp_path / "other", 4)).cluster
        with pytest.raises(DirectoryForeign, match="a cluster of 4 containers, and this one has 5; start it with --co"):
            await identify(ours, "zk", data, 5)
        with pytest.raises(DirectoryForeign, match=f"to cluster {cluster}, and ZooKeeper at zk2 knows.*{other}"):
            await identify(theirs, "zk2", data, 4)
        with pytest.raises(DirectoryForeign, match=f"holds nothing of cluster {cluster}, which ZooKeeper at zk knows"):
            await identify(ours, "zk", tmp_path / "empty", 4)
        assert not (tmp_path / "empty").exists()
        (tmp_path / "strange").mkdir()
        (tmp_path / "strange" / "letter.txt").write_text("dear all")
        with pytest.raises(DirectoryForeign, match=r"is not a cluster's, it holds 'letter.txt'"):
            await identify(fresh, "zk", tmp_path / "strange", 4)
        (tmp_path / "alone").mkdir()
        (tmp_path / "alone" / "MANIFEST").write_text("of one process")
        with pytest.raises(DirectoryForeign, match="is that of one process; start it without --zookeeper"):
            await identify(fresh, "zk", tmp_path / "alone", 4)
        (data / "CLUSTER").write_bytes((data / "CLUSTER").read_bytes().replace(b"4", b"3"))
        with pytest.raises(DirectoryDamaged, match="CLUSTER is damaged: it does not have its checksum"):
            await identify(ours, "zk", data, 4)


async def test_a_node_that_is_not_a_clusters_is_named(tmp_path: Path) -> None:
    async with coordination() as session:
        await session.create(CLUSTER, b"mine")
        with pytest.raises(CoordinationError, match="node /segstore/cluster of ZooKeeper at zk is not a cluster's"):
            await identify(session, "zk", tmp_path / "new", 4)
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("node", [container_path(3), CONTROLLER])
async def test_a_node_that_no_session_holds_is_named_before_anything_is_made(tmp_path: Path, node: str) -> None:
    async with coordination() as session:
        await session.create(container_path(0), b"a store's", ephemeral=True)
        await session.create(node, b"mine")
        said = f"node {node} of ZooKeeper at zk belongs to no session and holds b'mine'; delete it, or use another name"
        with pytest.raises(CoordinationError, match=re.escape(said)):
            await identify(session, "zk", tmp_path / "new", 4)
        assert not (tmp_path / "new").exists()
        await session.delete(node)
        await identify(session, "zk", tmp_path / "new", 4)


@pytest.mark.seed("57.7")
async def test_without_the_fence_an_older_owner_would_acknowledge_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Epoch, "check", lambda _: None)
    async with members(tmp_path) as (old, new):
        await old.open()
        name = in_container(0)
        old.store.create_segment(name, now_ms=1)
        await old.settled()
        await new.open()
        write(old.store, name, b"too late")
        holder = old.hold()
        await until(lambda: holder.released)
        assert new.store.segment_info(name).length == 0
