"""Special files in a data directory are refused by name; files elsewhere are neither read nor written."""

import os
import stat
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from segstore.server.durable import DirectoryDamaged, verify
from segstore.server.shared_folder import verify_cluster
from tests.power_loss.life import CONTAINERS, open_data
from tests.server.durable.support import RANDOM, checkpoint, everything, write

NEITHER = "it is neither a regular file nor a folder"
NAME = "scope/stream/0.#epoch.0"
VICTIM = b"a file of another user that must not be written to"


async def live(kind: str, path: Path) -> str:
    """Fill a directory with all kinds of files, and leave it as a killed process does; returns its files."""
    opened = await open_data(kind, path)
    await opened.durability.start()
    if NAME not in everything(opened.store):
        opened.store.create_segment(NAME, now_ms=1)
    write(opened.store, NAME, RANDOM.randbytes(10_000))
    await checkpoint(opened.durability)
    write(opened.store, NAME, RANDOM.randbytes(10_000))
    await opened.durability.committer.settled()
    await opened.durability.close(last_snapshot=False)
    return opened.digest()


async def found(kind: str, path: Path) -> str:
    opened = await open_data(kind, path)
    await opened.durability.close()
    return opened.digest()


def link(path: Path) -> None:
    moved = path.parent.parent / "elsewhere"
    path.rename(moved)
    path.symlink_to(moved)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


FILES = ["MANIFEST", "committed", "snapshot-*", "chunk-*", "journal-*"]


@pytest.mark.parametrize("replace", [link, fifo])
@pytest.mark.parametrize("pattern", FILES)
async def test_a_file_that_is_no_regular_one_is_refused_and_named(
    tmp_path: Path, pattern: str, replace: Callable[[Path], None]
) -> None:
    path = tmp_path / "data"
    await live("plain", path)
    file = min(path.glob(pattern))
    replace(file)
    names = sorted(path.iterdir())
    with pytest.raises(DirectoryDamaged, match=f"{file} is damaged: {NEITHER}; restore"):
        await open_data("plain", path)
    assert [fault for fault in verify(path).faults if str(file) in fault]
    assert sorted(path.iterdir()) == names


async def test_a_link_in_an_empty_directory_leads_nowhere(tmp_path: Path) -> None:
    path, victim, missing = tmp_path / "data", tmp_path / "victim", tmp_path / "missing"
    path.mkdir()
    victim.write_bytes(VICTIM)
    for target, name in product((victim, missing), ("committed", "committed.new", "MANIFEST.new", "chunk-0000000001")):
        (path / name).symlink_to(target)
        with pytest.raises(DirectoryDamaged, match=f"{path / name} is damaged: {NEITHER}"):
            await open_data("plain", path)
        (path / name).unlink()
    assert victim.read_bytes() == VICTIM
    assert not missing.exists()


async def test_a_file_that_has_another_name_elsewhere_is_not_written_to(tmp_path: Path) -> None:
    path, victim = tmp_path / "data", tmp_path / "victim"
    path.mkdir()
    victim.write_bytes(VICTIM)
    (path / "committed").hardlink_to(victim)
    held = await live("plain", path)
    assert victim.read_bytes() == VICTIM
    copy = tmp_path / "copy"
    copy.mkdir()
    for each in path.iterdir():
        (copy / each.name).hardlink_to(each)
    before = {each.name: each.read_bytes() for each in copy.iterdir()}
    assert await live("plain", path) != held
    assert {name: (copy / name).read_bytes() for name in before} == before
    assert await found("plain", copy) == held


@pytest.mark.parametrize("kind", CONTAINERS)
async def test_files_and_folders_are_for_their_owner_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "above" / "data"
    before = os.umask(0o022)
    try:
        await live(kind, path)
    finally:
        os.umask(before)
    made = [path.parent, path, *path.rglob("*")]
    assert {stat.S_IMODE(each.stat().st_mode) for each in made if each.is_dir()} == {0o700}
    assert {stat.S_IMODE(each.stat().st_mode) for each in made if each.is_file()} == {0o600}


PLACES = ["CLUSTER", "containers", "controller", "containers/0", "containers/0/epoch-0000000001"]


@pytest.mark.parametrize("place", PLACES)
async def test_nothing_of_a_cluster_may_be_a_link(tmp_path: Path, place: str) -> None:
    path = tmp_path / "data"
    await live("cluster", path)
    (path / place).rename(tmp_path / "elsewhere")
    (path / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DirectoryDamaged, match=f"{path / place} is damaged: {NEITHER}"):
        await open_data("cluster", path)
    assert [fault for fault in verify_cluster(path).faults if str(path / place) in fault]
