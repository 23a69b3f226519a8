"""Journals: append-only files that make commit groups durable.

A group contains the operations of all containers, and of the controller, that were executed while the previous group
was written: bytes, and the numbers of the first and last batch. A file consists of pages of 4 KiB:

    header   magic, version, salt, CRC; the manifest keeps the CRC
    group    salt, first batch, last batch, size, CRC of all this and the payload; payload; zeros up to the next page
    …
    zeros    filled in ahead, because overwriting costs the disk less than growing a file

A group is written, then synced with `fdatasync`. Where the file system supports direct I/O, it is written past the page
cache: this costs less, and a journal is read only at a start. Groups are numbered without gaps, and a group is written
only after the previous group is on disk. The salt is random, so bytes of another journal, or of a file that had these
blocks before, are never taken for a group.

Three failures are covered. 1. The process is killed: its writes are on the disk or in the page cache, so at most the
last group is torn. 2. A loss of power: any sectors of the last group, which was not acknowledged, are missing. No write
touches a page with earlier groups. So an invalid group ends the journal if it was never acknowledged, which the caller
decides by the number in the directory's `committed` file. 3. Corruption of bytes at rest: an invalid group before a
valid group was on disk once, so it is corrupt, acknowledged or not.

Refused with `DataDamaged`: a corrupt journal. Sizes are checked before anything is allocated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BufferedReader
from mmap import mmap
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple
from zlib import crc32

import msgspec

from segstore.server.durable.data_directory import DataDirectory, JournalFile
from segstore.server.durable.files import Files, file_name, open_regular
from segstore.server.store import DataDamaged

if TYPE_CHECKING:
    from segstore.server.durable.recovery import Recovery

PAGE_BYTES: Final = 4096
_MAGIC: Final = b"SEGJRNL1"
_HEADER: Final = Struct(">8s16s")
_GROUP: Final = Struct(">16sQQQ")
_SALT_BYTES: Final = 16
_CRC_BYTES: Final = 4
_MEMORY_BYTES: Final = 256 * 1024
"""Size of a single write to a file."""
_ZEROS: Final = bytes(1024 * 1024)


class JournalFailed(Exception):
    """A group could not be written: nothing is acknowledged until the store is restarted."""


class Group(NamedTuple):
    """Batches `first` to `last`, committed together."""

    first: int
    last: int
    payload: bytes


class JournalWriter:
    """A journal in a file of its own, created by this process, which the committer's thread writes.

    `base_crc`, the CRC of the header, is an argument for `JournalReader`.
    """

    def __init__(self, path: Path, files: Files, filled_bytes: int = 0) -> None:
        """Creates the file, durable, without groups, filled with zeros. Raises `OSError`.

        filled_bytes: size of the file, whole pages; any other size is written without direct I/O.
        """
        self.path = path
        self._files = files
        self._filled_bytes = filled_bytes
        self._end = PAGE_BYTES
        # A first byte that is not zero tells where a group starts in unused space.
        self._salt = b"\x01" + os.urandom(_SALT_BYTES - 1)
        header = _HEADER.pack(_MAGIC, self._salt)
        self.base_crc = crc32(header)
        # Direct I/O takes memory that begins at a page. It is shared, because it must not be copied on a fork.
        self._memory = memory = memoryview(mmap(-1, _MEMORY_BYTES))
        self._descriptor = descriptor = files.create_direct(path)
        try:
            page = header + self.base_crc.to_bytes(_CRC_BYTES)
            memory[: len(page)] = page
            files.write(descriptor, memory[:PAGE_BYTES])
            memory[: len(page)] = bytes(len(page))
            for at in range(PAGE_BYTES, filled_bytes, len(memory)):
                files.write(descriptor, memory[: filled_bytes - at])
            files.sync(descriptor)
            files.sync_folder(path.parent)
        except BaseException:
            self.close()
            raise

    @property
    def is_full(self) -> bool:
        """Whether the pre-filled space is used, so that it is time for another journal."""
        return self._end >= self._filled_bytes

    def append(self, group: Group) -> None:
        """Writes a group, which is durable at return. After any exception the journal is not written to again."""
        first, last, payload = group
        head = _GROUP.pack(self._salt, first, last, len(payload))
        head += crc32(payload, crc32(head)).to_bytes(_CRC_BYTES)
        memory, at, used, left = self._memory, self._end, len(head), memoryview(payload)
        memory[:used] = head
        while len(left) > len(memory) - used:
            memory[used:] = left[: len(memory) - used]
            left = left[len(memory) - used :]
            self._files.write_at(self._descriptor, memory, at)
            at, used = at + len(memory), 0
        stop = used + len(left)
        end = _pages(stop)
        memory[used:stop] = left
        memory[stop:end] = bytes(end - stop)
        self._files.write_durably(self._descriptor, memory[:end], at)
        self._end = at + end

    def close(self) -> None:
        """Closes the file. Can be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class JournalReader:
    """Iterates once over the groups of a journal that is no longer written to, in order.

    The caller must check with the number of the last group that the journal is complete.

    Attributes:
        path: the file that errors name.
        end: offset of the byte after the last group that was read.
        stray: offset of the first nonzero byte outside all groups, or None. Such bytes are corruption of unused space,
            or a write cut short.
        is_cut_short: whether all such bytes belong to a group at `end` whose write was not finished, as after a kill.
    """

    def __init__(self, path: Path, base_crc: int) -> None:
        self.path = path
        self.end = PAGE_BYTES
        self.stray: int | None = None
        self.is_cut_short = False
        self._base_crc = base_crc

    def __iter__(self) -> Iterator[Group]:
        """Raises `DataDamaged`, `OSError`."""
        with BufferedReader(open_regular(self.path)) as file:
            size = os.fstat(file.fileno()).st_size
            header = file.read(_HEADER.size)
            crc = file.read(_CRC_BYTES)
            if len(crc) < _CRC_BYTES or not crc32(header) == int.from_bytes(crc) == self._base_crc:
                raise DataDamaged(str(self.path), "its header does not have the checksum that the manifest keeps of it")
            magic, salt = _HEADER.unpack(header)
            if magic != _MAGIC:
                raise DataDamaged(str(self.path), f"its header begins with {magic!r}")
            self._see_zeros(file.read(PAGE_BYTES - file.tell()), file.tell())
            while (group := _read_group(file, salt, size - self.end)) is not None:
                self.end = _pages(file.tell())
                self._see_zeros(file.read(self.end - file.tell()), file.tell())
                yield group
            file.seek(self.end)
            before, head = self.stray, file.read(_GROUP.size)
            stop = self.end
            if len(head) == _GROUP.size and head.startswith(salt):
                stop += _GROUP.size + _CRC_BYTES + _GROUP.unpack(head)[3]
                self.is_cut_short = before is None
            file.seek(self.end)
            while data := file.read(len(_ZEROS)):
                self._see_zeros(data, file.tell())
                begin = file.tell() - len(data)
                if data[max(0, stop - begin) :].strip(b"\0"):
                    self.is_cut_short = False
                for at in range(begin, file.tell(), PAGE_BYTES):
                    if at > self.end and data.startswith(salt, at - begin):
                        raise DataDamaged(
                            str(self.path),
                            f"the group at byte {self.end} is not valid, and another one is at byte {at}",
                        )

    def _see_zeros(self, data: bytes, end: int) -> None:
        """Checks bytes in no group, which end at an offset. At most as many as in `_ZEROS`."""
        if self.stray is None and data != _ZEROS[: len(data)]:
            self.stray = end - len(data.lstrip(b"\0"))


