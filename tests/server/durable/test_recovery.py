"""What a start finds in a directory, and what it says about it."""

from pathlib import Path

import pytest

from segstore.server.durable import DirectoryDamaged
from tests.server.durable.support import make, running, write

NAME = "scope/stream/0.#epoch.0"


def chunk_files(path: Path) -> list[Path]:
    return list(path.glob("chunk-*"))


@pytest.mark.parametrize("crash", [True, False])
async def test_a_store_that_is_closed_leaves_no_index_entries_to_write(tmp_path: Path, crash: bool) -> None:
    async with running(tmp_path, crash=crash) as (_, store):
        store.create_segment(NAME, now_ms=1)
        write(store, NAME, b"data", now_ms=10)
        write(store, NAME, b"more", now_ms=11)
        assert [name for container in store.containers.values() for name in container.unindexed_names] == [NAME]
    async with running(tmp_path) as (_, again):
        left = [each for container in again.containers.values() for each in container.unindexed_names]
        assert left == ([NAME] if crash else [])


async def test_a_chunk_file_of_another_size_is_named_before_it_is_read(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, store):
        store.create_segment(NAME, now_ms=1)
        write(store, NAME, bytes(10_000))
    (chunk,) = chunk_files(tmp_path)
    with chunk.open("ab") as file:
        file.write(b"x")
    durability, _ = make(tmp_path)
    with pytest.raises(DirectoryDamaged, match=r"it has 10045 bytes, 10044 were written") as damaged:
        durability.open()
    assert (damaged.value.path, damaged.value.file) == (tmp_path, chunk)
    await durability.close()
