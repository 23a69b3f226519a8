"""Journals: append-only files that make commit groups durable.

A group contains the operations of all containers, and of the controller, that were executed while the previous group
was written: bytes, and the numbers of the first and last batch. A journal is an SQLite database in WAL mode with
`synchronous=FULL` and one row per group.

SQLite never checkpoints here: the database file stays as it was created, with the CRC recorded in the manifest, and the
write-ahead log, whose frames SQLite checksums, is the journal. The log is filled with zeros before use, because
overwriting costs the disk less than growing a file. Only the process that created a database writes to it, so recovery
reads it and never changes it. Closing a database would make SQLite fold the log into it, so a second, read-only
connection is closed last.

SQLite silently ends recovery at the first invalid frame. So the reader compares the last group with the number in the
directory's `committed` file, and the numbers of groups must be consecutive.

Refused with `JournalDamaged`: a corrupt journal.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from segstore.server.durable.files import Files, open_regular, read_regular

_PAGE_BYTES: Final = 4096
_FRAME_BYTES: Final = _PAGE_BYTES + 24
_WAL_HEADER: Final = Struct(">8I")
_FRAME_HEADER: Final = Struct(">6I")
_WAL_MAGIC: Final = 0x377F0682
_PART_BYTES: Final = 256 * 1024 * 1024
_ZEROS: Final = bytes(1024 * 1024)
_SCHEMA: Final = (
    "CREATE TABLE groups (id INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, "
    "parts INTEGER NOT NULL, payload BLOB NOT NULL, crc INTEGER NOT NULL)"
)
_INSERT: Final = "INSERT INTO groups (first, last, parts, payload, crc) VALUES (?, ?, ?, ?, ?)"
_OF_THE_SYSTEM: Final = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)
"""Error codes of SQLite for system failures, as opposed to corrupt data."""
_STEPS: Final = 100_000
"""Maximum number of steps of SQLite's virtual machine for reading a journal, plus one per byte; a row takes ten."""
_COMMITTED: Final = "SELECT first, last, parts, payload, crc FROM groups ORDER BY id"


class JournalFailed(Exception):
    """A group could not be written: nothing is acknowledged until the store is restarted."""


class JournalDamaged(Exception):
    """A journal is corrupt; the text names the file and what is wrong."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} is damaged: {what}")
        self.path = path
        self.what = what


class Group(NamedTuple):
    """Batches `first` to `last`, committed together."""

    first: int
    last: int
    payload: bytes


_BEGIN: Final = Group(-1, -1, b"")


def file_names(number: int) -> tuple[str, str, str]:
    """Returns the names of the database, the write-ahead log and SQLite's shared memory, which can be discarded."""
    name = f"journal-{number:010d}.sqlite"
    return name, f"{name}-wal", f"{name}-shm"


