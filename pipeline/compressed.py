"""Decompresses whole files (gzip, Zstandard) into temporary files, where they can be read by position.

Invariant: data before damage is kept. At most `most_bytes` are written, by default as many as the environment variable
`SEGSTORE_MAX_DECOMPRESSED_BYTES` says, or 64 GiB.
"""

from __future__ import annotations

import gzip
import io
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

from segstore.pipeline.storage import File, LocalFile

COMPRESSIONS: Final = {".gz": bytes.fromhex("1f8b"), ".zst": bytes.fromhex("28b52ffd")}
"""Suffix → first bytes of a compressed file."""
MOST_BYTES: Final = 64 << 30
"""Default maximum size of a decompressed file."""
MOST_BYTES_VARIABLE: Final = "SEGSTORE_MAX_DECOMPRESSED_BYTES"
"""Environment variable with another maximum."""
_AT_ONCE: Final = 1 << 20


class BadLimit(ValueError):
    """The environment's maximum is not a positive number of bytes."""


@contextmanager
def decompressed(file: File, stop: int, most_bytes: int | None = None) -> Iterator[tuple[LocalFile, str]]:
    """Yields the decompressed contents of a file's first `stop` bytes, and why there are no more; "" for all of it.

    most_bytes: of the contents; None for the environment's maximum, or `MOST_BYTES`. Raises BadLimit if the
    environment's is invalid.
    """
    limit = decompressed_limit()
    with tempfile.TemporaryFile(prefix="segstore-", buffering=0) as into, LocalFile(into) as content:
        yield content, _decompress(file, stop, into, most_bytes or limit)


def decompressed_limit() -> int:
    """Returns the environment's maximum, or `MOST_BYTES`. Raises BadLimit."""
    text = os.environ.get(MOST_BYTES_VARIABLE) or str(MOST_BYTES)
    if not text.isascii() or not text.isdigit() or not int(text):
        raise BadLimit(f"{MOST_BYTES_VARIABLE} is a positive number of bytes, not {text!r}")
    return int(text)


def _decompress(file: File, stop: int, into: IO[bytes], most_bytes: int) -> str:
    left = most_bytes
    try:
        with _opened(file, stop) as source:
            while data := source.read(_AT_ONCE):
                view = memoryview(data)[:left]
                while view:
                    view = view[into.write(view) :]
                if len(data) > left:
                    limit = f"{most_bytes} bytes ({MOST_BYTES_VARIABLE})"
                    return f"the limit of {limit} is reached: decompress the file first"
                left -= len(data)
    except ImportError:
        return "reading .zst needs pyarrow: pip install pyarrow, or decompress the file first"
    except (OSError, EOFError, zlib.error, ValueError) as error:
        return f"what follows cannot be decompressed: {getattr(error, 'strerror', None) or error}"
    return ""


def _opened(file: File, stop: int) -> Any:
    raw = io.BufferedReader(_Raw(file, stop), _AT_ONCE)
    if file.read_at(0, 2) == COMPRESSIONS[".gz"]:
        return gzip.GzipFile(fileobj=raw)
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")


class _Raw(io.RawIOBase):
    """The first `stop` bytes of a file as a stream."""

    def __init__(self, file: File, stop: int) -> None:
        self._file = file
        self._left = stop
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read_at(self._at, min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._at += len(data)
        self._left -= len(data)
        return len(data)
