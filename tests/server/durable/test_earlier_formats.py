"""Directories of earlier formats are read, and what is written to them is in the current one."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from segstore.server.durable import verify
from segstore.server.shared_folder import verify_cluster
from tests.power_loss.life import CONTAINERS, Opened, open_data
from tests.server.durable.support import write

ARCHIVE = Path(__file__).parents[3] / "fixtures" / "data-directories" / "format-1.tar.xz"
NAME = "scope/stream/0.#epoch.0"
HELD = b"".join(b"%07d\n" % number for number in range(12_500)) + b"".join(b"%d" % each * 3_000 for each in range(5))


def extracted(kind: str, folder: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / kind


def content(opened: Opened) -> bytes:
    segment = opened.store.segment(NAME)
    return segment.read_bytes(0, segment.length)


def files(path: Path) -> set[str]:
    return {each.name.split("-")[0] + each.suffix for each in path.rglob("*") if each.is_file()}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_directory_of_an_earlier_format_is_verified(tmp_path: Path, kind: str) -> None:
    path = extracted(kind, tmp_path)
    found = verify(path) if kind == "plain" else verify_cluster(path)
    assert not found.faults


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("ends", ["killed", "closed"])
async def test_a_directory_of_an_earlier_format_is_read_and_goes_on_in_the_current_one(
    tmp_path: Path, kind: str, ends: str
) -> None:
    path, held = extracted(kind, tmp_path), HELD
    for life in range(3):
        opened = await open_data(kind, path)
        assert content(opened) == held
        await opened.durability.start()
        write(opened.store, NAME, b"more %d" % life)
        held += b"more %d" % life
        await opened.durability.committer.settled()
        await opened.durability.close(last_snapshot=ends == "closed")
    (manifest,) = path.rglob("MANIFEST")
    assert manifest.read_bytes().startswith(b"segstore data 2 ")
    assert not verify(manifest.parent).faults
    assert not [each for each in files(path) if "sqlite" in each]
    opened = await open_data(kind, path)
    assert content(opened) == held
    await opened.durability.close()
