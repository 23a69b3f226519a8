"""File operations of a data directory, replaceable in tests to simulate full and failing disks.

Invariants: a call that returns has done all of its work, and raises `OSError` otherwise; a created file did not exist
before; files and folders are accessible to their owner only; only regular files are read: symbolic links are not
followed, and opening a FIFO does not block.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

from segstore.server.store import Buffer

_DIRECT: Final = getattr(os, "O_DIRECT", 0)
"""Linux's flag for direct I/O; 0 elsewhere."""


def file_name(kind: str, number: int) -> str:
    """Returns the name of a numbered file. kind: "chunk", "journal" or "snapshot"."""
    return f"{kind}-{number:010d}"


def open_regular(path: Path) -> FileIO:
    """Opens a regular file for reading. Raises `OSError` for anything else."""
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
    """Returns the content of a regular file. Raises `OSError` for anything else."""
    with open_regular(path) as file:
        return file.readall()


def _set_direct(descriptor: int, *, on: bool) -> bool:
    """Turns direct I/O on or off for a file, on systems that have it; returns whether it was on."""
    if not _DIRECT:
        return False
    import fcntl

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _DIRECT if on else flags & ~_DIRECT)
    return bool(flags & _DIRECT)


class Files:
    """The file system."""

    def create(self, path: Path) -> int:
        """Creates a new file, open for writing; the caller closes the descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def create_direct(self, path: Path) -> int:
        """Creates a file that is written with direct I/O if the file system supports it.

        Writes should be whole pages, aligned in the file and in memory (as an `mmap` is). `write` falls back to the
        page cache for other data, or if the device refuses pages of this size; later calls of `write_at` and
        `write_durably` have no fallback.
        """
        descriptor = self.create(path)
        with suppress(OSError):  # not every file system can
            _set_direct(descriptor, on=True)
        return descriptor

    def write(self, descriptor: int, data: Buffer) -> None:
        """Writes all of `data`. If direct I/O is refused, this and all later data go through the page cache."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not _set_direct(descriptor, on=False):
                    raise

    def write_new(self, path: Path, data: Buffer) -> None:
        """Creates a file with this content, and waits until it is on disk."""
        descriptor = self.create(path)
        try:
            self.write(descriptor, data)
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def write_at(self, descriptor: int, data: Buffer, at: int) -> None:
        """Writes all of `data` at an offset."""
        view = memoryview(data)
        while view:
            done = os.pwrite(descriptor, view, at)
            view, at = view[done:], at + done

    def sync(self, descriptor: int) -> None:
        """Waits until the file is on disk."""
        os.fsync(descriptor)

    def write_durably(self, descriptor: int, data: Buffer, at: int) -> None:
        """As `write_at`, and waits until it is on disk: the file's bytes, and its size if it has grown, but not its
        times."""
        Files.write_at(self, descriptor, data, at)
        os.fdatasync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Replaces `target` with `source` atomically."""
        source.replace(target)
        self.sync_folder(target.parent)

    def remove(self, path: Path) -> None:
        """Removes a file, if it exists."""
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        """Creates a folder and its parents, and waits until its name is on disk. This includes an existing folder,
        because the process that created it may have been killed before its name was on disk."""
        if not path.is_dir():
            self.make_folder(path.parent)
            path.mkdir(0o700, exist_ok=True)
        with suppress(PermissionError):  # the parent folder may belong to another user
            self.sync_folder(path.parent)

    def sync_folder(self, path: Path) -> None:
        """Waits until the names in a folder are on disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
