"""Recovery: reads the state in a data directory from its snapshot and the journals after it.

`segstore verify` reads every byte of an unopened directory with the same functions, so that it reports all faults that
would keep a store from starting. Its invariants: it changes nothing; a fault does not hide other faults, except an
unreadable manifest, which names all other files. Refused with `DataError`: a directory that is in use, in another
format, or not a data directory.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple
from zlib import crc32

from segstore.server.durable import chunk_files, snapshot
from segstore.server.durable.chunk_files import BlockCache, ChunkFile
from segstore.server.durable.committer import BATCH, records
from segstore.server.durable.data_directory import (
    MANIFEST_FILE,
    DataDirectory,
    DirectoryDamaged,
    DirectoryForeign,
    DirectoryUnusable,
    JournalFile,
)
from segstore.server.durable.files import read_regular
from segstore.server.durable.journal import Group, JournalReader
from segstore.server.store import Appended, Container, DataDamaged, SegmentMerged, decode

log = logging.getLogger(__name__)

CONTROLLER: Final = -1
"""Used as the controller's container number in the journal."""

_REWRITTEN_BYTES: Final = 1024 * 1024
"""At start-up, at most this much of the journals' end is written again, but at least the last group. Journals that are
copied completely are removed, so a store that crashes repeatedly at start does not fill the disk."""


