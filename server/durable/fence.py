"""Containers that several processes can open: the last process to open a container fences the earlier owners.

Every opening creates a data directory, named by its epoch, in the container's folder:

    containers/3/epoch-0000000007

Creating that folder is the claim: only one process succeeds, and the older owner is fenced from that moment. There is
no lock, so a stalled process blocks no other. An owner writes first, then checks whether a later epoch has started, and
only then acknowledges or removes anything. So everything that an older owner acknowledged was visible to the later
owner, and its later writes are never acknowledged.

Files of a data directory do not change once they are written, so a new epoch's directory takes its predecessor's files
as hard links, at no cost. Whatever an older owner does later affects only names in its own directory: it can neither
replace the new owner's manifest nor remove a file that the new owner needs. It can still append to one file, the
journal that it was writing, so the new manifest records where each inherited journal ends (`journals`).

Invariants: `check` returns only if no later epoch had started when it was called. A directory gets its manifest only
when all files that it names are in it and on disk; older directories are removed after that, in the order of their
epochs, so two checks in the right order are enough.

Refused: a directory of another cluster or of other containers, a corrupt directory, as in `data_directory`; a directory
whose predecessor is missing. A refused opening leaves an empty directory, whose epoch cannot be used again.

All processes must see each other's files and writes at once: on one machine, or on a cluster file system with that
guarantee. NFS does not have it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final, Self

from segstore.server.durable.data_directory import (
    MANIFEST_FILE,
    DataDirectory,
    DataError,
    DirectoryDamaged,
    DirectoryUnusable,
    Manifest,
)
from segstore.server.durable.files import Files

log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"epoch-(\d{10})")
_CHUNK: Final = "chunk-"
_LOOKS: Final = range(3, -1, -1)
_number = attrgetter("number")


class Fenced(OSError):
    """Another owner has opened the container. path: the container's folder. epoch: the superseded epoch."""

    def __init__(self, path: Path, epoch: int) -> None:
        super().__init__(f"{path} was opened by another store; epoch {epoch} has ended")
        self.path = path
        self.epoch = epoch

    def __str__(self) -> str:
        return str(self.args[0])


def epochs_of(folder: Path) -> list[int]:
    """Returns the epochs that have folders, in order; an empty list if there is no folder."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


class ContainerEpoch:
    """One opening of the container in `folder`, in a folder `path` of its own; `number` is 1 for the first opening."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number
        self.path, self._next = (folder / f"epoch-{epoch:010d}" for epoch in (number, number + 1))

    @classmethod
    def claim(cls, folder: Path) -> ContainerEpoch:
        """Claims the next epoch of a container, durably, and so fences all older epochs. Raises `OSError`."""
        while True:
            present = epochs_of(folder)
            claimed = cls(folder, (present[-1] if present else 0) + 1)
            try:
                claimed.path.mkdir(0o700)
            except FileExistsError:
                continue
            break
        for path in (folder, folder.parent):
            Files().sync_folder(path)
        return claimed

    @property
    def is_over(self) -> bool:
        """Whether a later epoch has started. Raises `OSError` if that cannot be determined."""
        # The order matters: the next folder is removed after this one, so one of the checks detects a later epoch.
        return self._next.exists() or not self.path.exists()

    @property
    def is_known_over(self) -> bool:
        """As `is_over`; False if that cannot be determined, because then the disk has failed."""
        try:
            return self.is_over
        except OSError:
            return False

    def check(self) -> None:
        """Raises `Fenced` if a later epoch has started."""
        if self.is_over:
            raise Fenced(self.folder, self.number)

    def older(self) -> list[ContainerEpoch]:
        """Returns earlier openings that have folders, the latest first."""
        return [ContainerEpoch(self.folder, epoch) for epoch in reversed(epochs_of(self.folder)) if epoch < self.number]

    def remove_older(self) -> None:
        """Removes the folders of earlier openings, the earliest first. Raises `OSError`."""
        for epoch in reversed(self.older()):
            shutil.rmtree(epoch.path)


def current(epochs: Sequence[ContainerEpoch]) -> ContainerEpoch | None:
    """Returns the epoch that the next opening takes over; None for a new container."""
    return next(
        (epoch for epoch in sorted(epochs, reverse=True, key=_number) if DataDirectory.is_one(epoch.path)), None
    )


def lost(epochs: Sequence[ContainerEpoch]) -> Path | None:
    """Returns the path of a missing manifest if no epoch has a manifest; None if nothing was acknowledged."""
    first = min(epochs, default=None, key=_number)
    if first is None:
        return None
    # Only an opening with a manifest removes earlier folders, and commits need a manifest.
    if first.number > 1:
        return first.path / MANIFEST_FILE
    with suppress(DataError, OSError):
        if DataDirectory(first.path, Files()).read_mark():
            return first.path / MANIFEST_FILE
    return None


class FencedDirectory(DataDirectory):
    """The data directory of an epoch. It has no manifest until the first `put`."""

    def __init__(self, epoch: ContainerEpoch, files: Files) -> None:
        super().__init__(epoch.path, files)
        self.epoch = epoch
        self._is_new = True

    @classmethod
    def adopt(
        cls, epoch: ContainerEpoch, *, containers: int, held: tuple[int, ...], cluster: str, files: Files | None = None
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
        for name in old.manifest.names:
            try:
                os.link(before / name, self.path / name)
            except FileNotFoundError as error:
                self.epoch.check()  # a later owner may have removed it
                raise DirectoryDamaged(before, before / name, "it is missing") from error
        for file in before.iterdir():
            if file.name.startswith(_CHUNK):
                try:
                    os.link(file, self.path / file.name)
                except FileNotFoundError:  # no longer in force; otherwise reading it reports that it is missing
                    continue
        self.manifest = old.manifest
        self.committed = old.committed

    def abandon(self) -> None:
        """Closes the directory and removes its contents. It must not have a manifest."""
        self.close()
        with suppress(OSError):  # the next opening that succeeds removes it as a whole
            for file in tuple(self.path.iterdir()):
                file.unlink()

    @property
    def is_over(self) -> bool:
        return self.epoch.is_known_over

    def check_place(self) -> None:
        self.epoch.check()
        super().check_place()

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
