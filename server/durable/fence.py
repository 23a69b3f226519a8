"""Epochs of a container that several processes can open: the last to open it wins, the others find out.

Each opening has a folder of its own, named by its epoch, in the container's folder:

    containers/3/epoch-0000000007

Creating that folder is the claim: only one process succeeds, and the older owner is fenced from that moment. There is
no lock, so a stalled process blocks no other. An owner writes first, then checks whether a later epoch has started, and
only then acknowledges or removes anything. So whatever an older owner has acknowledged was visible when the later one
read, and what it writes afterwards is never acknowledged.

Invariant: `check` returns only if no later epoch had started when it was called. Folders are removed in the order of
their epochs, so two checks in the right order are enough.

The file system must show a process at once what another has written or created: one machine, or a cluster file system
with that guarantee. NFS does not have it.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"epoch-(\d{10})")


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
        names = [each.name for each in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(found[1]) for each in names if (found := _NAME.fullmatch(each)))


class Epoch:
    """One opening of a container.

    Attributes:
        folder: the container's folder.
        number: 1 for the first opening.
        path: the folder of this opening.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number
        self.path = _path(folder, number)
        self._next = _path(folder, number + 1)

    @classmethod
    def claim(cls, folder: Path) -> Epoch:
        """Claims the next epoch of a container, durably; all older ones are fenced. Raises `OSError`."""
        while True:
            present = epochs_of(folder)
            made = cls(folder, (present[-1] if present else 0) + 1)
            try:
                made.path.mkdir(0o700)
            except FileExistsError:
                continue
            break
        for each in (folder, folder.parent):
            descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return made

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

    def older(self) -> list[Epoch]:
        """Returns earlier openings that have folders, the latest first."""
        return [Epoch(self.folder, each) for each in reversed(epochs_of(self.folder)) if each < self.number]

    def remove_older(self) -> None:
        """Removes the folders of earlier openings, the earliest first. Raises `OSError`."""
        for each in reversed(self.older()):
            shutil.rmtree(each.path)


def _path(folder: Path, number: int) -> Path:
    return folder / f"epoch-{number:010d}"