def _read_group(file: BinaryIO, salt: bytes, most_bytes: int) -> Group | None:
    """Reads the group, of at most `most_bytes`, at the file's position; returns None if it is invalid."""
    head, crc = file.read(_GROUP.size), file.read(_CRC_BYTES)
    if len(crc) < _CRC_BYTES or not head.startswith(salt):
        return None
    _, first, last, payload_bytes = _GROUP.unpack(head)
    if payload_bytes > most_bytes - _GROUP.size - _CRC_BYTES:
        return None
    payload = file.read(payload_bytes)
    return Group(first, last, payload) if crc32(payload, crc32(head)) == int.from_bytes(crc) else None


def _pages(size: int) -> int:
    """Rounds a size or an offset up to whole pages."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


JournalMaker = Callable[[Path, Files, int], JournalWriter]


class Journals:
    """Gives numbers to the files of an open data directory, and makes journals.

    Journals, chunk files and snapshots have numbers from one sequence. Invariant: a number is given again only if the
    files with it, which no manifest names, are gone.

    Attributes:
        number: the last number given to a file.
        ended: the finished journals, with the last batch of each journal.
        present: the journal in use and, once it exists, the next journal.
    """

    def __init__(self, directory: DataDirectory, make: JournalMaker) -> None:
        self.number = directory.manifest.numbers
        self.ended: list[tuple[JournalFile, int]] = []
        self.present: list[JournalFile] = []
        self._directory = directory
        self._make = make

    def make_first(self, recovery: Recovery, filled_bytes: int) -> JournalWriter:
        """Returns a journal that starts with the last groups of the old journals, which are cut off there."""
        directory, tail, before = self._directory, recovery.tail, self._directory.manifest.batch
        first = tail[0].first if tail else recovery.last + 1
        for entry, last in recovery.journals:
            end = min(last, first - 1)
            if end > before:
                self.ended.append((msgspec.structs.replace(entry, last=end), end))
            before = last
        entries = [entry for entry, _ in self.ended]
        directory.manifest = msgspec.structs.replace(directory.manifest, journals=tuple(entries))
        again = Group(first, recovery.last, b"".join(group.payload for group in tail)) if tail else None
        journal, entry = self.make(filled_bytes, again)
        self.present = [entry]
        numbers = {entry.number for entry in entries}
        with suppress(OSError):  # the next start removes them
            self.remove(entry.name for entry, _ in recovery.journals if entry.number not in numbers)
        return journal

    def make(self, filled_bytes: int, begin: Group | None = None) -> tuple[JournalWriter, JournalFile]:
        """Returns a new journal, and its record in the manifest. begin: its first group."""
        directory, before = self._directory, self.number
        number = self.next_number()
        try:
            journal = self._make(directory.path / file_name("journal", number), directory.files, filled_bytes)
        except BaseException:
            self.undo(before)
            raise
        entry = JournalFile(number, journal.base_crc)
        try:
            if begin is not None:
                journal.append(begin)
            directory.change(journals=(*directory.manifest.journals, entry), numbers=number)
        except BaseException:
            journal.close()
            raise
        return journal, entry

    def switched(self, last: int) -> None:
        """Records that the present journal has ended with batch `last`."""
        self.ended.append((self.present.pop(0), last))

    def next_number(self) -> int:
        """Returns the next number. Raises `OSError` if the directory is no longer at its path."""
        self._directory.check_place()
        self.number += 1
        return self.number

    def undo(self, before: int) -> None:
        """Removes the files numbered after `before`, which no manifest names, and reuses the numbers."""
        with suppress(OSError):  # the next start removes them
            for number in range(before + 1, self.number + 1):
                self.remove(file_name(kind, number) for kind in ("journal", "chunk", "snapshot"))
            self.number = before

    def remove(self, names: Iterable[str]) -> None:
        """Removes files, as far as they exist."""
        for name in names:
            self._directory.files.remove(self._directory.path / name)
