"""The numbers of a directory's files: given once, taken back if a file could not be made."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from segstore.server.durable import Durability, Files
from segstore.server.durable.journal import JournalWriter
from tests.server.durable.support import make, running, write
from tests.server.support import until

NAME = "scope/stream/0.#epoch.0"


class WithoutManifests(Files):
    """Files of which no manifest can be replaced while `refusing` is set."""

    refusing = False

    def replace(self, source: Path, target: Path) -> None:
        if self.refusing and target.name == "MANIFEST":
            raise OSError(errno.ENOSPC, "No space left on device")
        super().replace(source, target)


class Closing(JournalWriter):
    """Records which journals were closed."""

    closed: list[Path]

    def close(self) -> None:
        self.closed.append(self.path)
        super().close()


async def test_a_journal_that_no_manifest_names_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Closing, "closed", [], raising=False)
    files = WithoutManifests()
    async with running(tmp_path, make_journal=Closing, files=files) as (durability, _):
        await until(lambda: durability.committer.has_next)
        journals = durability._journals
        assert journals is not None
        closed, number = Closing.closed.copy(), journals.number
        files.refusing = True
        with pytest.raises(OSError, match="No space left"):
            journals.make(4096)
        assert Closing.closed == [*closed, tmp_path / f"journal-{number + 1:010d}"]
        files.refusing = False
        _, entry = journals.make(4096)
        assert entry.number == number + 2, "its files are there, so its number is not given again"


def named(durability: Durability) -> set[str]:
    """The journals in the manifest, by the names of their files."""
    return {each.name for each in durability.directory.manifest.journals}


def present(path: Path) -> set[str]:
    return {each.name for each in path.glob("journal-*")}


async def test_a_start_removes_the_journals_that_it_has_copied(tmp_path: Path) -> None:
    async with running(tmp_path, crash=True) as (durability, store):
        store.create_segment(NAME, now_ms=1)
        await until(lambda: durability.committer.has_next)
        before = named(durability)
        assert len(before) == 2
    durability, store = make(tmp_path)
    durability.open()
    durability.recover(store.containers)
    await durability.start()
    assert named(durability) == present(tmp_path), "those that are copied are removed"
    assert before.isdisjoint(present(tmp_path))
    write(store, NAME, b"data")
    await durability.committer.settled()
    await durability.close(last_snapshot=False)
    async with running(tmp_path) as (_, again):
        assert again.segment(NAME).read_bytes(0, 4) == b"data"


async def test_snapshots_are_written_by_a_thread_of_their_own(tmp_path: Path) -> None:
    threads: dict[str, str] = {}

    class Recording(Files):
        def create(self, path: Path) -> int:
            threads[path.name.split("-")[0]] = threading.current_thread().name
            return super().create(path)

    async with running(tmp_path, files=Recording()) as (durability, store):
        store.create_segment(NAME, now_ms=1)
        write(store, NAME, bytes(10_000))
        await durability.checkpoint()
    assert threads["snapshot"] == threads["chunk"] == "segstore snapshots_0"
