"""A byte that is not what was written is found, in whichever file and at whichever place."""

import asyncio
import os
import shutil
import struct
from contextlib import closing
from pathlib import Path

import pytest

from segstore.server.durable import DataDirectory, DataError, journal, verify
from segstore.server.store import DataDamaged
from tests.processes import invoke
from tests.server.durable.support import RANDOM, checkpoint, make, running, write

NAME = "scope/stream/0.#epoch.0"
PLACES = 24
"""In each file, spread over its length."""
KINDS = {"MANIFEST", "committed", "snapshot", "chunk", "journal"}


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a file of each kind, and a journal that has not been read yet."""
    path = tmp_path_factory.mktemp("crashed") / "data"

    async def fill() -> None:
        async with running(path, crash=True) as (durability, store):
            store.create_segment(NAME, now_ms=1)
            write(store, NAME, RANDOM.randbytes(100_000))
            await checkpoint(durability)
            for _ in range(5):
                write(store, NAME, RANDOM.randbytes(3_000))
                await durability.committer.settled()

    asyncio.run(fill())
    return path


def files_of(path: Path) -> list[Path]:
    return sorted(path.iterdir())


def kind_of(file: Path) -> str:
    return file.name.split("-")[0]


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
    whole = verify(crashed)
    written = [file for file in files_of(crashed) if kind_of(file) in ("snapshot", "chunk", "journal")]
    assert (whole.faults, whole.files) == ([], len(written))
    assert whole.batches > 5
    kinds = set()
    for file in files_of(crashed):
        size = file.stat().st_size
        kinds.add(kind_of(file))
        for at in sorted({*range(0, size, max(1, size // PLACES)), size - 1}):
            path = tmp_path / "data"
            shutil.copytree(crashed, path)
            with (path / file.name).open("r+b") as copy:
                copy.seek(at)
                (byte,) = copy.read(1)
                copy.seek(at)
                copy.write(bytes([byte ^ 0x10]))
            assert str(path) in " ".join(verify(path).faults), f"byte {at} of {file.name}, by verify"
            # Only bytes in no group mean nothing to the one who opens it.
            unused = kind_of(file) == "journal" and byte == 0
            assert str(path) in await refused(path) or unused, f"byte {at} of {file.name}, by opening and reading"
            shutil.rmtree(path)
    assert kinds == KINDS


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_a_missing_file_is_named_and_nothing_is_changed(crashed: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "data"
    shutil.copytree(crashed, path)
    gone = next(each for each in files_of(path) if kind_of(each) == kind)
    gone.unlink()
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    with pytest.raises(DataError, match=gone.name):
        await opened_and_read(path)
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before


def logs_of(path: Path) -> list[Path]:
    """The files of a directory that have groups."""
    logs = [each for each in files_of(path) if kind_of(each) == "journal"]
    return [log for log in logs if sum(map(bool, log.read_bytes())) > 1_000]


async def test_a_journal_that_is_cut_off_is_not_taken_for_shorter(crashed: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(crashed, path)
    log = logs_of(path)[0]
    os.truncate(log, log.stat().st_size // 2)
    said = r"ends at byte \d+ with batch \d+, and batch \d+ was committed|is followed by batch"
    with pytest.raises(DataError, match=said):
        await opened_and_read(path)


async def test_the_last_group_is_missed_where_it_was_even_if_a_new_journal_follows(
    crashed: Path, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    shutil.copytree(crashed, path)
    log = logs_of(path)[-1]
    data = bytearray(log.read_bytes())
    end = len(data.rstrip(b"\0"))
    data[end - 20] ^= 1
    log.write_bytes(data)
    with pytest.raises(DataError, match=rf"{log} is damaged: it ends at byte \d+ with batch \d+, and batch") as found:
        await opened_and_read(path)
    said = str(found.value).partition("; restore")[0]
    assert verify(path).faults == [said]


def test_a_directory_of_another_owner_is_reported_with_what_differs(crashed: Path) -> None:
    with closing(DataDirectory.look(crashed)) as directory:
        manifest = directory.manifest
    cluster, containers, held = manifest.cluster, manifest.containers, manifest.held
    assert verify(crashed, (cluster, containers, held)).faults == []
    others = {
        "cluster": ("another", containers, held),
        "counts": (cluster, 9, held),
        "holds": (cluster, containers, ()),
    }
    for what, owner in others.items():
        (fault,) = verify(crashed, owner).faults
        assert what in fault.removeprefix(str(crashed))


def test_a_write_that_a_kill_cut_short_is_a_note_and_no_fault(crashed: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(crashed, path)
    log = logs_of(path)[-1]
    data = bytearray(log.read_bytes())
    end = -(-len(data.rstrip(b"\0")) // journal.PAGE_BYTES) * journal.PAGE_BYTES
    begun = data[8:24] + struct.pack(">QQQ", 1 << 20, 1 << 20, 100_000) + bytes(4) + b"x" * 50_000
    data[end:] = begun + bytes(200_000)
    log.write_bytes(data)
    found = invoke("verify", path)
    assert found.exit_code == 0
    assert f"{log} ends with a write that was not finished" in found.stdout
    data[-1] = 1
    log.write_bytes(data)
    found = invoke("verify", path)
    assert found.exit_code == 1
    assert f"{log} has bytes in no group, from byte {end} on" in found.stderr
