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
from segstore.server.durable.journal import JournalDamaged
from segstore.server.durable.recovery import groups_of, missing, read_snapshot, reader_of
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
    batch, end = directory.manifest.batch, None
    for entry in directory.manifest.journals:
        files += 1
        with TemporaryDirectory(prefix="segstore-verify-") as folder:
            reader, before = reader_of(directory, entry, Path(folder)), batch
            try:
                for group in groups_of(reader, entry, before):
                    batch = group.last
            except JournalDamaged as error:
                faults.append(str(error))
            except OSError as error:
                faults.append(f"{error.filename or reader.path} cannot be read: {error.strerror or error}")
        if end is None or batch > before or reader.stray is not None:
            end = reader
        if reader.stray is not None:
            faults.append(
                f"{reader.path} has bytes in no group, from byte {reader.stray} on: what a loss of power left of a "
                "write, or damage to what is not used; nothing that was acknowledged is in them"
            )
    if (lacking := missing(directory, end, batch)) is not None:
        file, what = lacking
        faults.append(f"{file} is damaged: {what}")
    return Verified(faults, files, segments, batch)
