"""A journal's file: filled ahead, full when that space is used, read back group by group, whatever is in it."""

import errno
import random
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore.server.durable import Files
from segstore.server.durable.journal import PAGE_BYTES, Group, JournalReader, JournalWriter
from segstore.server.store import DataDamaged
from tests.server.durable.support import running
from tests.server.support import until

HEAD_BYTES = 44
"""What a group has before its payload."""
SECTOR_BYTES = 512
GROUPS = [Group(1, 1, b"first"), Group(2, 9, bytes(range(256)) * 40), Group(10, 10, b""), Group(11, 12, b"x" * 9_000)]


def written(path: Path, groups: Iterable[Group], filled_bytes: int = 64 * 1024) -> int:
    """Writes a journal; returns the checksum for a manifest."""
    made = JournalWriter(path, Files(), filled_bytes)
    for group in groups:
        made.append(group)
    made.close()
    return made.base_crc


def read(path: Path, base_crc: int) -> list[Group]:
    return list(JournalReader(path, base_crc))


def end_of(groups: Iterable[Group]) -> int:
    """Offset of what follows groups."""
    pages = [-(-(HEAD_BYTES + len(group.payload)) // PAGE_BYTES) for group in groups]
    return PAGE_BYTES * (1 + sum(pages))


@pytest.mark.parametrize("filled_bytes", [100_000, (1 << 20) + 1])
def test_a_new_journal_has_its_space_on_disk_and_zeros_in_it(tmp_path: Path, filled_bytes: int) -> None:
    path = tmp_path / "journal"
    made = JournalWriter(path, Files(), filled_bytes)
    data = path.read_bytes()
    assert len(data) == filled_bytes
    assert not data[28:].strip(b"\0")
    made.append(Group(1, 1, b"data"))
    made.close()
    made.close()
    assert len(path.read_bytes()) == filled_bytes


@pytest.mark.parametrize(("payload_bytes", "pages"), [(0, 1), (4_052, 1), (4_053, 2), (8_148, 2)])
def test_a_journal_is_full_when_its_groups_take_the_space_that_was_filled(
    tmp_path: Path, payload_bytes: int, pages: int
) -> None:
    for more in (0, 1):
        made = JournalWriter(tmp_path / f"journal-{more}", Files(), (1 + 2 * pages) * PAGE_BYTES + more)
        found = []
        for number in (1, 2):
            made.append(Group(number, number, bytes(payload_bytes)))
            found.append(made.is_full)
        assert found == [False, not more]
        made.close()


@pytest.mark.parametrize("filled_bytes", [0, 8192, 64 * 1024])
def test_groups_are_read_as_they_were_written_also_behind_the_space_that_was_filled(
    tmp_path: Path, filled_bytes: int
) -> None:
    base_crc = written(tmp_path / "journal", GROUPS, filled_bytes)
    found = JournalReader(tmp_path / "journal", base_crc)
    assert list(found) == GROUPS
    assert (found.end, found.stray) == (end_of(GROUPS), None)


def test_a_write_touches_no_page_with_an_earlier_group(tmp_path: Path) -> None:
    writes: list[tuple[int, int]] = []

    class Recording(Files):
        def write_durably(self, descriptor: int, data: bytes, at: int) -> None:
            writes.append((at, len(data)))
            super().write_durably(descriptor, data, at)

    made = JournalWriter(tmp_path / "journal", Recording(), 8192)
    for group in GROUPS:
        made.append(group)
    made.close()
    assert [at % PAGE_BYTES for at, _ in writes] == [0] * len(GROUPS)
    assert [at for at, _ in writes] == [end_of(GROUPS[:number]) for number in range(len(GROUPS))]
    assert all(at + size <= after for (at, size), (after, _) in pairwise(writes))


@given(st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_a_last_group_of_which_any_sectors_are_missing_is_no_group(chance: random.Random) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        last = Group(13, 13, chance.randbytes(chance.choice([1, 400, 5_000, 30_000])))
        base_crc = written(path, [*GROUPS, last])
        data, begin, end = bytearray(path.read_bytes()), end_of(GROUPS), end_of([*GROUPS, last])
        used = range(begin, begin + HEAD_BYTES + len(last.payload), SECTOR_BYTES)
        gone = set(chance.sample(used, chance.randint(1, len(used))))
        for at in gone:
            data[at : at + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        path.write_bytes(data[: chance.choice([len(data), max(gone)])])
        found = JournalReader(path, base_crc)
        assert list(found) == GROUPS
        assert found.end == begin
        assert found.stray is None or begin <= found.stray < end


@pytest.mark.parametrize("number", range(len(GROUPS)))
def test_a_byte_of_a_group_that_changes_is_damage_unless_it_was_the_last(tmp_path: Path, number: int) -> None:
    path = tmp_path / "journal"
    base_crc = written(path, GROUPS)
    whole, begin = path.read_bytes(), end_of(GROUPS[:number])
    size = HEAD_BYTES + len(GROUPS[number].payload)
    for at in {*range(HEAD_BYTES), size // 2, size - 1} & {*range(size)}:
        data = bytearray(whole)
        data[begin + at] = (data[begin + at] ^ 0x10) or 0x20  # zero is a byte that no group has written
        path.write_bytes(data)
        if number == len(GROUPS) - 1:
            found = JournalReader(path, base_crc)
            assert list(found) == GROUPS[:-1]
            assert (found.end, found.stray) == (begin, begin)
            continue
        following = end_of(GROUPS[: number + 1])
        said = f"{path} is damaged: the group at byte {begin} is not valid, and another one is at byte {following}"
        with pytest.raises(DataDamaged, match=said):
            read(path, base_crc)


def test_a_last_group_whose_write_was_cut_short_is_told_from_other_bytes(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    last = Group(13, 13, b"x" * 40_000)
    base_crc = written(path, [*GROUPS, last], 256 * 1024)
    whole, begin, end = path.read_bytes(), end_of(GROUPS), end_of([*GROUPS, last])
    for stop, stray, is_cut_short in (
        (begin + PAGE_BYTES, None, True),
        (end - PAGE_BYTES, None, True),
        (end - PAGE_BYTES, begin - 1, False),
        (end - PAGE_BYTES, end, False),
        (begin, end, False),
    ):
        data = bytearray(whole[:stop] + bytes(len(whole) - stop))
        if stray is not None:
            data[stray] = 1
        path.write_bytes(data)
        found = JournalReader(path, base_crc)
        assert list(found) == GROUPS
        assert found.is_cut_short is is_cut_short


def test_groups_of_another_journal_in_the_same_blocks_are_nothing(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    written(old, GROUPS)
    base_crc = written(new, GROUPS[:1])
    new.write_bytes(new.read_bytes()[: end_of(GROUPS[:1])] + old.read_bytes()[end_of(GROUPS[:1]) :])
    found = JournalReader(new, base_crc)
    assert list(found) == GROUPS[:1]
    assert found.stray == end_of(GROUPS[:1])


@pytest.mark.parametrize("at", [28, PAGE_BYTES - 1, PAGE_BYTES + HEAD_BYTES + 5, 2 * PAGE_BYTES - 1, 60_000, 65_535])
def test_a_byte_in_no_group_is_found_at_its_place(tmp_path: Path, at: int) -> None:
    path = tmp_path / "journal"
    base_crc = written(path, GROUPS)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\x01")
    found = JournalReader(path, base_crc)
    assert list(found) == GROUPS
    assert found.stray == at


def test_a_header_that_is_not_the_manifests_is_damage(tmp_path: Path) -> None:
    path, other = tmp_path / "journal", tmp_path / "other"
    base_crc = written(path, GROUPS)
    whole = path.read_bytes()
    forged = b"SEGJRNL2" + whole[8:24]
    for changed in (b"", whole[:27], b"X" + whole[1:], whole[:24] + bytes(4) + whole[28:]):
        path.write_bytes(changed)
        with pytest.raises(DataDamaged, match="its header does not have the checksum that the manifest keeps"):
            read(path, base_crc)
    written(other, GROUPS)
    with pytest.raises(DataDamaged, match="its header does not have the checksum that the manifest keeps"):
        read(other, base_crc)
    path.write_bytes(forged + crc32(forged).to_bytes(4) + whole[28:])
    with pytest.raises(DataDamaged, match="its header begins with b'SEGJRNL2'"):
        read(path, crc32(forged))


@given(st.binary(max_size=300), st.booleans(), st.integers(0, 70))
def test_any_bytes_in_the_place_of_groups_are_damage_or_nothing(tail: bytes, salted: bool, skipped: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        base_crc = written(path, [], 0)
        data = path.read_bytes()
        path.write_bytes(data + bytes(skipped * 100) + (data[8:24] if salted else b"") + tail)
        try:
            assert read(path, base_crc) == []
        except DataDamaged:
            assert salted


def test_a_group_that_cannot_be_written_whole_is_an_error(tmp_path: Path) -> None:
    class Full(Files):
        def write_durably(self, descriptor: int, data: bytes, at: int) -> None:
            super().write_durably(descriptor, data[:SECTOR_BYTES], at)
            raise OSError(errno.ENOSPC, "No space left on device")

    made = JournalWriter(tmp_path / "journal", Full(), 8192)
    with pytest.raises(OSError, match="No space left"):
        made.append(Group(1, 1, bytes(5_000)))
    made.close()
    assert read(made.path, made.base_crc) == []


class WithoutManifests(Files):
    """Files of which no manifest can be replaced while `refusing` is set."""

    refusing = False

    def replace(self, source: Path, target: Path) -> None:
        if self.refusing and target.name == "MANIFEST":
            raise OSError(errno.ENOSPC, "No space left on device")
        super().replace(source, target)


class Closing(JournalWriter):
    """Records which journals were closed."""

    closed: list[Path]

    def close(self) -> None:
        self.closed.append(self.path)
        super().close()


async def test_a_journal_that_no_manifest_names_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Closing, "closed", [], raising=False)
    files = WithoutManifests()
    async with running(tmp_path, make_journal=Closing, files=files) as (durability, _):
        await until(lambda: durability.committer.next is not None)
        journals = durability._journals
        closed, number = Closing.closed.copy(), journals.number
        files.refusing = True
        with pytest.raises(OSError, match="No space left"):
            journals.make(4096)
        assert Closing.closed == [*closed, tmp_path / f"journal-{number + 1:010d}"]
        files.refusing = False
        _, entry = journals.make(4096)
        assert entry.number == number + 2, "its files are there, so its number is not given again"
