"""What a data directory refuses: one sentence that says what and where, and nothing is changed."""

import errno
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from segstore.server.durable import (
    DataDirectory,
    DataError,
    DirectoryDamaged,
    DirectoryForeign,
    DirectoryInUse,
    DirectoryUnusable,
    Files,
    JournalFailed,
    UnknownFormat,
)
from segstore.server.durable.data_directory import JournalFile, SnapshotFile
from tests.looped import looped
from tests.server.durable.support import make, running
from tests.server.support import until


def take(path: Path, *, containers: int = 4, held: tuple[int, ...] = (0, 1, 2, 3), **more: object) -> DataDirectory:
    return DataDirectory.open(path, containers=containers, held=held, **more)  # type: ignore[arg-type]


def descriptors() -> set[str]:
    return {each.name for each in Path("/dev/fd").iterdir()}


def content(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def test_new_directories_are_made_with_their_parents_each_of_a_cluster_of_its_own(tmp_path: Path) -> None:
    clusters = set()
    for path in (tmp_path / "a" / "b", tmp_path / "c"):
        directory = take(path)
        clusters.add(directory.manifest.cluster)
        directory.close()
        assert sorted(content(path)) == ["MANIFEST", "committed"]
    assert len(clusters) == 2


def test_one_process_has_it_at_a_time(tmp_path: Path) -> None:
    first = take(tmp_path)
    with pytest.raises(DirectoryInUse, match=r"is in use by another process; end that one"):
        take(tmp_path)
    with pytest.raises(DirectoryInUse):
        DataDirectory.look(tmp_path)
    first.close()
    first.close()
    take(tmp_path).close()


class Full(Files):
    def create(self, path: Path) -> int:
        raise OSError(errno.ENOSPC, "no space left")


@pytest.mark.parametrize(
    ("attempt", "damaged", "error"),
    [
        (lambda path: take(path, containers=8, held=tuple(range(8))), "", DirectoryForeign),
        (lambda path: take(path, files=Full()), "", DirectoryUnusable),
        (DataDirectory.look, "MANIFEST", DirectoryDamaged),
        (DataDirectory.look, "committed", DirectoryDamaged),
    ],
    ids=["open refused", "open failed", "look refused", "look failed"],
)
def test_a_directory_that_was_refused_is_given_back(
    tmp_path: Path, attempt: Callable[[Path], DataDirectory], damaged: str, error: type[DataError]
) -> None:
    take(tmp_path).close()
    whole = content(tmp_path)
    if damaged:
        (tmp_path / damaged).write_bytes(b"nonsense")
    opened = descriptors()
    with pytest.raises(error):
        attempt(tmp_path)
    assert descriptors() == opened
    if damaged:
        (tmp_path / damaged).write_bytes(whole[damaged])
    assert content(tmp_path) == whole
    take(tmp_path).close()


def test_no_file_that_is_removed_lets_a_second_process_in(tmp_path: Path) -> None:
    first = take(tmp_path)
    for each in tmp_path.iterdir():
        each.unlink()
    with pytest.raises(DirectoryInUse):
        take(tmp_path)
    first.close()


async def test_a_store_whose_directory_was_moved_writes_nothing_into_the_one_in_its_place(tmp_path: Path) -> None:
    path, moved = tmp_path / "data", tmp_path / "moved"
    durability, store = make(path)
    durability.open()
    durability.recover(store.containers)
    await durability.start()
    await until(lambda: durability.committer.next is not None)
    path.rename(moved)
    take(path, containers=2, held=(0, 1)).close()
    before = content(path)
    store.create_segment("scope/stream/0.#epoch.0", now_ms=1)
    with pytest.raises(JournalFailed, match=f"{path} was removed or replaced"):
        await durability.committer.settled()
    await durability.close()
    assert content(path) == before
    async with running(moved) as (_, again):
        assert "scope/stream/0.#epoch.0" in again.container_for("scope/stream/0.#epoch.0").segments


@pytest.mark.parametrize("removed", ["directory", "files"])
async def test_a_store_notices_that_its_directory_was_removed(tmp_path: Path, removed: str) -> None:
    path = tmp_path / "data"
    durability, store = make(path)
    durability.open()
    durability.recover(store.containers)
    await durability.start()
    shutil.rmtree(path)
    if removed == "files":
        path.mkdir()
    await until(
        lambda: durability.committer.failure == f"{path} was removed or replaced: nothing is acknowledged any more"
    )
    await durability.close()


@looped("version", [2, 4])
def test_another_format_is_refused_and_nothing_is_changed(tmp_path: Path, version: int) -> None:
    path = tmp_path / str(version)
    take(path).close()
    manifest = path / "MANIFEST"
    body = manifest.read_bytes().partition(b"\n")[2]
    manifest.write_bytes(b"segstore data %d %08x\n" % (version, crc32(b"%d\n" % version + body)) + body)
    before = content(path)
    for attempt in (take, DataDirectory.look):
        with pytest.raises(UnknownFormat, match=f"is in format {version}, and this version of segstore reads format 3"):
            attempt(path)
    assert content(path) == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"containers": 8, "held": tuple(range(8))}, "a cluster of 4 containers, and this one has 8; start it with"),
        ({"held": (0, 2)}, "holds containers 0, 1, 2, 3, and this store owns 0, 2; start it with --own 0,1,2,3"),
    ],
    ids=["containers", "own"],
)
def test_another_clusters_directory_is_refused(tmp_path: Path, given: dict[str, object], said: str) -> None:
    take(tmp_path).close()
    before = content(tmp_path)
    with pytest.raises(DirectoryForeign, match=said):
        take(tmp_path, **given)  # type: ignore[arg-type]
    assert content(tmp_path) == before


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    for path in (tmp_path, tmp_path / "letters.txt"):
        with pytest.raises(DirectoryForeign, match=r"is not a (data )?directory"):
            take(path)
    assert content(tmp_path) == {"letters.txt": b"dear"}


