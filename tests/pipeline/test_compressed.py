"""Compressed traces are read as a whole; what cannot be decompressed is told, and what came before it is kept."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from segstore.pipeline.compressed import BadLimit
from segstore.pipeline.trace.files import find_files, pieces_of
from segstore.pipeline.trace.growth import next_offset
from segstore.pipeline.trace.reading import read_piece
from segstore.wire import DataAppended
from segstore.wire.trace import Metadata, write_lines
from tests.pipeline.support import both
from tests.wire.trace.traces import capture, record

RECORDS = [record(DataAppended(number, UUID(int=1), number, 0, 0), at=number) for number in range(500)]
CAPTURE = capture(RECORDS, a_block=5)
FIXTURE = "".join(write_lines(Metadata(17, "test", {}), RECORDS)).encode()


def zstd(data: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return out.getvalue().to_pybytes()


WAYS = [pytest.param(gzip.compress, ".gz", id="gzip"), pytest.param(zstd, ".zst", id="zstd")]


@pytest.mark.parametrize(("compress", "suffix"), WAYS)
@pytest.mark.parametrize(("data", "name"), [(CAPTURE, "a.wtrace"), (FIXTURE, "a.jsonl")], ids=["capture", "fixture"])
def test_a_compressed_trace_gives_the_rows_of_the_trace(
    tmp_path: Path, compress: Callable[[bytes], bytes], suffix: str, data: bytes, name: str
) -> None:
    plain, packed = tmp_path / name, tmp_path / f"{name}{suffix}"
    plain.write_bytes(data)
    packed.write_bytes(compress(data))
    columns = ["block", "record", "kind", "ts_ns", "command", "error"]
    assert both(packed, columns) == both(plain, columns)
    assert find_files([str(tmp_path)]) == [str(plain), str(packed)]


@pytest.mark.parametrize(("compress", "suffix"), WAYS)
def test_a_compressed_trace_that_is_cut_gives_what_comes_before(
    tmp_path: Path, compress: Callable[[bytes], bytes], suffix: str
) -> None:
    path = tmp_path / f"a.wtrace{suffix}"
    data = compress(capture([record(UUID(int=at).bytes * 999 + bytes(range(256)) * 40, at=at) for at in range(999)]))
    path.write_bytes(data[: len(data) // 2])
    *_, (kind, at, size, error) = both(path, ["kind", "block", "size", "error"])
    assert (kind, at, size) == ("skipped", 0, len(data) // 2)
    assert "what follows cannot be decompressed" in error
    assert int(error.partition("were decompressed")[0].split()[-2]) > 0


def test_what_compression_hides_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.wtrace.gz"
    path.write_bytes(gzip.compress(gzip.compress(CAPTURE)))
    assert both(path, ["kind", "error"]) == [("skipped", "it is compressed twice")]
    path.write_bytes(gzip.compress(b"something else"))
    ((kind, error),) = both(path, ["kind", "error"])
    assert (kind, "no whole block" in error) == ("skipped", True)
    monkeypatch.setenv("SEGSTORE_MAX_DECOMPRESSED_BYTES", str(len(CAPTURE) - 1))
    path.write_bytes(gzip.compress(CAPTURE))
    *whole, (kind, error) = both(path, ["kind", "error"])
    assert [kind for kind, _ in whole] == ["frame"] * 495 + ["skipped"], "the last block is cut"
    limit = f"the limit of {len(CAPTURE) - 1} bytes (SEGSTORE_MAX_DECOMPRESSED_BYTES) is reached"
    assert (kind, limit in error) == ("skipped", True)
    for invalid in ("abc", "0", "-1"):
        monkeypatch.setenv("SEGSTORE_MAX_DECOMPRESSED_BYTES", invalid)
        with pytest.raises(BadLimit, match=f"SEGSTORE_MAX_DECOMPRESSED_BYTES .* not '{invalid}'"):
            both(path, ["kind"])


def test_a_compressed_trace_that_is_followed_is_read_once(tmp_path: Path) -> None:
    path = str(tmp_path / "a.wtrace.gz")
    Path(path).write_bytes(gzip.compress(CAPTURE))
    first = next_offset([path], {}, None, None)
    assert first == {path: Path(path).stat().st_size}
    with Path(path).open("ab") as file:
        file.write(b"more")
    second = next_offset([path], first, None, None)
    (piece,) = pieces_of(path, 1000, 0, first[path])
    assert sum(len(chunk) for chunk in read_piece(piece)) == len(RECORDS)  # type: ignore[arg-type]  # nothing is skipped
    (piece,) = pieces_of(path, 1000, first[path], second[path])
    assert (piece.size, "has grown" in piece.reason) == (4, True)
