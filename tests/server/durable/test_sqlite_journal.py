"""Journals of format 1, which are SQLite databases: read as they were written; forged ones are refused as damaged, in
bounded time and memory.
"""

from __future__ import annotations

import shutil
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.server.durable import sqlite_journal
from segstore.server.durable.journal import Group, JournalDamaged
from segstore.server.durable.sqlite_journal import SqliteReader, sqlite_names

SCHEMA = sqlite_journal._SCHEMA
INSERT = "INSERT INTO groups (first, last, parts, payload, crc) VALUES (?, ?, ?, ?, ?)"
BEGIN = (-1, -1, 1, b"", 0)


def group(number: Any, payload: Any = b"payload", parts: Any = 1, *, last: Any = None) -> tuple[Any, ...]:
    crc = crc32(payload) if isinstance(payload, bytes) else 0
    return number, number if last is None else last, parts, payload, crc


def made(folder: Path, build: Callable[[sqlite3.Connection], object]) -> tuple[Path, int]:
    """Builds a database in WAL mode, with its log; returns its path and the checksum for a manifest."""
    (folder / "made").mkdir()
    path = folder / sqlite_names(1)[0]
    source = folder / "made" / path.name
    db = sqlite3.connect(source, isolation_level=None)
    db.execute("PRAGMA page_size=4096")
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA wal_autocheckpoint=0")
    db.execute("PRAGMA synchronous=OFF")
    build(db)
    for name in (source.name, f"{source.name}-wal"):
        shutil.copyfile(folder / "made" / name, folder / name)
    db.close()
    return path, crc32(path.read_bytes())


def reader(path: Path, base_crc: int) -> SqliteReader:
    return SqliteReader(path.parent, 1, base_crc)


def read(path: Path, base_crc: int) -> list[Group]:
    return list(reader(path, base_crc))


def rows(*given: tuple[Any, ...], schema: str = SCHEMA) -> Callable[[sqlite3.Connection], object]:
    def build(db: sqlite3.Connection) -> None:
        db.execute(schema)
        db.executemany(INSERT, (BEGIN, *given))

    return build


ENDLESS = "CREATE VIEW groups AS WITH RECURSIVE c(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM c) SELECT "


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda db: db.execute(ENDLESS + "id, 0 AS first FROM c WHERE id < 0"), "not a journal database"),
        (lambda db: db.execute(ENDLESS + "id, zeroblob(1000000000) AS payload FROM c"), "not a journal database"),
        (
            rows(schema=SCHEMA.replace("payload BLOB NOT NULL", "payload BLOB NOT NULL DEFAULT x''")),
            "not a journal database",
        ),
        (lambda db: (rows()(db), db.execute("CREATE TABLE more (x)")), "not a journal database"),
        (lambda db: (rows()(db), db.execute("CREATE INDEX more ON groups (payload)")), "not a journal database"),
        (
            lambda db: (rows()(db), db.execute("CREATE TRIGGER t DELETE ON groups BEGIN DELETE FROM groups; END")),
            "not a journal database",
        ),
        (lambda db: db.execute("CREATE VIRTUAL TABLE groups USING fts5(first, last)"), "not a journal database"),
        (lambda db: (db.execute("CREATE TABLE t (x)"), db.execute("DROP TABLE t")), "not a journal database"),
        (lambda db: db.execute(SCHEMA), "begins with is not there"),
        (rows(group("x")), "has no numbers"),
        (rows(group(0, last="x")), "has no numbers"),
        (rows(group(0, parts="x")), "has no numbers"),
        (rows(group(0, "text")), "does not have its checksum"),
        (rows(group(0), group(1, parts=1_000_000_000)), "not whole"),
        (rows(group(0, parts=0)), "not whole"),
        (rows(group(0, parts=-1)), "not whole"),
    ],
)
def test_a_database_of_another_kind_is_damage(
    tmp_path: Path, build: Callable[[sqlite3.Connection], object], says: str
) -> None:
    path, base_crc = made(tmp_path, build)
    with pytest.raises(JournalDamaged, match=says):
        read(path, base_crc)


def test_a_journal_of_many_groups_is_read(tmp_path: Path) -> None:
    given = [group(number, b"x" * number) for number in range(3_000)]
    assert [each.last for each in read(*made(tmp_path, rows(*given)))] == list(range(3_000))


def interior(child: int, count: int) -> bytes:
    """A page of a table's B-tree whose children are all the same page."""
    page = bytearray(4096)
    for at in range(count):
        start = 4096 - 5 * (at + 1)
        page[start : start + 5] = struct.pack(">IB", child, min(at + 1, 127))
        page[12 + 2 * at : 14 + 2 * at] = struct.pack(">H", start)
    page[:12] = struct.pack(">BHHHBI", 5, 0, count, 4096 - 5 * count, 0, child)
    return bytes(page)


