"""What a data directory refuses: one sentence that says what and where, and nothing is changed."""

import errno
import fcntl
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
    DirectoryNewer,
    DirectoryUnusable,
    Files,
    JournalFailed,
)
from tests.server.durable.support import make, running
from tests.server.support import until


def take(path: Path, *, containers: int = 4, held: tuple[int, ...] = (0, 1, 2, 3), **more: object) -> DataDirectory:
    return DataDirectory.open(path, containers=containers, held=held, **more)  # type: ignore[arg-type]


def descriptors() -> set[str]:
    return {each.name for each in Path("/dev/fd").iterdir()}


def content(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def test_a_new_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    take(path).close()
    assert sorted(content(path)) == ["MANIFEST", "committed"]


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
        (DataDirectory.look, "committed", DirectoryUnusable),
    ],
    ids=["open refused", "open failed", "look refused", "look failed"],
)
def test_a_directory_that_was_refused_is_given_back(
    tmp_path: Path, attempt: Callable[[Path], DataDirectory], damaged: str, error: type[DataError]
) -> None:
    take(tmp_path).close()
    whole = content(tmp_path)
    if damaged == "MANIFEST":
        (tmp_path / damaged).write_bytes(b"nonsense")
    elif damaged:
        (tmp_path / damaged).unlink()
        (tmp_path / damaged).mkdir()  # not a regular file
    opened = descriptors()
    with pytest.raises(error):
        attempt(tmp_path)
    assert descriptors() == opened
    if damaged:
        if (tmp_path / damaged).is_dir():
            (tmp_path / damaged).rmdir()
        (tmp_path / damaged).write_bytes(whole[damaged])
    take(tmp_path).close()


def test_no_file_that_is_removed_lets_a_second_process_in(tmp_path: Path) -> None:
    first = take(tmp_path)
    for each in tmp_path.iterdir():
        each.unlink()
    with pytest.raises(DirectoryInUse):
        take(tmp_path)
    first.close()


def test_the_lock_file_of_an_earlier_version_is_respected_and_held(tmp_path: Path) -> None:
    take(tmp_path).close()
    with (tmp_path / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for attempt in (take, DataDirectory.look):
            with pytest.raises(DirectoryInUse):
                attempt(tmp_path)
    first = take(tmp_path)
    with (tmp_path / "lock").open("wb") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    first.close()


async def test_a_store_whose_directory_was_moved_writes_nothing_into_the_one_in_its_place(tmp_path: Path) -> None:
    path, moved = tmp_path / "data", tmp_path / "moved"
    durability, store = make(path)
    durability.open()
    durability.recover(store.containers)
    await durability.start()
    await until(lambda: durability.committer.has_next)
    path.rename(moved)
    take(path, containers=2, held=(0, 1)).close()
    before = content(path)
    store.create_segment("scope/stream/0.#epoch.0", now_ms=1)
    await durability.committer.settled()
    with pytest.raises(JournalFailed, match=f"another directory is at {path} now"):
        await durability.checkpoint()
    await durability.close()
    assert content(path) == before
    async with running(moved) as (_, again):
        assert "scope/stream/0.#epoch.0" in again.containers[again.container_id_of("scope/stream/0.#epoch.0")].segments


def test_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    take(tmp_path).close()
    manifest = tmp_path / "MANIFEST"
    body = manifest.read_bytes().partition(b"\n")[2]
    manifest.write_bytes(b"segstore data 2 %08x\n" % crc32(b"2\n" + body) + body)
    before = content(tmp_path)
    with pytest.raises(DirectoryNewer, match=r"is in format 2, and this version of segstore reads format 1; start"):
        take(tmp_path)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"containers": 8, "held": tuple(range(8))}, "a cluster of 4 containers, and this one has 8; start it with"),
        ({"held": (0, 2)}, "holds containers 0, 1, 2, 3, and this store owns 0, 2; start it with --own 0,1,2,3"),
        ({"cluster": "other"}, "belongs to cluster ours, and this one is other"),
    ],
    ids=["containers", "own", "cluster"],
)
def test_another_clusters_directory_is_refused(tmp_path: Path, given: dict[str, object], said: str) -> None:
    take(tmp_path, cluster="ours").close()
    before = content(tmp_path)
    with pytest.raises(DirectoryForeign, match=said):
        take(tmp_path, **given)  # type: ignore[arg-type]
    assert content(tmp_path) == before


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(DirectoryForeign, match=r"is not a data directory, it holds 'letters.txt'"):
        take(tmp_path)
    assert sorted(content(tmp_path)) == ["letters.txt"]


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryForeign, match="is not a directory"):
        take(tmp_path / "file")


def test_data_without_a_manifest_is_not_taken_for_new(tmp_path: Path) -> None:
    take(tmp_path).close()
    (tmp_path / "MANIFEST").unlink()
    (tmp_path / "chunk-0000000001").write_bytes(b"data")
    with pytest.raises(DirectoryDamaged, match=r"MANIFEST is damaged: it is missing, and chunk-0000000001 is there"):
        take(tmp_path)


class ReadOnly(Files):
    def create(self, path: Path) -> int:
        raise OSError(errno.EROFS, "Read-only file system")


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    take(tmp_path).close()
    before = content(tmp_path)
    with pytest.raises(DirectoryUnusable, match="cannot be used as a data directory: Read-only file system"):
        take(tmp_path, files=ReadOnly())
    assert content(tmp_path) == before


def test_a_manifest_that_could_not_be_replaced_is_the_old_one(tmp_path: Path) -> None:
    class Full(Files):
        def write(self, descriptor: int, data: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    first = take(tmp_path)
    first.change(numbers=5)
    first.files = Full()
    with pytest.raises(OSError, match="No space left"):
        first.change(numbers=6)
    assert first.manifest.numbers == 5
    first.close()
    second = take(tmp_path)
    assert second.manifest.numbers == 5
    second.close()


def test_the_command_line_says_it_in_one_sentence(tmp_path: Path) -> None:
    take(tmp_path, containers=8, held=tuple(range(8))).close()
    found = subprocess.run(
        [sys.executable, "-m", "segstore", "serve", "--port", "0", "--controller-port", "0", "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 1
    assert found.stdout == ""
    assert found.stderr == (
        f"segstore: {tmp_path} belongs to a cluster of 8 containers, and this one has 4; "
        "start it with --containers 8, or choose another directory\n"
    )


def test_memory_bytes_is_for_a_data_directory() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "segstore", "serve", "--port", "0", "--memory-bytes", "100000000"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 2
    assert "memory_bytes needs data" in found.stderr
    assert issubclass(DirectoryUnusable, DataError)


FIRST_READS = """
import os
import sys
import threading
from pathlib import Path

from segstore.server.durable.data_directory import DataDirectory
from segstore.server.durable.files import Files

sys.setswitchinterval(1e-6)
ended = []
for _ in range(100):
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
    assert (found.stdout, found.stderr) == ("0 of 100 have crashed\n", "")