@contextmanager
def _refusing(directory: DataDirectory, file: Path) -> Iterator[None]:
    """Raises the errors that a file causes as `DataError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise DirectoryDamaged(directory.path, error.filename, "it is missing") from error
    except OSError as error:
        raise DirectoryUnusable(directory.path, error) from error
    except DataDamaged as error:
        raise DirectoryDamaged(directory.path, error.path, error.what) from error
    except ValueError as error:
        raise DirectoryDamaged(directory.path, file, str(error)) from error
    except KeyError as error:
        raise DirectoryDamaged(directory.path, file, f"it refers to {error}, which does not exist") from error


def read_snapshot(directory: DataDirectory, cache: BlockCache) -> snapshot.Snapshot:
    """Returns the snapshot in force, or an empty snapshot. Raises `ValueError`, `OSError`."""
    file = directory.manifest.snapshot
    if file is None:
        return snapshot.Snapshot([], None, {})
    data = read_regular(directory.path / file.name)
    if len(data) != file.size or crc32(data) != file.crc:
        raise ValueError("it does not have its checksum")
    return snapshot.read(data, directory.path, cache)


def groups_of(reader: JournalReader, entry: JournalFile, before: int) -> Iterator[Group]:
    """Yields the valid groups of a journal, which must follow batch `before`.

    Raises `DataDamaged`, `OSError`.
    """
    for group in reader:
        if group.first != before + 1:
            raise DataDamaged(str(reader.path), f"batch {before} is followed by batch {group.first}")
        before = group.last
        yield group
        if entry.last is not None and before >= entry.last:
            return
    if entry.last is not None and before < entry.last:
        raise DataDamaged(str(reader.path), f"it ends at byte {reader.end} with batch {before}, and not {entry.last}")


def missing(directory: DataDirectory, end: JournalReader | None, last: int) -> tuple[Path, str] | None:
    """Returns the file that lacks committed batches, and a description; None if all batches are there.

    end: the last journal that was read, which ends with batch `last`; None without journals.
    """
    if last >= directory.committed:
        return None
    file, place = (directory.path / MANIFEST_FILE, "") if end is None else (end.path, f" at byte {end.end}")
    return file, f"it ends{place} with batch {last}, and batch {directory.committed} was committed"


class Recovery:
    """The content of an open directory.

    Attributes:
        chunks: the chunk files of the snapshot, by number.
        controller_image, controller_operations: the controller's state.
        journals: with the last batch of each journal; `last` is the last batch of all.
        tail: the last groups, at most `_REWRITTEN_BYTES`.
        replayed_bytes: total size of all groups.
    """

    def __init__(self, directory: DataDirectory, cache: BlockCache) -> None:
        """Reads the snapshot. Raises `DataError`."""
        self._directory = directory
        self.controller_image = b""
        self.controller_operations: list[bytes] = []
        self.last = directory.manifest.batch
        self.journals: list[tuple[JournalFile, int]] = []
        self.tail: deque[Group] = deque()
        self.replayed_bytes = 0
        self._tail_bytes = 0
        self._controller_batch = 0
        with _refusing(directory, self._snapshot_file):
            images, controller, self.chunks = read_snapshot(directory, cache)
            for chunk in self.chunks.values():
                chunk.check_size(chunk.path.lstat().st_size)
        self._images = {image.header.container_id: image for image in images}
        if controller is not None:
            self._controller_batch, self.controller_image = controller

    @property
    def _snapshot_file(self) -> Path:
        file = self._directory.manifest.snapshot
        return self._directory.path / ("MANIFEST" if file is None else file.name)

    def fill(self, containers: Mapping[int, Container]) -> None:
        """Gives empty containers their state. Raises `DataError`."""
        began, directory = perf_counter(), self._directory
        starts = dict.fromkeys(containers, self.last)
        with _refusing(directory, self._snapshot_file):
            for container_id, container in containers.items():
                if (image := self._images.get(container_id)) is not None:
                    starts[container_id] = image.header.batch
                    snapshot.restore(container, image, self.chunks)
        self._images = {}
        appended: dict[int, dict[str, None]] = {container_id: {} for container_id in containers}
        end: JournalReader | None = None
        for entry in directory.manifest.journals:
            reader, before = JournalReader(directory.path / entry.name, entry.base_crc), self.last
            with _refusing(directory, reader.path):
                for group in groups_of(reader, entry, before):
                    self._replay(group, containers, starts, appended)
                if end is None or self.last > before or reader.stray is not None:
                    end = reader  # the next journal is created early, so the newest one may be empty
            self.journals.append((entry, self.last))
        if (lacking := missing(directory, end, self.last)) is not None:
            raise DirectoryDamaged(directory.path, *lacking)
        for container_id, container in containers.items():
            container.recovered()
            container.adopt_names(unindexed=appended[container_id])
        gone = directory.remove_leftovers(set(self.chunks))
        log.info(
            "%s opened in %.2f s, %d segments%s",
            directory.path,
            perf_counter() - began,
            sum(len(container.segments) for container in containers.values()),
            f"; {len(gone)} files that a crash left behind are removed" if gone else "",
        )

    def _replay(
        self,
        group: Group,
        containers: Mapping[int, Container],
        starts: Mapping[int, int],
        appended: Mapping[int, dict[str, None]],
    ) -> None:
        batch, self.last = self.last, group.last
        self.replayed_bytes += len(group.payload)
        self.tail.append(group)
        self._tail_bytes += len(group.payload)
        while len(self.tail) > 1 and self._tail_bytes > _REWRITTEN_BYTES:
            self._tail_bytes -= len(self.tail.popleft().payload)
        for log_id, data in records(group.payload):
            if log_id == BATCH:
                batch = int.from_bytes(data)
            elif log_id == CONTROLLER:
                if batch > self._controller_batch:
                    self.controller_operations.append(bytes(data))
            elif batch > starts[log_id]:
                operation = decode(data)
                containers[log_id].apply(operation)
                if type(operation) is Appended or type(operation) is SegmentMerged:
                    appended[log_id][operation.segment] = None


# --- verification -----------------------------------------------------------------------------------------------------


class Verification(NamedTuple):
    """Result of a verification: the faults, a sentence per fault, and counts of the verified files.

    notes: harmless findings, a sentence per finding.
    """

    faults: list[str]
    notes: Sequence[str] = ()
    files: int = 0
    batches: int = 0


def verify(path: Path, owner: tuple[str, int, tuple[int, ...]] | None = None) -> Verification:
    """Reads and verifies a whole directory. Raises `DataError`.

    owner: the expected cluster, its number of containers, and the containers in the directory; None for any.
    """
    try:
        directory = DataDirectory.look(path)
    except DirectoryDamaged as error:
        return Verification([str(error)])
    faults: list[str] = []
    notes: list[str] = []
    with closing(directory):
        if owner is not None:
            try:
                directory.check_owner(*owner)
            except DirectoryForeign as error:
                faults.append(str(error))
        files = _verify_snapshot(directory, faults) + len(directory.manifest.journals)
        batch = _verify_journals(directory, faults, notes)
        return Verification(faults, notes, files, batch)


def _verify_snapshot(directory: DataDirectory, faults: list[str]) -> int:
    """Adds the faults of the snapshot and its chunk files; returns the number of files."""
    file = directory.manifest.snapshot
    if file is None:
        return 0
    chunks: dict[int, ChunkFile] = {}
    try:
        chunks = read_snapshot(directory, BlockCache(0)).chunks
    except (OSError, ValueError) as error:
        faults.append(f"{directory.path / file.name} is damaged: {error}")
    for chunk in chunks.values():
        try:
            chunk_files.check(chunk)
        except DataDamaged as error:
            faults.append(str(error).rpartition("; ")[0])
    return 1 + len(chunks)


def _verify_journals(directory: DataDirectory, faults: list[str], notes: list[str]) -> int:
    """Adds the faults of the journals, and notes; returns the number of the last batch that can be read."""
    batch, end = directory.manifest.batch, None
    stray: list[JournalReader] = []
    for entry in directory.manifest.journals:
        fault = ""
        reader, before = JournalReader(directory.path / entry.name, entry.base_crc), batch
        try:
            for group in groups_of(reader, entry, before):
                batch = group.last
        except DataDamaged as error:
            fault = str(error).rpartition("; ")[0]
        except OSError as error:
            fault = f"{error.filename or reader.path} cannot be read: {error.strerror or error}"
        if fault or end is None or batch > before or reader.stray is not None:
            end = reader
        if fault:
            faults.append(fault)
        elif reader.stray is not None:
            stray.append(reader)
    lacking = missing(directory, end, batch)
    for reader in stray:
        if lacking is not None and reader is end:
            continue
        if reader.is_cut_short:
            notes.append(
                f"{reader.path} ends with a write that was not finished when its process ended, from byte "
                f"{reader.stray} on; nothing that was acknowledged is in it"
            )
        else:
            faults.append(
                f"{reader.path} has bytes in no group, from byte {reader.stray} on: unused space is damaged, or the "
                "machine stopped during a write; nothing that was acknowledged is in them"
            )
    if lacking is not None:
        faults.append(f"{lacking[0]} is damaged: {lacking[1]}")
    return batch