def with_log(path: Path, data: bytearray) -> int:
    """Marks a database as one in WAL mode, with an empty log; returns its checksum."""
    data[18:20] = b"\2\2"
    data[28:32] = struct.pack(">I", len(data) // 4096)
    path.write_bytes(data)
    header = struct.pack(">6I", 0x377F0682, 3_007_000, 4096, 0, 1, 2)
    first = second = 0
    for one, other in struct.iter_unpack("<II", header):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    path.with_name(f"{path.name}-wal").write_bytes(header + struct.pack(">II", first, second))
    return crc32(data)


@pytest.mark.parametrize("payload", [b"", bytes(900)], ids=["empty", "full"])
def test_pages_that_refer_to_each_other_again_and_again_are_not_read_for_ever(tmp_path: Path, payload: bytes) -> None:
    path = tmp_path / sqlite_names(1)[0]
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA page_size=4096")
    db.execute("PRAGMA synchronous=OFF")
    db.execute(SCHEMA)
    db.executemany(INSERT, (BEGIN, *[group(0, payload, 1_000_000_000)] * 200))
    (root,) = db.execute("SELECT rootpage FROM sqlite_master").fetchone()
    db.close()
    data = bytearray(path.read_bytes())
    pages = len(data) // 4096
    if payload:
        leaf = next(page for page in range(root, pages) if data[4096 * page] == 13) + 1
    else:
        leaf = pages + 1  # the table was one page: it becomes the leaf of a tree
        data += data[4096 * (root - 1) : 4096 * root]
    first = len(data) // 4096 + 1
    for level in range(8):
        data += interior(leaf if level == 7 else first + level + 1, 400)
    data[4096 * (root - 1) : 4096 * root] = interior(first, 400)
    base_crc = with_log(path, data)
    with pytest.raises(JournalDamaged, match=r"more bytes than its files|SQLite says"):
        read(path, base_crc)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_in_the_place_of_a_log_are_damage_or_nothing(tail: bytes, headed: bool) -> None:
    with TemporaryDirectory() as folder:
        path, base_crc = made(Path(folder), rows(group(0)))
        log = path.with_name(f"{path.name}-wal")
        head = log.read_bytes()[:32] if headed else b""
        log.write_bytes(head + tail)
        with pytest.raises(JournalDamaged):
            read(path, base_crc)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_group_that_is_stored_in_several_rows_is_read_as_one(tmp_path: Path, parts: int) -> None:
    given = [(1, 3, parts, b"part", crc32(b"part"))] * parts
    assert read(*made(tmp_path, rows(*given, group(4)))) == [Group(1, 3, b"part" * parts), Group(4, 4, b"payload")]


def test_a_journal_is_read_from_a_folder_whose_name_means_something_in_a_uri(tmp_path: Path) -> None:
    folder = tmp_path / "a%41?mode=rw#b"
    folder.mkdir()
    assert read(*made(folder, rows(group(1)))) == [Group(1, 1, b"payload")]
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize("behind", [0, 1, 4_200, 1 << 20])
def test_a_byte_behind_the_last_frame_is_found_at_its_place(tmp_path: Path, behind: int) -> None:
    path, base_crc = made(tmp_path, rows(group(1)))
    log = path.with_name(f"{path.name}-wal")
    end = log.stat().st_size
    with log.open("r+b") as file:
        file.truncate(end + behind)
        clean = reader(path, base_crc)
        assert list(clean) == [Group(1, 1, b"payload")]
        assert (clean.end, clean.stray) == (end, None)
        file.seek(end + behind)
        file.write(b"\x01\x00\x02")
        file.truncate(2_000_000)
    found = reader(path, base_crc)
    assert list(found) == [Group(1, 1, b"payload")]
    assert (found.end, found.stray) == (end, end + behind)


def test_the_header_of_a_log_is_checked_in_either_byte_order(tmp_path: Path) -> None:
    path, base_crc = made(tmp_path, rows())
    log = path.with_name(f"{path.name}-wal")
    whole = log.read_bytes()
    magic = int.from_bytes(whole[:4])
    assert magic >> 1 == 0x377F0682 >> 1
    for changed in (whole[:31], (magic ^ 1).to_bytes(4) + whole[4:], (magic ^ 2).to_bytes(4) + whole[4:]):
        log.write_bytes(changed)
        with pytest.raises(JournalDamaged, match="header") as damaged:
            read(path, base_crc)
        assert damaged.value.path == log
    log.write_bytes(whole)
    assert read(path, base_crc) == []