class SqliteJournal:
    """A journal in a file of its own, created by this process, which the committer's thread writes.

    `base_crc`, the CRC of the database file, which does not change, is an argument for `read_journal`.
    """

    def __init__(self, path: Path, files: Files, filled_bytes: int = 0) -> None:
        """Creates the file, durable and empty; its log is filled with zeros up to `filled_bytes`.

        Raises `OSError` and `sqlite3.Error`.
        """
        self.path = path
        os.close(files.create(path))
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._insertion = self._db.cursor()
        self._guard: sqlite3.Connection | None = None
        try:
            db = self._db
            db.execute(f"PRAGMA page_size={_PAGE_BYTES}")
            db.execute("PRAGMA synchronous=FULL")
            db.execute(_SCHEMA)
            (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                raise OSError(f"SQLite cannot keep a write-ahead log at {path}: it offers {mode!r}")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA wal_autocheckpoint=0")
            self.base_crc = crc32(path.read_bytes())
            # An empty first group creates the log, so that it can be filled.
            self._insert(_BEGIN, 1)
            self._guard = _read_only(path)
            self._guard.execute("SELECT count(*) FROM groups").fetchone()
            self._fill(files, filled_bytes)
            files.sync_folder(path.parent)
        except BaseException:
            self.close()
            raise
        self._room_bytes = filled_bytes

    @property
    def is_full(self) -> bool:
        """Whether approximately all of the pre-filled space is used, so that it is time for another journal."""
        return self._room_bytes <= 0

    def append(self, group: Group) -> None:
        """Writes a group, which is durable at return. After any exception the journal is not written to again."""
        size = len(group.payload)
        if size <= _PART_BYTES:
            self._insert(group, 1)
        else:  # a row holds less than a gigabyte
            starts = range(0, size, _PART_BYTES)
            self._db.execute("BEGIN")
            for at in starts:
                self._insert(group._replace(payload=group.payload[at : at + _PART_BYTES]), len(starts))
            self._db.execute("COMMIT")
        self._room_bytes -= _FRAME_BYTES * (2 + size // (_PAGE_BYTES - 4))

    def close(self) -> None:
        """Closes the database and leaves its files as they are."""
        self._db.close()
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def _insert(self, group: Group, parts: int) -> None:
        first, last, payload = group
        self._insertion.execute(_INSERT, (first, last, parts, payload, crc32(payload)))

    def _fill(self, files: Files, size: int) -> None:
        log = self.path.with_name(self.path.name + "-wal")
        descriptor = os.open(log, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            at = os.fstat(descriptor).st_size
            while at < size:
                some = _ZEROS[: size - at]
                files.write_at(descriptor, some, at)
                at += len(some)
            files.sync(descriptor)
        finally:
            os.close(descriptor)


def _read_only(path: Path) -> sqlite3.Connection:
    name = str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return sqlite3.connect(f"file:{name}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)


def read_journal(path: Path, base_crc: int, copied_to: Path | None = None) -> Iterator[Group]:
    """Yields the groups of a journal that is no longer written to, in order. Raises `JournalDamaged`, `OSError`.

    copied_to: a folder for a copy that is read instead, because SQLite creates a file next to the one it reads.
    The caller must check with the number of the last group that the journal is complete.
    """
    base = read_regular(path)
    if crc32(base) != base_crc:
        raise JournalDamaged(path, "the database does not have the checksum that the manifest keeps of it")
    log = path.with_name(path.name + "-wal")
    _check_header(log)
    source = path
    if copied_to is not None:
        source = copied_to / path.name
        for each in (path, log):
            shutil.copyfile(each, copied_to / each.name)
    # SQLite rebuilds its shared memory from the log.
    source.with_name(path.name + "-shm").unlink(missing_ok=True)
    try:
        db = _read_only(source)
        try:
            # The database may be forged: only our own table is read, and no more bytes than the files have, however
            # its pages refer to each other.
            room = len(base) + log.stat().st_size
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(room, 0x7FFFFFFF))
            db.set_progress_handler(lambda: 1, min(room + _STEPS, 0x7FFFFFFF))
            db.execute("PRAGMA cell_size_check=ON")
            if db.execute("SELECT sql FROM sqlite_master").fetchmany(2) != [(_SCHEMA,)]:
                raise JournalDamaged(path, "it is not a journal database")
            held: list[bytes] = []
            rows = db.execute(_COMMITTED)
            if (begin := rows.fetchone()) is None or begin[1] != _BEGIN.last:
                raise JournalDamaged(log, "the group that each journal begins with is not there")
            for first, last, parts, payload, crc in rows:
                if not (type(first) is type(last) is type(parts) is int):
                    raise JournalDamaged(path, "a group has no numbers")
                if type(payload) is not bytes or crc32(payload) != crc:
                    raise JournalDamaged(path, f"group {last} does not have its checksum")
                room -= len(payload)
                if room < 0:
                    raise JournalDamaged(path, "its groups have more bytes than its files")
                held.append(payload)
                if len(held) == parts:
                    yield Group(first, last, payload if parts == 1 else b"".join(held))
                    held.clear()
            if held:
                raise JournalDamaged(path, "its last group is not whole")
        finally:
            db.close()
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_THE_SYSTEM:
            # SQLite creates the shared memory, a file next to the database, even for reading.
            raise OSError(f"SQLite cannot read {path.name}: {error}") from error
        raise JournalDamaged(path, f"SQLite says: {error}") from error


def _check_header(log: Path) -> None:
    """Checks the log's header, because SQLite treats a log with an invalid header as empty."""
    with open_regular(log) as file:
        header = file.read(_WAL_HEADER.size)
    if len(header) < _WAL_HEADER.size:
        raise JournalDamaged(log, f"it has {len(header)} bytes, and its header {_WAL_HEADER.size}")
    words = _WAL_HEADER.unpack(header)
    big = words[0] & 1
    s1 = s2 = 0
    data = Struct(">6I" if big else "<6I").unpack(header[:24])
    for index in range(0, 6, 2):
        s1 = s1 + data[index] + s2 & 0xFFFFFFFF
        s2 = s2 + data[index + 1] + s1 & 0xFFFFFFFF
    if words[0] & ~1 != _WAL_MAGIC or (s1, s2) != words[6:]:
        raise JournalDamaged(log, "its header does not have its checksum")


def padding_fault(log: Path) -> int | None:
    """Returns the offset of the first non-zero byte after a log's frames, None if there is none.

    Such bytes are not part of the journal: they are corruption of unused space, or a write cut short by a power loss.
    """
    with open_regular(log) as file:
        size = os.fstat(file.fileno()).st_size
        header = _WAL_HEADER.unpack(file.read(_WAL_HEADER.size))
        at = _WAL_HEADER.size
        while at + _FRAME_HEADER.size <= size:
            file.seek(at)
            frame = _FRAME_HEADER.unpack(file.read(_FRAME_HEADER.size))
            if frame[2:4] != header[4:6] or frame[0] == 0:
                break
            at += _FRAME_HEADER.size + header[2]
        file.seek(at)
        while data := file.read(len(_ZEROS)):
            if data.strip(b"\0"):
                return at + len(data) - len(data.lstrip(b"\0"))
            at += len(data)
    return None
