"""`segstore verify`: reads every byte of an unopened data directory and reports corruption.

Invariants: nothing is changed; one fault does not hide others, except an unreadable manifest, which names all other
files. Refused with `DataError`: a directory that is in use, in a newer format, or not a data directory.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from segstore.server.durable import chunk_files
from segstore.server.durable.chunk_files import BlockCache, ChunkFile
from segstore.server.durable.data_directory import DataDirectory, DirectoryDamaged, DirectoryForeign, snapshot_name
from segstore.server.durable.journal import JournalDamaged, file_names, padding_fault
from segstore.server.durable.recovery import groups_of, read_snapshot
from segstore.server.store import DataDamaged


class Verified(NamedTuple):
    """Result of a verification: the faults, one sentence each, and counts of what was read."""

    faults: list[str]
    files: int = 0
    segments: int = 0
    batches: int = 0


def verify(path: Path, owner: tuple[str, int, tuple[int, ...]] | None = None) -> Verified:
    """Reads and verifies a whole directory. Raises `DataError`.

    owner: the expected cluster, its number of containers, and the containers in the directory; None for any.
    """
    try:
        directory = DataDirectory.look(path)
    except DirectoryDamaged as error:
        return Verified([str(error)])
    try:
        return _verify(directory, owner)
    finally:
        directory.close()


def _verify(directory: DataDirectory, owner: tuple[str, int, tuple[int, ...]] | None) -> Verified:
    faults: list[str] = []
    if owner is not None:
        try:
            directory.check_owner(*owner)
        except DirectoryForeign as error:
            faults.append(str(error))
    files = segments = 0
    found = directory.manifest.snapshot
    if found is not None:
        files += 1
        chunks: dict[int, ChunkFile] = {}
        try:
            images, _, chunks = read_snapshot(directory, BlockCache(0))
            segments = sum(len(image.segments) for image in images)
        except (OSError, ValueError) as error:
            faults.append(f"{directory.path / snapshot_name(found.number)} is damaged: {error}")
        for each in chunks.values():
            files += 1
            try:
                chunk_files.check(each)
            except DataDamaged as error:
                faults.append(str(error).partition("; ")[0])
    batch = directory.manifest.batch
    for entry in directory.manifest.journals:
        files += 1
        base = directory.path / file_names(entry.number)[0]
        try:
            with TemporaryDirectory(prefix="segstore-verify-") as folder:
                for group in groups_of(base, entry, batch, Path(folder)):
                    batch = group.last
            log = directory.path / file_names(entry.number)[1]
            at = padding_fault(log)
            if at is not None:
                faults.append(
                    f"{log} has bytes behind its last group, from byte {at} on: what a loss of power left of a write, "
                    "or damage to what is not used yet; nothing that was acknowledged is in them"
                )
        except JournalDamaged as error:
            faults.append(str(error))
        except OSError as error:
            faults.append(f"{base} cannot be read: {error.strerror or error}")
    if batch < directory.committed:
        faults.append(
            f"the journals in {directory.path} end with batch {batch}, and batch {directory.committed} was committed"
        )
    return Verified(faults, files, segments, batch)
