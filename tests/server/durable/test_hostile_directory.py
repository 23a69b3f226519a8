"""Forged directories with valid checksums: each is refused as damaged, in bounded time and memory."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore.server.durable import journal, snapshot, verify
from segstore.server.durable.chunk_files import BlockCache
from segstore.server.durable.journal import JournalDamaged, read_journal
from tests.server.durable.support import running, write

NAME = "scope/stream/0.#epoch.0"
SCHEMA = journal._SCHEMA
INSERT = journal._INSERT
BEGIN = (-1, -1, 1, b"", 0)


def group(number: Any, payload: Any = b"payload", parts: Any = 1, *, last: Any = None) -> tuple[Any, ...]:
    crc = crc32(payload) if isinstance(payload, bytes) else 0
    return number, number if last is None else last, parts, payload, crc


def made(folder: Path, build: Callable[[sqlite3.Connection], object]) -> tuple[Path, int]:
    """Builds a database in WAL mode, with its log; returns its path and the checksum for a manifest."""
    (folder / "made").mkdir()
    path = folder / "journal-0000000001.sqlite"
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


def read(path: Path, base_crc: int) -> list[journal.Group]:
    return list(read_journal(path, base_crc))


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
    path = tmp_path / "journal-0000000001.sqlite"
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


# --- snapshots ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The records of a real snapshot, as plain values."""
    path = tmp_path_factory.mktemp("whole") / "data"

    async def fill() -> None:
        async with running(path, crash=True) as (durability, store):
            store.create_segment(NAME, now_ms=1)
            write(store, NAME, bytes(20_000))
            await durability.checkpoint()

    asyncio.run(fill())
    assert verify(path).faults == []
    (file,) = path.glob("snapshot-*")
    data, at, found = file.read_bytes(), 8, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        found.append(msgspec.msgpack.decode(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return found


def image(*parts: bytes) -> bytes:
    return b"SEGSNAP1" + b"".join(len(each).to_bytes(4) + each for each in parts)


def read_image(data: bytes) -> None:
    snapshot.read(data, Path("/nowhere"), BlockCache(0))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (image(b"\x93\xa5files\x90" + b"\x91" * 100_000), "nested too deeply"),
        (image(b"\x92\xa8segments\x90"), "before its container"),
        (image(b"\x92\xa5files\x91\x93\xcf" + b"\xff" * 8 + b"\0\0"), "impossible number"),
        (image(b"\x92\xa5files\x91\x93\xff\0\0"), "impossible number"),
        (image(b"\xdd\xff\xff\xff\xff"), "truncated|Expected"),
        (b"SEGSNAP1\xff\xff\xff\xff", "truncated"),
        (b"SEGSNAP1\0", "truncated"),
    ],
)
def test_a_snapshot_of_absurd_records_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_image(data)


ODD = st.sampled_from(
    [None, True, "", "x" * 70_000, b"", bytes(16), bytes(17), [], [[]], {}, 1.5, -1, 0, 1, 1 << 31, 1 << 32, 1 << 63]
)


@given(st.data())
@settings(max_examples=150)
def test_a_snapshot_with_odd_values_in_any_place_is_read_or_refused(records: list[Any], data: st.DataObject) -> None:
    made = [msgspec.msgpack.decode(msgspec.msgpack.encode(each)) for each in records]
    for _ in range(data.draw(st.integers(1, 3))):
        inside: Any = made
        while True:
            at = data.draw(st.integers(0, len(inside) - 1))
            if not isinstance(inside[at], list) or not inside[at] or data.draw(st.integers(0, 4)) == 0:
                break
            inside = inside[at]
        inside[at] = deepcopy(data.draw(ODD))
    with suppress(ValueError):
        read_image(image(*map(msgspec.msgpack.encode, made)))


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_in_the_place_of_a_log_are_damage_or_nothing(tail: bytes, headed: bool) -> None:
    with TemporaryDirectory() as folder:
        path, base_crc = made(Path(folder), rows(group(0)))
        log = path.with_name(f"{path.name}-wal")
        head = log.read_bytes()[:32] if headed else b""
        log.write_bytes(head + tail)
        with pytest.raises(JournalDamaged):
            read(path, base_crc)
