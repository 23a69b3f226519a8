"""Opens files by position, on this machine and on the stores that fsspec reaches, such as S3, HDFS and HTTP.

A path without a scheme, or with the scheme `file`, is a file of this machine. Every other URL is opened by fsspec,
whose file systems have their own packages (s3fs, gcsfs, adlfs), options and environment variables.

Invariants: a read returns the bytes that it was asked for, fewer only at the end of the file. A request that fails is
repeated, except if the file is missing or access is refused; the final failure is an `OSError` of one sentence.
Messages of a store are shown without URL queries and without the values of `Storage.options`, and are not chained,
because they may contain credentials. Refused: URLs that contain credentials, because a URL appears in rows and
checkpoints.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")
S = TypeVar("S")

REQUESTS_AT_ONCE: Final = 32
"""Maximum number of files that are planned at the same time on a store."""
WAITS_S: Final = (0.2, 1.0, 3.0)
"""Waits between the attempts of a request."""
_FIRST_BYTES: Final = 64 * 1024
_AHEAD_BYTES: Final = 8 * 1024 * 1024
"""Minimum size of a request that continues the previous request."""
_MAX_MESSAGE: Final = 300
_CHANGED: Final = ("LastModified", "last_modified", "mtime", "modified", "updated", "modificationTime")
"""Names of the time of the last change in fsspec's file systems: a `datetime`, ISO 8601, or seconds since 1970;
`modificationTime`, of HDFS, is in milliseconds."""
_HIDDEN: Final = re.compile(r"(?<=\?)[^\s'\"<>]+|(?<=://)[^\s/@]+(?=@)")
_SHOWN_OPTIONS: Final = frozenset(
    ("account_name", "endpoint_url", "host", "port", "project", "protocol", "region_name", "user", "username")
)


class StorageError(OSError):
    """A store has failed, or refuses."""


class File(Protocol):
    """A file that is read by position."""

    @property
    def remote(self) -> bool:
        """Whether reads cost requests over a network."""

    @property
    def size(self) -> int:
        """Bytes of the file: of a local file now, of a remote one when it was last looked at."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Returns `length` bytes from `offset`, fewer only at the end of the file. Raises OSError."""

    def __enter__(self) -> File: ...

    def __exit__(self, *_: object) -> None: ...


class LocalFile:
    """A file of this machine. It is read with `pread`: a shrinking file is then a reportable error, where a memory map
    would crash the process.
    """

    __slots__ = ("_fd", "_file")
    remote: Final = False

    def __init__(self, file: IO[bytes]) -> None:
        """Takes an open file, which it closes."""
        self._file = file
        self._fd = file.fileno()

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        while len(data) < length and (more := os.pread(self._fd, length - len(data), offset + len(data))):
            data += more
        return data

    def __enter__(self) -> LocalFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class RemoteFile:
    """A file on a store. Holds the last bytes read; sequential reads become requests of at least 8 MiB."""

    __slots__ = ("_data", "_name", "_start", "_system", "size")
    remote: Final = True

    def __init__(self, system: _System, name: str, size: int) -> None:
        self._system = system
        self._name = name
        self._start = 0
        self._data = b""
        self.size = size

    def read_at(self, offset: int, length: int) -> bytes:
        length = max(min(length, self.size - offset), 0)
        held = b""
        least = _FIRST_BYTES
        if self._data and 0 <= offset - self._start <= len(self._data):
            at = offset - self._start
            if at + length <= len(self._data):
                return self._data[at : at + length]
            held, least = self._data[at:], _AHEAD_BYTES
        if length:
            self._data = held + self._fetch(offset + len(held), max(length - len(held), least))
            self._start = offset
        return self._data[:length] if length else b""

    def _fetch(self, offset: int, length: int) -> bytes:
        data = b""
        while (start := offset + len(data)) < (end := min(offset + length, self.size)):
            try:
                more: bytes = self._system.ask("cat_file", self._name, start=start, end=end)
            except StorageError:
                if not self._has_shrunk():
                    raise
                continue
            if len(more) > end - start:
                raise StorageError(
                    f"the store sent {len(more)} bytes for a range of {end - start}: copy the file first"
                )
            if not more and not self._has_shrunk():
                raise StorageError(f"the store sent nothing of the {end - start} bytes at {start}")
            data += more
        return data

    def _has_shrunk(self) -> bool:
        before, self.size = self.size, self._system.size(self._name)
        return self.size < before

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._data = b""