def test_data_without_a_manifest_is_not_taken_for_new(tmp_path: Path) -> None:
    take(tmp_path).close()
    (tmp_path / "MANIFEST").unlink()
    (tmp_path / "chunk-0000000001").write_bytes(b"data")
    with pytest.raises(DirectoryDamaged, match=r"MANIFEST is damaged: it is missing, and chunk-0000000001 is there"):
        take(tmp_path)


def test_a_manifest_that_could_not_be_replaced_is_the_old_one(tmp_path: Path) -> None:
    class Unwritable(Files):
        def write(self, descriptor: int, data: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    first = take(tmp_path)
    first.change(numbers=5)
    first.files = Unwritable()
    with pytest.raises(OSError, match="No space left"):
        first.change(numbers=6)
    assert first.manifest.numbers == 5
    first.close()
    second = take(tmp_path)
    assert second.manifest.numbers == 5
    second.close()


FIRST_READS = """
import os
import sys
import threading
from pathlib import Path

from segstore.server.durable.data_directory import DataDirectory
from segstore.server.durable.files import Files

sys.setswitchinterval(1e-6)
ended = []
for _ in range(10):
    child = os.fork()  # the first read changes state of the process
    if not child:
        together = threading.Barrier(8)

        def read():
            together.wait()
            DataDirectory(Path(sys.argv[1]), Files()).look_at()

        threads = [threading.Thread(target=read) for _ in range(together.parties)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        os._exit(0)
    ended.append(os.waitpid(child, 0)[1])
print(sum(map(bool, ended)), "of", len(ended), "have crashed")
"""


def test_threads_may_read_their_first_manifests_at_the_same_time(tmp_path: Path) -> None:
    take(tmp_path).close()
    found = subprocess.run(
        [sys.executable, "-c", FIRST_READS, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (found.stdout, found.stderr) == ("0 of 10 have crashed\n", "")


def test_a_refusal_names_the_directory_the_file_and_what_is_wrong(tmp_path: Path) -> None:
    take(tmp_path).close()
    whole = content(tmp_path)
    first, _, body = whole["MANIFEST"].partition(b"\n")
    for name, data, what in (
        ("MANIFEST", b"nonsense", "its first line does not begin with 'segstore data'"),
        ("MANIFEST", first + b"\n" + body + b" ", "it does not have its checksum"),
        ("MANIFEST", b"segstore data 3 %08x\n{}" % crc32(b"3\n{}"), "required field"),
        ("committed", whole["committed"][:-1], "it does not have its checksum"),
        ("committed", b"X" + whole["committed"][1:], "it does not have its checksum"),
        ("committed", whole["committed"][:-1] + b"\x00\x00", "it does not have its checksum"),
        ("committed", None, "it is missing"),
    ):
        if data is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(DirectoryDamaged) as damaged:
            DataDirectory.look(tmp_path)
        assert (damaged.value.path, damaged.value.file) == (tmp_path, tmp_path / name)
        assert what in damaged.value.what
        assert str(tmp_path / name) in str(damaged.value)
        (tmp_path / name).write_bytes(whole[name])
    DataDirectory.look(tmp_path).close()
    with pytest.raises(DirectoryForeign, match="it has no MANIFEST") as foreign:
        DataDirectory.look(tmp_path / "nowhere")
    assert foreign.value.path == tmp_path / "nowhere"


def test_what_is_noted_and_changed_is_there_when_the_directory_is_opened_again(tmp_path: Path) -> None:
    first = take(tmp_path)
    assert (first.committed, first.is_over) == (0, False)
    first.note(7)
    first.note(1 << 40)
    assert first.read_mark() == 1 << 40
    first.change(numbers=5, batch=3)
    first.close()
    for opened in (take, DataDirectory.look):
        again = opened(tmp_path)
        assert (again.committed, again.manifest) == (1 << 40, first.manifest)
        again.close()
    read = DataDirectory(tmp_path, Files())
    owner = take(tmp_path)
    read.look_at()
    assert read.manifest == owner.manifest
    owner.close()


def test_files_with_our_names_that_are_not_in_force_are_removed_and_others_stay(tmp_path: Path) -> None:
    directory = take(tmp_path)
    directory.change(snapshot=SnapshotFile(3, 10, 7), journals=(JournalFile(4, 1), JournalFile(5, 1)))
    kept = {
        *("chunk-0000000001", "chunk-0000000002", "snapshot-0000000003"),
        *("journal-0000000004", "journal-0000000005"),
    }
    left = {"chunk-0000000006", "snapshot-0000000002", "journal-0000000003"}
    foreign = {"letters.txt", "chunk-1", "snapshot-00000000031", "journal-0000000003.old"}
    for name in kept | left | foreign:
        (tmp_path / name).write_bytes(b"")
    assert directory.remove_leftovers({1, 2}) == sorted(left)
    assert set(content(tmp_path)) == {"MANIFEST", "committed", *kept, *foreign}
    directory.close()
