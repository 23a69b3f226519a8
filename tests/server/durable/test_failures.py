"""A disk that fails: nothing is acknowledged any more, somebody says so, and a restart has all that was before."""

import asyncio
import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from segstore.server.cluster import MockCluster
from segstore.server.durable import DirectoryUnusable, Files, JournalFailed, durable
from segstore.server.durable.journal import Group, JournalWriter
from tests.server.durable.support import checkpoint, everything, make, running, write
from tests.server.support import HELLO, PATIENCE_S, Peer, append, create, set_up

NAME = "scope/stream/0.#epoch.0"


class Failing(JournalWriter):
    """A journal whose disk fails with a group. before: nothing of that group is on disk; otherwise all of it is."""

    def __init__(self, path: Path, files: Files, filled: int, *, at: int, error: Exception, before: bool) -> None:
        super().__init__(path, files, 16 * 1024)
        self._left = at
        self._error = error
        self._before = before

    @property
    def is_full(self) -> bool:
        return False

    def append(self, group: Group) -> None:
        self._left -= 1
        if self._left < 0:
            if not self._before:
                super().append(group)
            raise self._error
        super().append(group)


ERRORS = {
    "a full disk": (OSError(errno.ENOSPC, "No space left on device"), True),
    "a write that fails": (OSError(errno.EIO, "Input/output error"), True),
    "what nobody foresaw": (ValueError("a fault of this program"), True),
    "an fsync that fails": (OSError(errno.EIO, "Input/output error"), False),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("at", [0, 5])
async def test_nothing_is_acknowledged_after_a_failure(
    tmp_path: Path, kind: str, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    error, before = ERRORS[kind]

    def make_journal(path: Path, files: Files, filled: int) -> JournalWriter:
        return Failing(path, files, filled, at=at, error=error, before=before)

    durability, store = make(tmp_path, make_journal)
    said: list[str] = []
    durability.open()
    durability.recover(store.containers)
    await durability.start(said.append)
    acknowledged = -1

    async def go_on() -> None:
        nonlocal acknowledged
        store.create_segment(NAME, now_ms=1)
        await durability.committer.settled()
        acknowledged = 0
        for number in range(20):
            write(store, NAME, b"%04d" % number)
            await durability.committer.settled()
            acknowledged += 1

    try:
        with pytest.raises(JournalFailed, match="nothing is acknowledged any more"):
            await go_on()
        with pytest.raises(JournalFailed):
            await durability.committer.settled()
        with pytest.raises(JournalFailed):
            await checkpoint(durability)
    finally:
        await durability.close()
    assert len(said) == 1
    assert str(tmp_path) in said[0]
    assert caplog.records[-1].levelno == logging.CRITICAL
    assert acknowledged == at - 1
    async with running(tmp_path) as (_, again):
        found = everything(again)
        if at:
            data = found[NAME][2]
            written = b"".join(b"%04d" % number for number in range(20))
            assert data in (written[: 4 * acknowledged], written[: 4 * acknowledged + 4])
            write(again, NAME, b"goes on")


class WithoutDescriptors(Files):
    """Files of which no snapshot can be created while `short` is set."""

    short = False
    refused = 0

    def create(self, path: Path) -> int:
        if self.short and path.name.startswith("snapshot"):
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return super().create(path)


async def test_a_store_waits_for_descriptors_loses_nothing_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(durable, "_RETRY_S", 0.001)
    files = WithoutDescriptors()
    async with running(tmp_path, files=files) as (durability, store):
        store.create_segment(NAME, now_ms=1)
        write(store, NAME, bytes(100_000))
        files.short = True
        asked = asyncio.create_task(checkpoint(durability))
        async with asyncio.timeout(PATIENCE_S):
            while files.refused < 3:
                write(store, NAME, b"x")
                await durability.committer.settled()
                await asyncio.sleep(0.001)
            assert not asked.done()
            files.short = False
            await asked
        assert durability.snapshots == 1
        names = [each.split("-")[0] for each in os.listdir(tmp_path)]  # noqa: PTH208
        assert (names.count("chunk"), names.count("snapshot")) == (1, 1)
        before = everything(store, with_index=False)
    assert [record.levelno for record in caplog.records if "waits for a file descriptor" in record.message] == [
        logging.WARNING
    ]
    async with running(tmp_path) as (_, again):
        assert everything(again, with_index=False) == before


class HalfMade:
    """Makes journals of which, as often as `failures` says, the files are there and no descriptor for more."""

    def __init__(self, error: OSError) -> None:
        self.error = error
        self.failures = 0
        self.failed = 0

    def __call__(self, path: Path, files: Files, filled: int) -> JournalWriter:
        made = JournalWriter(path, files, 16 * 1024)
        if self.failures:
            self.failures -= 1
            self.failed += 1
            made.close()
            raise self.error
        return made


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_journals_that_lack_descriptors_leave_no_files_and_use_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(durable, "_RETRY_S", 0.001)
    maker = HalfMade(OSError(number, os.strerror(number)))
    async with running(tmp_path, make_journal=maker) as (durability, _):
        maker.failures = 5
        async with asyncio.timeout(PATIENCE_S):
            while durability.committer.next is None:  # noqa: ASYNC110 — the keeper notifies of nothing
                await asyncio.sleep(0.001)
        assert maker.failed == 5
        assert [journal.number for journal in durability.directory.manifest.journals] == [1, 2]
        assert {each for each in os.listdir(tmp_path) if "journal" in each} == {  # noqa: PTH208
            "journal-0000000001",
            "journal-0000000002",
        }


async def test_a_store_that_cannot_make_its_first_journal_does_not_start(tmp_path: Path) -> None:
    maker = HalfMade(OSError(errno.ENOSPC, "No space left on device"))
    maker.failures = 1
    with pytest.raises(DirectoryUnusable, match="No space left on device"):
        async with running(tmp_path, make_journal=maker):
            pytest.fail("the store has started")


class Stuck(Files):
    """Files of which no journal can be removed."""

    def remove(self, path: Path) -> None:
        if path.name.startswith("journal"):
            raise OSError(errno.EACCES, "Permission denied", str(path))
        super().remove(path)


async def test_a_start_that_cannot_remove_a_journal_leaves_it_to_the_next(tmp_path: Path) -> None:
    first = tmp_path / "journal-0000000001"
    async with running(tmp_path, crash=True) as (_, store):
        store.create_segment(NAME, now_ms=1)
    async with running(tmp_path, crash=True, files=Stuck()) as (_, store):
        assert NAME in everything(store)
        assert first.exists()
    async with running(tmp_path):
        assert not first.exists()


class Counting(Files):
    """Fails from a call on, as a disk does."""

    left = 1_000_000

    def __getattribute__(self, name: str) -> Any:
        if name in ("create", "write", "sync", "replace", "remove"):
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
        return super().__getattribute__(name)


@pytest.mark.parametrize("left", range(0, 40, 3))
async def test_a_snapshot_that_fails_anywhere_loses_nothing(tmp_path: Path, left: int) -> None:
    files = Counting()
    durability, store = make(tmp_path, files=files)
    durability.open()
    durability.recover(store.containers)
    await durability.start()
    store.create_segment(NAME, now_ms=1)
    for number in range(3):
        write(store, NAME, b"%d" % number * 10_000)
    await durability.committer.settled()
    before = everything(store, with_index=False)
    files.left = left
    try:
        for _ in range(2):
            try:
                await checkpoint(durability)
                write(store, NAME, b"more")
                await durability.committer.settled()
            except JournalFailed:  # of the snapshot, or of the next journal, which is made meanwhile
                break
            before = everything(store, with_index=False)
    finally:
        await durability.close()
    async with running(tmp_path) as (_, again):
        found = everything(again, with_index=False)
        assert found[NAME][2].startswith(before[NAME][2])
        assert found[NAME][0][1] - before[NAME][0][1] in (0, 4)


async def test_clients_of_a_store_that_failed_are_cut_off(grpc_runs: None, tmp_path: Path) -> None:
    async with MockCluster(data=tmp_path, containers=2) as mock:
        durability = mock.durability
        assert mock.failure is not None
        host, port = mock.address or ("", 0)
        async with Peer(*await asyncio.open_connection(host, port)) as peer:
            assert len(await peer.ask(HELLO, create(), set_up())) == 3
            peer.send(append(1))
            durability.committer.fail("the disk is gone")
            assert await peer.closed() == b""
        assert await asyncio.wait_for(mock.failure, PATIENCE_S) == "the disk is gone"
        async with Peer(*await asyncio.open_connection(host, port)) as peer:
            assert await peer.closed() == b""