class Storage:
    """The stores that traces are read from.

    options: of fsspec's file systems, the same as `storage_options` of pandas. Pickled, it is these options. `files`
    remembers sizes: opening these files needs no request for them.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self.options = dict(options or {})
        self._found: dict[str, _Found] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.options,)

    def __repr__(self) -> str:
        return f"Storage({', '.join(sorted(self.options))})"

    def open(self, path: str) -> File:
        """Opens a file. Raises OSError."""
        if not is_remote(path):
            return LocalFile(open(path, "rb", buffering=0))  # noqa: PTH123 — unbuffered; closed by its owner
        system, name = self._system(path)
        listed = self._found.get(path)
        return RemoteFile(system, name, system.size(name) if listed is None else listed.size)

    def size(self, path: str) -> int:
        """Returns the size of a file. Raises OSError."""
        if not is_remote(path):
            return Path(path).stat().st_size
        with self.open(path) as file:
            return file.size

    def changed_ns(self, path: str) -> int | None:
        """Returns the time of a file's last change, None if it is missing. For a file on a store: from `files`, or the
        time of that call if the store reports none."""
        if is_remote(path):
            listed = self._found.get(path)
            return None if listed is None else listed.changed_ns
        try:
            return Path(path).stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def files(self, url: str) -> list[str]:
        """Returns the URLs of a file, of the files below a folder, or of the files that match a glob; may be empty.

        Raises OSError, ValueError.
        """
        system, name = self._system(url)
        try:
            listed = system.files(name, is_folder=url.endswith("/"))
        except StorageError as error:
            raise StorageError(f"{url}: {error}") from None
        # Names lack the scheme, and for some stores the host. The prefix of the given URL is kept.
        prefix = url.rstrip("/").removesuffix(name) if url.rstrip("/").endswith(name) else None
        urls = {system.url(file) if prefix is None else prefix + file: info for file, info in listed.items()}
        self._found.update(urls)
        return list(urls)

    def write(self, path: str, data: bytes) -> None:
        """Writes a small file, replacing an existing one at once. Raises OSError."""
        if is_remote(path):
            system, name = self._system(path)
            system.ask("pipe_file", name, data)
            return
        part = Path(f"{path}.{os.getpid()}.part")
        try:
            part.write_bytes(data)
            part.replace(path)
        except OSError as error:  # it names the part, or no file
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            part.unlink(missing_ok=True)

    def _system(self, url: str) -> tuple[_System, str]:
        parts = urlsplit(url)
        if parts.password is not None or (parts.query and parts.scheme in ("http", "https")):
            shown = _HIDDEN.sub("***", url)
            raise ValueError(f"{shown}: a URL with credentials would appear in rows; pass them as storage options")
        try:
            from fsspec.core import url_to_fs

            system, name = url_to_fs(url, **self.options)
        except ImportError as error:
            raise ValueError(f"{url}: a package for {parts.scheme} is not installed: {error}") from error
        except Exception as error:  # noqa: BLE001 — each file system has its own errors
            message = _shown(error, self.options)
            raise StorageError(
                f"{url}: {parts.scheme} cannot be opened: {message}; what it needs is in fsspec's documentation"
            ) from None
        return _System(system, self.options), name


class _Found(NamedTuple):
    """A file in a listing of a store."""

    size: int
    changed_ns: int

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> _Found:
        name = next((name for name in _CHANGED if info.get(name) is not None), "")
        changed = info.get(name)
        if isinstance(changed, str):
            with suppress(ValueError):
                changed = datetime.fromisoformat(changed)
        seconds = changed.timestamp() if isinstance(changed, datetime) else changed
        scale = 1e6 if name == "modificationTime" else 1e9
        return cls(info["size"], round(seconds * scale) if isinstance(seconds, int | float) else time.time_ns())


class _System:
    """A file system of fsspec, whose failing requests are repeated."""

    def __init__(self, system: Any, options: Mapping[str, Any]) -> None:
        self._system = system
        self._options = options

    def ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Calls a method of the file system. Raises OSError."""
        for wait_s in (*WAITS_S, None):
            try:
                return getattr(self._system, method)(*arguments, **options)
            except (FileNotFoundError, IsADirectoryError):
                raise FileNotFoundError(2, "No such file on the store", arguments[0]) from None
            except Exception as error:  # noqa: BLE001 — each file system has its own errors
                text = _shown(error, self._options)
                if _is_refusal(error):
                    reason = f"the store refuses access ({text}): renew the credentials, or pass others as its options"
                    raise StorageError(reason) from None
            if wait_s is not None:
                time.sleep(wait_s)
        raise StorageError(f"the store failed {len(WAITS_S) + 1} times ({text}): try again when it answers")

    def size(self, name: str) -> int:
        self._system.invalidate_cache(name)
        size: int | None = self.ask("info", name)["size"]
        if size is None:
            raise StorageError("the store does not report the size of the file: copy the file first")
        return size

    def files(self, name: str, *, is_folder: bool) -> dict[str, _Found]:
        """Returns the store's facts about the files that match a name, by file name, sorted."""
        self._system.invalidate_cache()
        if re.search(r"[*?[]", name):
            infos = self.ask("glob", name, detail=True)
        else:
            try:
                if not is_folder and (info := self.ask("info", name))["type"] == "file":
                    return {name: _Found.of(info)}
                infos = self.ask("find", name, detail=True)
            except FileNotFoundError:
                return {}
        return {file: _Found.of(info) for file, info in sorted(infos.items()) if info.get("type") == "file"}

    def url(self, name: str) -> str:
        url: str = self._system.unstrip_protocol(name)
        return url


def is_remote(path: str) -> bool:
    """Returns whether a path is the URL of a file that fsspec opens."""
    return "://" in path and not path.startswith("file:")


def concurrently(function: Callable[[S], T], items: Iterable[S], *, at_once: bool) -> Iterator[T]:
    """Yields the results in order. at_once: whether in threads, for calls that wait for a store."""
    if not at_once:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="segstore-plan") as pool:
        yield from pool.map(function, items)


def _is_refusal(error: Exception) -> bool:
    status = getattr(error, "status", None) or getattr(error, "code", None)
    return isinstance(error, PermissionError) or status in (401, 403) or "Credential" in type(error).__name__


def _shown(error: Exception, options: Mapping[str, Any]) -> str:
    """Returns the message of a store on one line, without credentials."""
    message = f"{type(error).__name__}: {' '.join(str(error).split())}"
    for secret in sorted(_secrets(options), key=len, reverse=True):
        message = message.replace(secret, "***")
    return _HIDDEN.sub("***", message)[:_MAX_MESSAGE]


def _secrets(options: Any, name: str = "") -> Iterator[str]:
    match options:
        case Mapping():
            for key, value in options.items():
                yield from _secrets(value, str(key))
        case list():
            for value in options:
                yield from _secrets(value, name)
        case str() if options and name not in _SHOWN_OPTIONS:
            yield options
