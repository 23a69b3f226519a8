"""File operations of a data directory, replaceable in tests to simulate full and failing disks.

Invariant: a call that returns has done all of its work; ``OSError`` otherwise. A file that is created was not there.
Files and folders are accessible to their owner only. Only regular files are read: symbolic links are not followed, and
opening a FIFO does not block.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from io import FileIO
from pathlib import Path

from segstore.server.store import Buffer


def open_regular(path: Path) -> FileIO:
    """A regular file, open for reading. Raises `OSError` for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return FileIO(descriptor)
        os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a symbolic link, a socket
            raise
    raise OSError(errno.EINVAL, f"{path} is not a regular file")


def read_regular(path: Path) -> bytes:
    """The content of a regular file. Raises `OSError` for anything else."""
    with open_regular(path) as file:
        return file.readall()


class Files:
    """The file system."""

    def create(self, path: Path) -> int:
        """A new file, open for writing; the descriptor is the caller's to close."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, descriptor: int, data: Buffer) -> None:
        """Write all of ``data``."""
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def write_at(self, descriptor: int, data: Buffer, at: int) -> None:
        """Write all of ``data`` at an offset."""
        view = memoryview(data)
        while view:
            done = os.pwrite(descriptor, view, at)
            view, at = view[done:], at + done

    def sync(self, descriptor: int) -> None:
        """Wait until the file is on disk."""
        os.fsync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Give a file the name of another one, at once."""
        source.replace(target)
        self.sync_folder(target.parent)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is gone is fine."""
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        """Make a folder, and those above it, and wait until its name is on disk. This includes a folder that exists,
        because the process that made it may have been killed before its name was on disk."""
        if not path.is_dir():
            self.make_folder(path.parent)
            path.mkdir(0o700, exist_ok=True)
        with suppress(PermissionError):  # the parent folder may belong to another user
            self.sync_folder(path.parent)

    def sync_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
