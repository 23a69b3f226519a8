"""The numbered files of an open data directory, and which of them are its journals.

Journals, chunk files and snapshots have numbers from one sequence. Invariant: a number is given again only if the files
with it, which no manifest names, are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from segstore.server.durable import chunk_files
from segstore.server.durable.data_directory import DataDirectory, JournalFile, snapshot_name
from segstore.server.durable.files import Files
from segstore.server.durable.journal import Group, JournalWriter, file_name
from segstore.server.durable.recovery import Recovery

JournalMaker = Callable[[Path, Files, int], JournalWriter]


class Journals:
    """Gives numbers to files, and makes journals.

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
            journal = self._make(directory.path / file_name(number), directory.files, filled_bytes)
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
                self.remove((file_name(number), chunk_files.file_name(number), snapshot_name(number)))
            self.number = before

    def remove(self, names: Iterable[str]) -> None:
        """Removes files, as far as they exist."""
        for name in names:
            self._directory.files.remove(self._directory.path / name)
