"""A journal's file: filled ahead, full when that space is used, and read back group by group."""

from __future__ import annotations

from pathlib import Path

import pytest

from segstore.server.durable import Files, journal
from segstore.server.durable.journal import Group, JournalDamaged, SqliteJournal, padding_fault, read_journal

FRAME_BYTES = 4096 + 24
"""What one page takes in SQLite's log."""


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


@pytest.mark.parametrize("filled_bytes", [100_000, (1 << 20) + 1])
def test_a_new_journal_has_its_space_on_disk_and_zeros_in_it(tmp_path: Path, filled_bytes: int) -> None:
    path = tmp_path / "journal.sqlite"
    made = SqliteJournal(path, Files(), filled_bytes)
    empty = log_of(path).read_bytes()
    assert len(empty) == filled_bytes
    assert padding_fault(log_of(path)) is None
    made.append(Group(1, 1, b"data"))
    made.close()
    made.close()
    assert len(log_of(path).read_bytes()) == filled_bytes


@pytest.mark.parametrize(("payload_bytes", "frames"), [(0, 2), (4_091, 2), (4_092, 3), (8_184, 4)])
def test_a_journal_is_full_when_its_groups_take_the_space_that_was_filled(
    tmp_path: Path, payload_bytes: int, frames: int
) -> None:
    for more in (0, 1):
        made = SqliteJournal(tmp_path / f"journal-{more}.sqlite", Files(), 2 * frames * FRAME_BYTES + more)
        found = []
        for number in (1, 2):
            made.append(Group(number, number, bytes(payload_bytes)))
            found.append(made.is_full)
        assert found == [False, not more]
        made.close()


@pytest.mark.parametrize("size", [10, 11, 20, 21])
def test_a_group_that_is_too_large_for_a_row_is_stored_in_several_and_read_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(journal, "_PART_BYTES", 10)
    given = [Group(1, 3, bytes(range(size))), Group(4, 4, b"after")]
    made = SqliteJournal(tmp_path / "journal.sqlite", Files())
    for each in given:
        made.append(each)
    made.close()
    assert list(read_journal(made.path, made.base_crc)) == given


def test_a_journal_is_read_from_a_folder_whose_name_means_something_in_a_uri(tmp_path: Path) -> None:
    folder = tmp_path / "a%41?mode=rw#b"
    folder.mkdir()
    made = SqliteJournal(folder / "journal.sqlite", Files())
    made.append(Group(1, 1, b"data"))
    made.close()
    assert list(read_journal(made.path, made.base_crc)) == [Group(1, 1, b"data")]
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize("behind", [0, 1, 4_200, 1 << 20])
def test_a_byte_behind_the_last_group_is_found_at_its_place(tmp_path: Path, behind: int) -> None:
    made = SqliteJournal(tmp_path / "journal.sqlite", Files(), 2_000_000)
    made.append(Group(1, 1, b"data"))
    made.close()
    log = log_of(made.path)
    end = len(log.read_bytes().rstrip(b"\0"))
    end += -(end - 32) % FRAME_BYTES  # a frame may end with zeros
    with log.open("r+b") as file:
        file.seek(end + behind)
        file.write(b"\x01\x00\x02")
    assert padding_fault(log) == end + behind
    assert list(read_journal(made.path, made.base_crc)) == [Group(1, 1, b"data")]


def test_the_header_of_a_log_is_checked_in_either_byte_order(tmp_path: Path) -> None:
    made = SqliteJournal(tmp_path / "journal.sqlite", Files())
    made.close()
    log = log_of(made.path)
    whole = log.read_bytes()
    magic = int.from_bytes(whole[:4])
    assert magic >> 1 == 0x377F0682 >> 1
    for changed in (whole[:31], (magic ^ 1).to_bytes(4) + whole[4:], (magic ^ 2).to_bytes(4) + whole[4:]):
        log.write_bytes(changed)
        with pytest.raises(JournalDamaged, match="header") as damaged:
            list(read_journal(made.path, made.base_crc))
        assert damaged.value.path == log
    log.write_bytes(whole)
    assert list(read_journal(made.path, made.base_crc)) == []
