"""What a data directory does with files: all of it or an error, for their owner alone, regular ones only."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore.server.durable import Files
from segstore.server.durable.files import open_regular, read_regular, write_group


def test_a_file_is_made_once_and_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    descriptor = Files().create(path)
    os.close(descriptor)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        Files().create(path)


IN_PYTHON = getattr(write_group, "__wrapped__", write_group)
BOTH = [write_group, IN_PYTHON]


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
    IN_PYTHON(descriptor, 10, 1, b"", b"efg", -1, b"")
    files.sync(descriptor)
    os.close(descriptor)
    assert read_regular(path) == b"01abcd6789" + crc32(b"efg").to_bytes(4) + b"efg"


def test_a_file_is_replaced_and_removed_also_twice(tmp_path: Path) -> None:
    files, new, old = Files(), tmp_path / "new", tmp_path / "old"
    new.write_bytes(b"new")
    old.write_bytes(b"old")
    files.replace(new, old)
    assert [each.name for each in tmp_path.iterdir()] == ["old"]
    assert old.read_bytes() == b"new"
    files.remove(old)
    files.remove(old)
    assert list(tmp_path.iterdir()) == []


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


def page(head: bytes, payload: bytes) -> bytes:
    return (head + crc32(head + payload).to_bytes(4) + payload).ljust(64, b"\0")


@pytest.mark.parametrize("write", BOTH)
@given(data=st.data())
@settings(max_examples=50)
def test_a_group_has_its_checksum_and_fills_pages(write: Callable[..., int], data: st.DataObject) -> None:
    head, payload = data.draw(st.binary(max_size=40)), data.draw(st.binary(max_size=40) | st.binary(min_size=3000))
    at, unit = data.draw(st.integers(0, 100)), data.draw(st.integers(1, 5000))
    descriptor = os.memfd_create("a file in memory")
    try:
        size = write(descriptor, at, unit, head, payload, -1, b"")
        group = head + crc32(head + payload).to_bytes(4) + payload
        assert os.pread(descriptor, at + size + 1, 0) == bytes(at) + group + bytes(-len(group) % unit)
        assert size == len(group) + -len(group) % unit
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("write", BOTH)
def test_groups_and_notes_are_written_where_they_belong(tmp_path: Path, write: Callable[..., int]) -> None:
    path, notes = tmp_path / "file", tmp_path / "notes"
    descriptor, noted = Files().create(path), Files().create(notes)
    assert write(descriptor, 0, 64, b"head", b"first", noted, b"first") == 64
    assert write(descriptor, 64, 64, b"", b"second", noted, b"next") == 64
    os.close(descriptor)
    os.close(noted)
    assert (path.read_bytes(), notes.read_bytes()) == (page(b"head", b"first") + page(b"", b"second"), b"nextt")


def test_groups_are_synced_when_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    path = tmp_path / "file"
    descriptor = Files().create(path)
    monkeypatch.setattr(os, "fdatasync", lambda _: synced.append(path.read_bytes()))
    IN_PYTHON(descriptor, 0, 64, b"head", b"data", descriptor, b"note")
    os.close(descriptor)
    assert synced == [page(b"head", b"data")], "a note is written after that"
    assert path.read_bytes().startswith(b"note")


@pytest.mark.parametrize("write", BOTH)
def test_what_cannot_be_written_or_synced_is_an_error(tmp_path: Path, write: Callable[..., int]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    with path.open("rb+") as file, path.open("rb") as read_only:
        with pytest.raises(OSError, match="Bad file descriptor"):
            write(read_only.fileno(), 0, 64, b"head", b"data", file.fileno(), b"note")
        assert path.read_bytes() == b"x", "what failed is not noted"
        with pytest.raises(OSError, match="Bad file descriptor"):
            write(file.fileno(), 0, 64, b"head", b"data", read_only.fileno(), b"note")
        assert path.read_bytes() == page(b"head", b"data")
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match="Illegal seek"):
            write(writing, 0, 64, b"head", b"data", -1, b"")
    finally:
        os.close(reading)
        os.close(writing)
