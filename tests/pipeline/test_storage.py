"""Traces on stores give the rows that they give locally; what a store refuses or breaks is one sentence."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import fsspec
import pytest
from fsspec.asyn import get_loop
from fsspec.implementations.memory import MemoryFileSystem

from segstore.pipeline import storage as storages
from segstore.pipeline.storage import RemoteFile, Storage, StorageError
from segstore.pipeline.trace.files import RecordChunk, Skipped, find_files, plan, sizes_of
from segstore.pipeline.trace.growth import next_offset
from segstore.pipeline.trace.reading import read_piece
from segstore.pipeline.trace.rows import trace_rows
from segstore.wire import DataAppended
from segstore.wire.trace import Record
from tests.looped import looped
from tests.pipeline.stores import SECRET, HttpStore, closed_stores, http_store, s3_server
from tests.pipeline.support import write_capture, write_fixture
from tests.wire.trace.traces import capture, record

RECORDS = [record(DataAppended(number, UUID(int=1), number, 0, 0), at=number) for number in range(200)]
CAPTURE = capture(RECORDS, a_block=5)


@pytest.fixture(scope="module", autouse=True)
def fsspec_runs() -> None:
    """Starts the thread that fsspec keeps for the whole run; it is the library's and no test's."""
    get_loop()


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """Options of an S3 server with a bucket `traces`."""
    with s3_server() as options:
        fsspec.filesystem("s3", **options).mkdir("traces")
        yield options


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpStore]:
    monkeypatch.setattr(storages, "WAITS_S", (0.0, 0.0, 0.0))
    with http_store() as store:
        yield store


def read(path: str, storage: Storage, piece_bytes: int = 1000) -> tuple[list[Record], list[Skipped]]:
    found = [each for piece in plan([path], piece_bytes, storage) for each in read_piece(piece, storage=storage)]
    records = [each.record for chunk in found if isinstance(chunk, RecordChunk) for each in chunk]
    return records, [each for each in found if isinstance(each, Skipped)]


def test_files_folders_and_globs_on_s3_are_found_and_read_like_local_ones(s3: dict[str, Any], tmp_path: Path) -> None:
    write_capture(tmp_path / "a.wtrace", RECORDS, a_block=5)
    write_fixture(tmp_path / "b.jsonl", RECORDS[:9])
    with closed_stores():
        store = fsspec.filesystem("s3", **s3)
        store.put(str(tmp_path), "traces/run", recursive=True)
        store.pipe_file("traces/run/notes.txt", b"no trace")
        storage = Storage(s3)
        both = ["s3://traces/run/a.wtrace", "s3://traces/run/b.jsonl"]
        for path in ("s3://traces/run", "s3://traces/run/", "s3://traces/r*/*.*l", "s3://traces"):
            found = find_files([path], storage=storage)
            assert found == (both if "*" not in path else both[1:])
        assert find_files(["s3a://traces/run/a.wtrace", both[0]], storage=storage) == [
            "s3a://traces/run/a.wtrace",
            both[0],
        ]
        assert sum(sizes_of(both, storage).values()) == sum(each.stat().st_size for each in tmp_path.iterdir())
        pieces = plan(both, 1000, storage)
        assert len(pieces) > 5
        rows = [found for piece in pieces for found in read_piece(piece, storage=pickle.loads(pickle.dumps(storage)))]
        assert [each.record for chunk in rows for each in chunk] == RECORDS + RECORDS[:9]  # type: ignore[union-attr]  # nothing is skipped
        with pytest.raises(FileNotFoundError, match="no such trace"):
            find_files(["s3://traces/none.wtrace"], storage=storage)
        assert find_files(["s3://traces/later/"], storage=storage, may_be_none=True) == []


def test_a_trace_on_s3_is_followed_and_an_unchanged_file_is_not_read(
    s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed_stores():
        store = fsspec.filesystem("s3", **s3)
        storage = Storage(s3)
        store.pipe_file("traces/grows/a.wtrace", CAPTURE[:1500])
        first = next_offset(find_files(["s3://traces/grows/"], storage=storage), {}, None, None, storage)
        store.pipe_file("traces/grows/a.wtrace", CAPTURE)
        second = next_offset(find_files(["s3://traces/grows/"], storage=storage), first, None, None, storage)
        path = "s3://traces/grows/a.wtrace"
        assert 0 < first[path] <= 1500 < second[path] == len(CAPTURE)
        ranges = [{path: (0, first[path])}, {path: (first[path], second[path])}]
        found = [
            each for part in ranges for piece in plan(part, 300, storage) for each in read_piece(piece, storage=storage)
        ]
        assert [each.record for chunk in found for each in chunk] == RECORDS  # type: ignore[union-attr]  # nothing is skipped
        files = find_files(["s3://traces/grows/"], storage=storage)
        monkeypatch.delattr(RemoteFile, "read_at")
        assert next_offset(files, second, None, None, storage) == second


@pytest.mark.parametrize("scheme", ["memory", "local"])
def test_any_file_system_of_fsspec_is_read(scheme: str, tmp_path: Path) -> None:
    folder = f"{scheme}://{tmp_path}"
    fsspec.filesystem(scheme).makedirs(str(tmp_path), exist_ok=True)
    for name in ("a.wtrace", "inner/b.wtrace"):
        with fsspec.open(f"{folder}/{name}", "wb", auto_mkdir=True) as file:
            file.write(CAPTURE)
    assert find_files([folder]) == [f"{folder}/a.wtrace", f"{folder}/inner/b.wtrace"]
    assert find_files([f"{folder}/*/b*"]) == [f"{folder}/inner/b.wtrace"]
    assert read(f"{folder}/a.wtrace", Storage()) == (RECORDS, [])
    assert [row[0] for row in trace_rows(folder, ["ts_ns"])] == 2 * list(range(200))


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [[503, 503], ["half", "half", 500], [429, "half"]])
def test_a_request_that_fails_or_gives_half_is_repeated(web: HttpStore, faults: list[int | str]) -> None:
    web.files["a.wtrace"] = CAPTURE
    web.faults = faults
    assert read(web.url("a.wtrace"), Storage()) == (RECORDS, [])
    assert web.faults == []


def test_a_store_that_fails_for_good_costs_only_what_it_does_not_give(web: HttpStore) -> None:
    web.files["a.wtrace"] = CAPTURE
    storage = Storage()
    first, *rest = plan([web.url("a.wtrace")], 3000, storage)
    web.faults = 4 * [503]
    (skipped,) = read_piece(first, storage=storage)
    assert isinstance(skipped, Skipped)
    assert (skipped.offset, skipped.size) == (first.start, first.size)
    assert "failed 4 times" in skipped.reason
    assert "503" in skipped.reason
    assert "try again" in skipped.reason
    found = [each for piece in rest for each in read_piece(piece, storage=storage)]
    assert found
    assert not any(isinstance(each, Skipped) for each in found)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_told_at_once_with_its_remedy(web: HttpStore, status: int) -> None:
    web.files["a.wtrace"] = CAPTURE
    web.faults = [status]
    (piece,) = plan([web.url("a.wtrace")], 1000, Storage())
    assert "refuses access" in piece.reason
    assert "renew the credentials" in piece.reason
    assert web.gets == 1


def test_a_file_that_shrinks_on_a_store_is_told_with_its_place(web: HttpStore) -> None:
    web.files["a.wtrace"] = CAPTURE
    storage = Storage()
    pieces = plan([web.url("a.wtrace")], 1000, storage)
    web.files["a.wtrace"] = CAPTURE[: pieces[2].start]
    found = [each for piece in pieces for each in read_piece(piece, storage=storage)]
    lost = [each for each in found if isinstance(each, Skipped)]
    kept = [each.record for chunk in found if isinstance(chunk, RecordChunk) for each in chunk]
    assert kept == RECORDS[: len(kept)]
    assert 0 < len(kept) < len(RECORDS)
    assert lost[0].offset < pieces[2].start
    assert sum(each.size for each in lost) == len(CAPTURE) - lost[0].offset
    assert {each.reason for each in lost[1:]} == {"the file is shorter than it was when it was planned"}
    del web.files["a.wtrace"]
    (gone,) = read_piece(pieces[0], storage=storage)
    assert isinstance(gone, Skipped)
    assert "No such file" in gone.reason


def test_sequential_reads_are_few_requests_and_scattered_ones_are_small(web: HttpStore) -> None:
    web.files["a"] = data = bytes(range(256)) * 4096
    with Storage().open(web.url("a")) as file:
        assert isinstance(file, RemoteFile)
        assert b"".join(file.read_at(at, 1000) for at in range(0, len(data), 1000)) == data
        assert web.gets == 2
        for at in (0, 900_000, 300_000):
            assert file.read_at(at, 64) == data[at : at + 64]
        assert web.gets == 5


def test_credentials_appear_in_no_message(web: HttpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"key": "somebody", "client_kwargs": {"tokens": [SECRET]}, "endpoint_url": "http://127.0.0.1:9"}
    storage = Storage(options)
    assert SECRET not in repr(storage)
    assert "somebody" not in repr(storage)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"bad {SECRET} of somebody at http://127.0.0.1:9/x?signature=abc from ftp://me:pw@host")

    monkeypatch.setattr(MemoryFileSystem, "info", fail)
    with pytest.raises(StorageError) as caught:
        find_files(["memory://x/a.wtrace"], storage=Storage({"nested": [SECRET, "somebody"]}))
    assert caught.value.__cause__ is None
    said = str(caught.value)
    assert "memory://x/a.wtrace: the store failed 4 times" in said
    assert not any(secret in said for secret in (SECRET, "somebody", "abc", "pw"))
    for url in (f"ftp://me:{SECRET}@host/a.wtrace", f"{web.url('a.wtrace')}?signature={SECRET}"):
        with pytest.raises(ValueError, match="credentials would appear in rows") as refused:
            find_files([url])
        assert SECRET not in str(refused.value)


@looped(
    ("path", "reason"),
    [
        ("nosuch://x/a.wtrace", "nosuch cannot be opened: ValueError: Protocol not known: nosuch"),
        ("smb://host/a.wtrace", "a package for smb is not installed"),
        ("hdfs://127.0.0.1:9/a.wtrace", "hdfs cannot be opened: OSError: Unable to load lib(jvm|hdfs)"),
    ],
)
def test_a_scheme_that_cannot_be_opened_is_refused_with_what_is_missing(path: str, reason: str) -> None:
    with pytest.raises((ValueError, StorageError), match=reason):
        find_files([path])
