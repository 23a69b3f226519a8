"""Journals of directories in format 1, which are read and never written: a group is a row of an SQLite database.

The database file stays as it was created, with the CRC recorded in the manifest. Its write-ahead log, whose frames
SQLite checksums, has the rows. It was filled with zeros before use.

SQLite silently ends recovery at the first invalid frame. So the caller must compare the last group with the number in
the directory's `committed` file.

Refused with `JournalDamaged`: a corrupt journal.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from segstore.server.durable.files import open_regular, read_regular
from segstore.server.durable.journal import ZEROS, Group, JournalDamaged, JournalReader

_WAL_HEADER: Final = Struct(">8I")
_FRAME_HEADER: Final = Struct(">6I")
_WAL_MAGIC: Final = 0x377F0682
_SCHEMA: Final = (
    "CREATE TABLE groups (id INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, "
    "parts INTEGER NOT NULL, payload BLOB NOT NULL, crc INTEGER NOT NULL)"
)
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
_BEGIN: Final = -1
"""Batch number of the empty group that each journal begins with."""


def sqlite_names(number: int) -> tuple[str, str]:
    """Returns the names of the database and the write-ahead log. SQLite creates a third file, `…-shm`, to read them; it
    holds no data."""
    name = f"journal-{number:010d}.sqlite"
    return name, f"{name}-wal"


class SqliteReader(JournalReader):
    """As `JournalReader`; `path` is the write-ahead log, and `end` is known after the iteration."""

    def __init__(self, folder: Path, number: int, base_crc: int, copied_to: Path | None = None) -> None:
        """copied_to: folder for a copy that is read instead, because SQLite creates a file next to the one it reads."""
        base, log = sqlite_names(number)
        super().__init__(folder / log, base_crc)
        self._base = folder / base
        self._copied_to = copied_to

    def __iter__(self) -> Iterator[Group]:
        path, log, copied_to = self._base, self.path, self._copied_to
        base = read_regular(path)
        if crc32(base) != self._base_crc:
            raise JournalDamaged(path, "the database does not have the checksum that the manifest keeps of it")
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
                if (begin := rows.fetchone()) is None or begin[1] != _BEGIN:
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
        self._look_behind_frames()

    def _look_behind_frames(self) -> None:
        with open_regular(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            header = _WAL_HEADER.unpack(file.read(_WAL_HEADER.size))
            self.end = _WAL_HEADER.size
            while self.end + _FRAME_HEADER.size <= size:
                file.seek(self.end)
                frame = _FRAME_HEADER.unpack(file.read(_FRAME_HEADER.size))
                if frame[2:4] != header[4:6] or frame[0] == 0:
                    break
                self.end += _FRAME_HEADER.size + header[2]
            file.seek(self.end)
            while data := file.read(len(ZEROS)):
                self.see_zeros(data, file.tell())


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


def _read_only(path: Path) -> sqlite3.Connection:
    name = str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return sqlite3.connect(f"file:{name}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
