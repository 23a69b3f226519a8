"""Data directories that change owners: each epoch has its own, which starts as a copy of the previous one.

Files of a data directory do not change once they are written, so a new epoch's directory takes its predecessor's files
as hard links, at no cost. Whatever an older owner does later affects only names in its own directory: it can neither
replace the new owner's manifest nor remove a file that the new owner needs. It can still append to one file, the
journal that it was writing, so the new manifest records where each inherited journal ends (`durable`).

Invariants: a directory gets its manifest only when all files that it names are in it and on disk; older directories are
removed after that. The epoch is checked before anything is acknowledged or removed (`fence`).

Refused: a directory of another cluster or of other containers, a corrupt one, as in `data_directory`; one whose
predecessor is missing. A refused opening leaves an empty directory, whose epoch cannot be used again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from segstore.server.durable.data_directory import (
    MANIFEST_FILE,
    DataDirectory,
    DataError,
    DirectoryDamaged,
    DirectoryUnusable,
    Manifest,
    snapshot_name,
)
from segstore.server.durable.fence import Epoch, Fenced
from segstore.server.durable.files import Files
from segstore.server.durable.journal import file_names

log = logging.getLogger(__name__)

_CHUNK: Final = "chunk-"
_LOOKS: Final = range(3, -1, -1)


def current(epochs: Sequence[Epoch]) -> Epoch | None:
    """Returns the epoch that the next opening takes over; None if none was ever in force."""
    return next((each for each in sorted(epochs, reverse=True, key=_number) if DataDirectory.is_one(each.path)), None)


def lost(epochs: Sequence[Epoch]) -> Path | None:
    """Returns the path of the missing manifest if none of these epochs has one; None if nothing was acknowledged."""
    first = min(epochs, default=None, key=_number)
    if first is None:
        return None
    # Only an opening with a manifest removes earlier folders, and commits need a manifest.
    if first.number > 1:
        return first.path / MANIFEST_FILE
    with suppress(DataError, OSError):
        if DataDirectory(first.path, Files()).committed_there():
            return first.path / MANIFEST_FILE
    return None


def _number(epoch: Epoch) -> int:
    return epoch.number


class FencedDirectory(DataDirectory):
    """The data directory of an epoch. It has no manifest until the first `put`.

    Attributes:
        epoch: the epoch.
    """

    def __init__(self, epoch: Epoch, files: Files) -> None:
        super().__init__(epoch.path, files)
        self.epoch = epoch
        self._is_new = True

    @classmethod
    def adopt(
        cls, epoch: Epoch, *, containers: int, held: tuple[int, ...], cluster: str, files: Files | None = None
    ) -> Self:
        """Creates the directory of a newly claimed epoch from its predecessor's. Raises `DataError`, `Fenced`.

        containers, held, cluster: as in `DataDirectory.open`.
        """
        self = cls(epoch, files or Files())
        try:
            self._adopt(Manifest(cluster, containers, held))
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError) and not isinstance(error, Fenced):
                epoch.check()
                raise DirectoryUnusable(epoch.path, error) from error
            raise
        return self

    def _adopt(self, new: Manifest) -> None:
        self._take()
        self.manifest = new
        older = self.epoch.older()
        before = current(older)
        if before is not None:
            self._take_over(before.path, new)
        elif (missing := lost(older)) is not None:
            raise DirectoryDamaged(missing.parent, missing, "it is missing")
        self._make_mark()

    def _take_over(self, before: Path, new: Manifest) -> None:
        old = DataDirectory(before, self.files)
        for left in _LOOKS:
            try:
                old.look_at()
                break
            except DirectoryDamaged:  # its owner may be writing `committed` at this moment
                if not left:
                    raise
        old.check_owner(new.cluster, new.containers, new.held)
        found = old.manifest
        names = [] if found.snapshot is None else [snapshot_name(found.snapshot.number)]
        for journal in found.journals:
            names += file_names(journal.number)[:2]
        for name in names:
            try:
                os.link(before / name, self.path / name)
            except FileNotFoundError as error:
                self.epoch.check()  # a later owner may have removed it
                raise DirectoryDamaged(before, before / name, "it is missing") from error
        for each in before.iterdir():
            if each.name.startswith(_CHUNK):
                try:
                    os.link(each, self.path / each.name)
                except FileNotFoundError:  # no longer in force; otherwise reading it reports that it is missing
                    continue
        self.manifest = found
        self.committed = old.committed

    def abandon(self) -> None:
        """Closes the directory and removes its contents. It must not have a manifest."""
        self.close()
        with suppress(OSError):  # the next opening that succeeds removes it as a whole
            for each in tuple(self.path.iterdir()):
                each.unlink()

    @property
    def is_over(self) -> bool:
        return self.epoch.is_known_over

    def note(self, number: int) -> None:
        super().note(number)
        self.epoch.check()

    def put(self, manifest: Manifest) -> None:
        self.epoch.check()
        super().put(manifest)
        self.epoch.check()
        if self._is_new:
            self._is_new = False
            self.files.sync_folder(self.path)
            try:
                self.epoch.remove_older()
            except OSError as error:  # the next epoch tries again
                log.warning("%s: what earlier epochs left is not removed: %s", self.epoch.folder, error)
