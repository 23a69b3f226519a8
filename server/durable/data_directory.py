"""A data directory: its owner, the files in force, and the last commit.

    MANIFEST            names the snapshot and journals in force; replaced atomically
    committed           the number of the last batch that was, or could have been, acknowledged
    snapshot-NNNNNNNNNN state of the containers and the controller, see `snapshot`
    chunk-NNNNNNNNNN    bytes of segments, see `chunk_files`
    journal-NNNNNNNNNN  commit groups, see `journal`

A process owns the directory while it holds a lock on the directory itself, which the system releases when the process
ends.

Invariants: a file is complete and on disk before the manifest names it, and is removed only when no manifest names it.
Files with these names that the manifest does not name were left by a crash, and are removed. `committed` is written
after a commit and before its acknowledgement, without waiting for the disk: its number is never too high, survives the
process, and after a power loss may be older than the journal. A process writes only to files that it created, including
`committed`, so files with hard links elsewhere are not changed.

Refused with one sentence and without any change: a directory of another process, another format, another cluster, or
other containers; a directory that contains foreign files, or anything but regular files and folders; a corrupt or
unusable directory.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import Any, Final, TypeVar
from zlib import crc32

import msgspec

from segstore.server.durable.files import Files, file_name, read_regular

T = TypeVar("T")

FORMAT: Final = 2
"""The only format that is read and written."""

CLUSTER_FILE: Final = "CLUSTER"
"""File that marks the folder of a cluster of processes, which contains data directories but is none itself."""

COMMITTED_FILE: Final = "committed"

MANIFEST_FILE: Final = "MANIFEST"

_NEW_COMMITTED: Final = "committed.new"
_NEW_MANIFEST: Final = "MANIFEST.new"
_NO_DATA: Final = frozenset({COMMITTED_FILE, _NEW_COMMITTED, _NEW_MANIFEST})
"""Files that may exist before there is a manifest."""
_FIRST_LINE: Final = re.compile(rb"segstore (data|cluster) ([0-9]{1,9}) ([0-9a-f]{8})\n")
_MARK: Final = Struct(">8sQI")
_MARK_MAGIC: Final = b"SEGMARK1"
_OURS: Final = re.compile(r"(?:snapshot|chunk|journal)-\d{10}")
"""Names of numbered files."""


class DataError(Exception):
    """Root of a data directory's errors; the text is one sentence. path: the directory."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


class DirectoryInUse(DataError):
    """Another process uses the directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, f"{path} is in use by another process; end that one, or choose another directory")


class UnknownFormat(DataError):
    """The directory is in a format that this version does not read. version: of the format."""

    def __init__(self, path: Path, version: int) -> None:
        super().__init__(
            path,
            f"{path} is in format {version}, and this version of segstore reads format {FORMAT}; "
            "start the version that wrote it, or choose another directory",
        )
        self.version = version


class DirectoryForeign(DataError):
    """The directory belongs to another cluster, or is not a data directory."""


class DirectoryDamaged(DataError):
    """A file in the directory is corrupt. file: its path. what: the defect."""

    def __init__(self, path: Path, file: Path | str, what: str, *, within: Path | None = None) -> None:
        """within: the directory to verify, if it is not `path`."""
        super().__init__(
            path,
            f"{file} is damaged: {what}; restore {path} from a copy, `segstore verify {within or path}` says what "
            "else is",
        )
        self.file = Path(file)
        self.what = what


class DirectoryUnusable(DataError):
    """The system does not allow using the directory."""

    def __init__(self, path: Path, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or error
        super().__init__(
            path,
            f"{path} cannot be used as a data directory: {reason}; make sure that it has space and can be written to, "
            "or choose another directory",
        )


class DirectoryGone(OSError):
    """The directory was removed or replaced while it was open; the text is one sentence."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} was removed or replaced")


class SnapshotFile(msgspec.Struct, frozen=True):
    """number: in its name. size, crc: of the whole file."""

    number: int
    size: int
    crc: int

    @property
    def name(self) -> str:
        return file_name("snapshot", self.number)


class JournalFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """number: the number in its name. base_crc: checksum of its header. last: its last valid batch, also if more
    follow; None if all are valid.
    """

    number: int
    base_crc: int
    last: int | None = None

    @property
    def name(self) -> str:
        return file_name("journal", self.number)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files in force, and the directory's owner.

    cluster: the cluster's id. containers: number of containers in the cluster. held: the containers in this directory.
    batch: the batch before the first journal. journals: the journals after the snapshot, in order. numbers: the last
    number given to a file.
    """

    cluster: str
    containers: int
    held: tuple[int, ...]
    batch: int = 0
    snapshot: SnapshotFile | None = None
    journals: tuple[JournalFile, ...] = ()
    numbers: int = 0

    @property
    def names(self) -> list[str]:
        """The names of the snapshot and the journals."""
        return [file.name for file in (self.snapshot, *self.journals) if file is not None]


_MANIFEST: Final = msgspec.json.Decoder(Manifest)


def signed(kind: bytes, value: msgspec.Struct) -> bytes:
    """Returns the content of a file of this kind: a line with the format and a checksum, and the value as JSON."""
    version, body = b"%d" % FORMAT, json.dumps(msgspec.to_builtins(value), indent=1).encode() + b"\n"
    return b"segstore %s %s %08x\n" % (kind, version, crc32(version + b"\n" + body)) + body


def read_signed(kind: bytes, file: Path, decoder: msgspec.json.Decoder[T]) -> T:
    """Returns the value in a file that `signed` made. Raises `DirectoryDamaged`, `UnknownFormat`, `OSError`."""
    data = read_regular(file)
    first = _FIRST_LINE.match(data)
    if first is None or first[1] != kind:
        raise DirectoryDamaged(file.parent, file, f"its first line does not begin with 'segstore {kind.decode()}'")
    body, version = data[first.end() :], int(first[2])
    if crc32(first[2] + b"\n" + body) != int(first[3], 16):
        raise DirectoryDamaged(file.parent, file, "it does not have its checksum")
    if version != FORMAT:
        raise UnknownFormat(file.parent, version)
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise DirectoryDamaged(file.parent, file, str(error)) from error


def check_entries(folder: Path) -> set[str]:
    """Returns a folder's names. Raises `DirectoryDamaged` for anything but regular files and folders, `OSError`."""
    with os.scandir(folder) as entries:
        by_name = {entry.name: entry for entry in entries}
    for entry in by_name.values():
        kind_is_right = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
        if not kind_is_right and os.path.lexists(entry):
            raise DirectoryDamaged(folder, entry.path, "it is neither a regular file nor a folder")
    return set(by_name)


def check_containers(path: Path, present: int, wanted: int) -> None:
    """Raises `DirectoryForeign` for a directory of a cluster with another number of containers."""
    if present != wanted:
        raise DirectoryForeign(
            path,
            f"{path} belongs to a cluster of {present} containers, and this one has {wanted}; "
            f"start it with --containers {present}, or choose another directory",
        )


