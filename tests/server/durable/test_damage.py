"""A byte that is not what was written is found, in whichever file and at whichever place."""

import asyncio
import os
import shutil
import sqlite3
from fnmatch import fnmatch
from pathlib import Path

import pytest
from click.testing import CliRunner

from segstore.cli.commands import main
from segstore.server.durable import DataError, DirectoryUnusable, journal, verify
from segstore.server.store import DataDamaged
from tests.server.durable.support import make, running, write

NAME = "scope/stream/0.#epoch.0"
PLACES = 24
"""In each file, spread over its length."""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a file of each kind, and a journal that has not been read yet."""
    path = tmp_path_factory.mktemp("crashed") / "data"

    async def fill() -> None:
        async with running(path, crash=True) as (durability, store):
            store.create_segment(NAME, now_ms=1)
            write(store, NAME, os.urandom(100_000))
            await durability.checkpoint()
            for _ in range(5):
                write(store, NAME, os.urandom(3_000))
                await durability.committer.settled()

    asyncio.run(fill())
    return path


def files_of(path: Path) -> list[Path]:
    return sorted(path.iterdir())


async def refused(path: Path) -> str:
    """What opening a directory and reading what is in it is refused with; "" if nothing is wrong."""
    try:
        await opened_and_read(path)
    except (DataError, DataDamaged) as error:
        return str(error)
    return ""


async def opened_and_read(path: Path) -> None:
    """Open a directory and read what is in it. Raises DataError, DataDamaged."""
    durability, store = make(path)
    try:
        durability.open()
        durability.recover(store.containers)
        store.segment(NAME).read_bytes(0, store.segment(NAME).length)
    finally:
        await durability.close()


async def test_a_flipped_byte_in_any_file_is_found(crashed: Path, tmp_path: Path) -> None:
    assert verify(crashed).faults == []
    kinds = set()
    for file in files_of(crashed):
        size = file.stat().st_size
        # SQLite's shared memory is made anew, and nothing is kept in the lock.
        if not size or file.name.endswith("-shm"):
            continue
        kinds.add(file.name.split("-")[0] + file.suffix)
        log = file.name.endswith("-wal")
        for at in sorted({*range(0, size, max(1, size // PLACES)), size - 1}):
            path = tmp_path / "data"
            shutil.copytree(crashed, path)
            with (path / file.name).open("r+b") as copy:
                copy.seek(at)
                (byte,) = copy.read(1)
                copy.seek(at)
                copy.write(bytes([byte ^ 0x10]))
            assert verify(path).faults != [], f"byte {at} of {file.name}, by verify"
            # Only what lies behind the last group of a journal means nothing to whoever opens it.
            unused = log and byte == 0
            assert str(path) in await refused(path) or unused, f"byte {at} of {file.name}, by opening and reading"
            shutil.rmtree(path)
    assert kinds == {"MANIFEST", "committed", "snapshot", "chunk", "journal.sqlite", "journal.sqlite-wal"}


@pytest.mark.parametrize("kind", ["MANIFEST", "committed", "snapshot-*", "chunk-*", "*.sqlite", "*.sqlite-wal"])
async def test_a_missing_file_is_named_and_nothing_is_changed(crashed: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "data"
    shutil.copytree(crashed, path)
    gone = next(each for each in sorted(path.iterdir()) if fnmatch(each.name, kind))
    gone.unlink()
    before = {each.name: each.read_bytes() for each in path.iterdir() if not each.name.endswith("-shm")}
    with pytest.raises(DataError, match=gone.name):
        await opened_and_read(path)
    after = {each.name: each.read_bytes() for each in path.iterdir() if not each.name.endswith("-shm")}
    assert {name: data for name, data in after.items() if name in before} == before


async def test_a_journal_that_is_cut_off_is_not_taken_for_shorter(crashed: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(crashed, path)
    logs = [each for each in path.iterdir() if each.name.endswith("-wal")]
    largest = max(logs, key=lambda each: sum(map(bool, each.read_bytes())))
    os.truncate(largest, 20_000)
    with pytest.raises(DataError, match=r"ends with batch \d+, and batch \d+ was committed|is followed by batch"):
        await opened_and_read(path)


def test_the_command_line_says_what_is_damaged(crashed: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(crashed, path)
    found = CliRunner().invoke(main, ["verify", str(path)])
    assert found.exit_code == 0
    assert "as they were written" in found.output
    chunk = next(each for each in path.iterdir() if each.name.startswith("chunk"))
    data = bytearray(chunk.read_bytes())
    data[70_000] ^= 1
    chunk.write_bytes(data)
    found = CliRunner().invoke(main, ["verify", str(path)])
    assert found.exit_code == 1
    assert found.output == f"{chunk} is damaged at byte 65536: a block does not have its checksum\n"


def test_verify_changes_nothing(crashed: Path) -> None:
    before = {each.name: each.read_bytes() for each in files_of(crashed)}
    assert verify(crashed).faults == []
    assert {each.name: each.read_bytes() for each in files_of(crashed)} == before


async def test_a_journal_that_the_system_does_not_let_be_read_is_not_called_damaged(
    crashed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    shutil.copytree(crashed, path)
    none = tmp_path / "none"
    monkeypatch.setattr(journal, "_read_only", lambda _: sqlite3.connect(f"file:{none}?mode=ro", uri=True))
    with pytest.raises(DirectoryUnusable, match="cannot be used as a data directory: SQLite cannot read"):
        await opened_and_read(path)
    assert all("cannot be read: SQLite" in each for each in verify(path).faults[:-1])
