"""What a data directory does with files: all of it or an error, for their owner alone, regular ones only."""

import errno
import fcntl
import os
import socket
from mmap import mmap
from pathlib import Path
from typing import Final

import pytest

from segstore.server.durable import Files
from segstore.server.durable.files import open_regular, read_regular
from segstore.server.durable.journal import Group, JournalReader, JournalWriter

O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)


def test_a_file_is_made_once_and_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    descriptor = Files().create(path)
    os.close(descriptor)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        Files().create(path)


def test_all_is_written_though_the_system_takes_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, pwrite = os.write, os.pwrite
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: pwrite(descriptor, data[:3], at))
    files, path = Files(), tmp_path / "file"
    descriptor = files.create(path)
    files.write(descriptor, b"0123456789")
    files.write(descriptor, b"")
    files.write_at(descriptor, b"abcd", 2)
    Files().write_durably(descriptor, b"efg", 6)
    files.sync(descriptor)
    os.close(descriptor)
    assert read_regular(path) == b"01abcdefg9"


def test_replacing_a_file_and_making_a_folder_wait_until_the_name_is_on_disk(tmp_path: Path) -> None:
    class Noted(Files):
        def __init__(self) -> None:
            self.synced: list[Path] = []

        def sync_folder(self, path: Path) -> None:
            self.synced.append(path)
            super().sync_folder(path)

    files, path = Noted(), tmp_path / "a" / "b"
    files.make_folder(path)
    assert files.synced[-2:] == [tmp_path, tmp_path / "a"]
    assert {each.stat().st_mode & 0o777 for each in (path, path.parent)} == {0o700}
    files.synced.clear()
    files.make_folder(path)
    assert files.synced == [tmp_path / "a"], "it may have been made by a process that was killed before that"
    (path / "new").write_bytes(b"")
    files.synced.clear()
    files.replace(path / "new", path / "old")
    assert files.synced == [path]


def test_a_parent_folder_that_belongs_to_another_is_left_to_it(tmp_path: Path) -> None:
    class Forbidden(Files):
        def sync_folder(self, path: Path) -> None:
            raise PermissionError(errno.EACCES, "not yours")

    Forbidden().make_folder(tmp_path / "a")
    assert (tmp_path / "a").is_dir()


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    regular, link, pipe, place = (tmp_path / name for name in ("file", "link", "pipe", "socket"))
    regular.write_bytes(b"data")
    link.symlink_to(regular)
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        opened = set(Path("/dev/fd").iterdir())
        for path in (link, pipe, place, tmp_path):
            with pytest.raises(OSError, match="is not a regular file") as refused:
                read_regular(path)
            assert refused.value.errno == errno.EINVAL
            assert str(path) in str(refused.value)
        assert set(Path("/dev/fd").iterdir()) == opened
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nowhere")
    with open_regular(regular) as file:
        assert (file.read(2), file.writable()) == (b"da", False)


def test_data_are_synced_when_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    path = tmp_path / "file"
    descriptor = Files().create(path)
    monkeypatch.setattr(os, "fdatasync", lambda _: synced.append(path.read_bytes()))
    Files().write_durably(descriptor, b"data", 0)
    Files().write_durably(descriptor, b"more", 4)
    os.close(descriptor)
    assert synced == [b"data", b"datamore"]


def is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & O_DIRECT)


def test_a_file_that_is_written_directly_has_what_was_written(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "file"
    pages = memoryview(mmap(-1, 8192))
    pages[:] = b"0123456789abcdef" * 512
    descriptor = files.create_direct(path)
    try:
        os.close(os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT | O_DIRECT))
        assert is_direct(descriptor)
    except OSError:
        assert not is_direct(descriptor)
    files.write(descriptor, pages)
    files.write_durably(descriptor, pages[:4096], 8192)
    assert path.read_bytes() == bytes(pages) + bytes(pages[:4096])
    files.write(descriptor, b"behind")  # no whole page: from here on through the page cache
    files.write(descriptor, pages[7:9])
    os.close(descriptor)
    assert path.read_bytes()[8192:8200] == b"behind78"


def test_a_file_system_that_cannot_write_directly_writes_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_flags = fcntl.fcntl

    def refused(descriptor: int, what: int, flags: int = 0) -> int:
        if what == fcntl.F_SETFL and flags & O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return set_flags(descriptor, what, flags)

    monkeypatch.setattr(fcntl, "fcntl", refused)
    path = tmp_path / "journal"
    made = JournalWriter(path, Files(), 16 * 1024)
    groups = [Group(1, 1, b"data"), Group(2, 2, bytes(2_000_000))]
    for group in groups:
        made.append(group)
    made.close()
    assert list(JournalReader(path, made.base_crc)) == groups