class DataDirectory:
    """A data directory that this process owns or inspects, with its manifest.

    `committed` is the number in the file of that name when it was opened.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = files
        self.manifest = Manifest("", 0, ())
        self.committed = 0
        self._folder = -1
        self._mark = -1

    @classmethod
    def open(cls, path: Path, *, containers: int, held: tuple[int, ...], files: Files | None = None) -> DataDirectory:
        """Opens the directory, and creates it if it does not exist. Raises `DataError`.

        containers: number of containers in the cluster. held: the containers that this process owns. A new directory
        gets a random cluster id.
        """
        self = cls(path, files or Files())
        with self._usable():
            self._open(containers, held)
        return self

    @classmethod
    def look(cls, path: Path) -> DataDirectory:
        """Locks a directory to inspect it; nothing is changed. Raises `DataError`."""
        self = cls(path, Files())
        with self._usable():
            if not self.is_one(path):
                raise DirectoryForeign(path, f"{path} is not a data directory: it has no {MANIFEST_FILE}")
            self._take()
            self._read()
        return self

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise DirectoryUnusable(self.path, error) from error
            raise

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether the path is a data directory, intact or corrupt."""
        return os.path.lexists(path / MANIFEST_FILE)

    def close(self) -> None:
        """Releases the directory. Can be called twice."""
        descriptors = self._mark, self._folder
        self._mark = self._folder = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)

    def _open(self, containers: int, held: tuple[int, ...]) -> None:
        path = self.path
        if path.exists() and not path.is_dir():
            raise DirectoryForeign(path, f"{path} is not a directory")
        self.files.make_folder(path)
        names = self._take()
        if MANIFEST_FILE not in names and (others := sorted(names - _NO_DATA)):
            if any(map(_OURS.fullmatch, others)):
                raise DirectoryDamaged(path, path / MANIFEST_FILE, f"it is missing, and {others[0]} is there")
            if CLUSTER_FILE in names:
                raise DirectoryForeign(
                    path, f"{path} is that of a cluster of processes; start it with --zookeeper, or choose another one"
                )
            raise DirectoryForeign(
                path, f"{path} is not a data directory, it holds {others[0]!r}; choose an empty one or a new name"
            )
        if MANIFEST_FILE not in names:
            # If only the manifest survived a power loss, that would count as corruption.
            self._make_mark()
            self.put(Manifest(str(uuid.uuid4()), containers, held))
            return
        self._read()
        manifest = self.manifest
        check_containers(path, manifest.containers, containers)
        if manifest.held != held:
            raise DirectoryForeign(
                path,
                f"{path} holds containers {_list(manifest.held)}, and this store owns {_list(held)}; "
                f"start it with --own {_list(manifest.held, ',')}, or choose another directory",
            )
        # Detect a directory that cannot be written to before anything depends on it.
        self._make_mark()
        self.put(manifest)

    def look_at(self) -> None:
        """Reads the manifest of a directory that another process may own. Raises `DataError`, `OSError`."""
        check_entries(self.path)
        self._read()

    def _take(self) -> set[str]:
        """Locks the directory; returns the names in it."""
        try:
            import fcntl
        except ImportError:
            raise DataError(
                self.path, f"{self.path}: a data directory needs POSIX file locks; this system has none"
            ) from None
        self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryInUse(self.path) from None
        return check_entries(self.path)

    def _make_mark(self) -> None:
        files, new = self.files, self.path / _NEW_COMMITTED
        files.remove(new)
        self._mark = files.create(new)
        DataDirectory.note(self, self.committed)
        files.sync(self._mark)
        files.replace(new, self.path / COMMITTED_FILE)

    def check_place(self) -> None:
        """Raises `DirectoryGone` if the path no longer leads to the locked directory and its file `committed`."""
        try:
            is_there = os.path.samestat(self.path.stat(), os.fstat(self._folder)) and os.fstat(self._mark).st_nlink
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise DirectoryGone(self.path)

    def check_owner(self, cluster: str, containers: int, held: tuple[int, ...]) -> None:
        """Raises `DirectoryForeign` for a directory of another cluster or of other containers."""
        manifest = self.manifest
        for what, here, there in (
            ("belongs to cluster", manifest.cluster, cluster),
            ("counts containers", manifest.containers, containers),
            ("holds containers", manifest.held, held),
        ):
            if here != there:
                raise DirectoryForeign(self.path, f"{self.path} {what} {here}, but this cluster has {there} there")

    def _read(self) -> None:
        self.manifest = read_signed(b"data", self.path / MANIFEST_FILE, _MANIFEST)
        self.read_mark()

    def read_mark(self) -> int:
        """Reads the number in `committed`, also of a directory that is not open. Raises `DataError`, `OSError`."""
        file = self.path / COMMITTED_FILE
        if not file.exists():
            raise DirectoryDamaged(self.path, file, "it is missing")
        data = read_regular(file)
        if len(data) != _MARK.size or data[:8] != _MARK_MAGIC or crc32(data[:-4]) != int.from_bytes(data[-4:]):
            raise DirectoryDamaged(self.path, file, "it does not have its checksum")
        self.committed = _MARK.unpack(data)[1]
        return self.committed

    # --- manifest and mark ------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether another process has taken over, so that this one's writes no longer count."""
        return False

    def note(self, number: int) -> None:
        """Records that batches up to `number` are durable. Any thread may call it, but calls must not overlap. Raises
        `OSError`.
        """
        head = _MARK.pack(_MARK_MAGIC, number, 0)[:-4]
        self.files.write_at(self._mark, head + crc32(head).to_bytes(4), 0)

    def put(self, manifest: Manifest) -> None:
        """Puts a manifest in force. Raises `OSError`."""
        files, new = self.files, self.path / _NEW_MANIFEST
        self.check_place()
        files.remove(new)
        files.write_new(new, signed(b"data", manifest))
        files.replace(new, self.path / MANIFEST_FILE)
        self.manifest = manifest

    def change(self, **fields: Any) -> None:
        """Calls `put` with the current manifest and changed fields."""
        self.put(msgspec.structs.replace(self.manifest, **fields))

    def remove_leftovers(self, chunks: set[int]) -> list[str]:
        """Removes the leftovers of a crash: all numbered files that are neither in the manifest nor in `chunks`.

        Returns their names.
        """
        keep = {file_name("chunk", number) for number in chunks}.union(self.manifest.names)
        gone = sorted(name for name in check_entries(self.path) if _OURS.fullmatch(name) and name not in keep)
        for name in gone:
            self.files.remove(self.path / name)
        return gone


def _list(numbers: tuple[int, ...], between: str = ", ") -> str:
    return between.join(map(str, numbers))
