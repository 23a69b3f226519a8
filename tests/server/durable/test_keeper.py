"""When snapshots are taken: as memory fills, when data may be removed from the disk, and when somebody asks."""

import threading
from pathlib import Path

import pytest

from segstore.server.durable import MIN_MEMORY_BYTES, Files, durable, recovery
from tests.looped import looped
from tests.server.durable.support import make, running, write
from tests.server.support import until

NAME = "scope/stream/0.#epoch.0"


class Gated(Files):
    """Files of which no snapshot or chunk file is created while `gate` is closed."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = 0

    def create(self, path: Path) -> int:
        if path.name.startswith(("chunk", "snapshot")):
            self.waiting += 1
            self.gate.wait(60)
        return super().create(path)


async def test_memory_that_fills_is_saved_and_writers_wait_when_a_quarter_of_it_is_not(tmp_path: Path) -> None:
    files, sent = Gated(), 0
    async with running(tmp_path, files=files) as (durability, store):
        committer = durability.committer
        store.create_segment(NAME, now_ms=1)
        files.gate.clear()
        try:
            while not committer.full:
                write(store, NAME, bytes(1 << 20))
                await committer.settled()
                sent += 1 << 20
                if sent <= MIN_MEMORY_BYTES // 6 - (1 << 20):
                    assert not files.waiting
            assert MIN_MEMORY_BYTES // 4 - (1 << 20) <= sent <= MIN_MEMORY_BYTES // 4 + (1 << 20)
            await until(lambda: files.waiting)
        finally:
            files.gate.set()
        await until(lambda: durability.snapshots)
        assert not committer.full


@looped("how", ["deleted", "truncated", "written"])
async def test_what_is_deleted_or_truncated_is_removed_from_the_disk_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(durable, "_TIDY_AFTER_S", 0.0)
    async with running(tmp_path / how) as (durability, store):
        store.create_segment(NAME, now_ms=1)
        write(store, NAME, b"data")
        if how == "deleted":
            store.delete_segment(NAME)
        elif how == "truncated":
            store.truncate_segment(NAME, 2)
        else:
            await until(lambda: durability.committer.next is not None)
            assert durability.snapshots == 0
            return
        await until(lambda: durability.snapshots)


async def test_a_start_writes_small_journals_again_and_removes_them(tmp_path: Path) -> None:
    for life in range(3):
        async with running(tmp_path, crash=True) as (durability, store):
            assert durability._journals.ended == []
            for group in range(2):
                store.create_segment(f"segment {group} of life {life}", now_ms=1)
                await durability.committer.settled()


async def test_a_start_that_has_read_many_journals_takes_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_REWRITTEN_BYTES", 0)  # no journal is copied as a whole
    found = []
    for life in range(7):
        durability, store = make(tmp_path)
        durability.open()
        durability.recover(store.containers)
        await durability.start()
        found.append((len(durability._journals.ended), durability._tidy_at_s == 0))
        if not life:
            store.create_segment(NAME, now_ms=1)
        for number in range(2):
            write(store, NAME, b"%d" % number)
            await durability.committer.settled()
        if life == 5:
            await until(lambda: durability.snapshots)  # noqa: B023 — it is waited for here
        await durability.close(last_snapshot=False)
    assert [due for _, due in found] == [ended > 4 for ended, _ in found]
    *ended, after = (ended for ended, _ in found)
    assert ended == [0, 1, 2, 3, 4, 5]
    assert after <= 1, "the last journal is needed if something was written behind the snapshot"
