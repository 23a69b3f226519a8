"""Containers in a folder that several stores share: an opening fences the older ones, and nothing is lost."""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from segstore.server.coordination import ContainerRefused, Disconnected, InProcessCoordinator
from segstore.server.durable import (
    ContainerEpoch,
    DataDirectory,
    DirectoryForeign,
    Durability,
    JournalFailed,
    epochs_of,
)
from segstore.server.shared_folder import identify, verify_cluster
from segstore.server.store import Container
from tests.server.durable.support import checkpoint, everything, write
from tests.server.shared_folder.members import CONTAINERS, Member, given_back, in_container, members, write_some
from tests.server.support import PATIENCE_S, until


async def test_the_older_owner_is_fenced_by_its_next_change_and_its_reply_is_never_sent(tmp_path: Path) -> None:
    async with members(tmp_path) as (old, new):
        await old.open()
        name = in_container(0)
        old.store.create_segment(name, now_ms=1)
        await old.settled()
        ContainerEpoch.claim(tmp_path / "containers" / "0")
        write(old.store, name, b"too late")
        holder = old.hold()
        await until(lambda: old.lost == [0])
        assert "opened by another store" in holder.ended[0]
        assert not holder.released
        assert not old.store.owns(name)
        assert not old.failures
        assert await new.open() == 3
        write(new.store, name, b"in time")
        await new.settled()


async def test_what_the_older_owner_still_wrote_into_its_journal_is_nothing_to_those_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segstore.server.durable.committer._LOOK_S", PATIENCE_S)  # it is to hear of its end by writing
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


async def test_a_reply_of_another_container_is_sent_though_one_container_is_lost(tmp_path: Path) -> None:
    async with members(tmp_path, 1) as (old,):
        await old.open_all()
        await old.settled()
        ContainerEpoch.claim(tmp_path / "containers" / "0")
        old.store.create_segment(in_container(0), now_ms=1)
        await until(lambda: old.lost == [0])
        old.store.create_segment(in_container(1), now_ms=1)
        holder = old.hold()
        await old.settled()
        assert holder.released
        assert not holder.ended


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


async def test_an_interrupted_opening_is_skipped(tmp_path: Path) -> None:
    async with members(tmp_path) as (old, new):
        await old.open_all()
        write_some(old)
        await old.settled()
        before = everything(old.store)
        for number in range(CONTAINERS):  # one that claimed and was killed, one that had begun to take files over
            ContainerEpoch.claim(tmp_path / "containers" / str(number))
            half = ContainerEpoch.claim(tmp_path / "containers" / str(number))
            (half.path / "journal-0000000001").write_bytes(b"")
        await new.open_all()
        assert everything(new.store) == before


async def test_a_directory_is_taken_over_after_a_snapshot_and_what_it_left_is_removed(tmp_path: Path) -> None:
    async with members(tmp_path) as (old, new):
        await old.open_all()
        write_some(old, 200_000)
        await old.settled()
        for each in old.storage._open.values():
            await checkpoint(each.durability)
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
        for durability in durabilities:
            with pytest.raises(JournalFailed):
                await checkpoint(durability)
        await until(lambda: sorted(old.lost) == [0, 1])
        before = everything(new.store)
        await last.open_all()
        assert everything(last.store) == before


async def test_a_store_that_unloads_a_container_writes_everything_before(tmp_path: Path) -> None:
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


async def test_an_opening_that_another_one_overtakes_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members(tmp_path) as (slow, fast):
        inner = slow.storage._make

        def overtaken(number: int, durability: Any) -> Container:
            ContainerEpoch.claim(tmp_path / "containers" / str(number))
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
        assert made[0].directory._folder == -1
        assert everything(only.store, with_index=False) == before


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


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    async with members(tmp_path, 2) as (only, other):
        await only.open()
        write_some(only)
        await only.settled()
        before = everything(only.store)
        folder = tmp_path / "containers" / "0"
        gone = next(folder.glob("*/journal*"))
        shutil.copy(gone, tmp_path / "kept")
        gone.unlink()
        with pytest.raises(
            ContainerRefused,
            match=r"container 0 cannot be opened: .*/containers/0/epoch-0000000001/journal-0000000001 is "
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
