"""How long does planning 1 TB take on a store where every request takes 50 ms?

    python -m tests.soak.store_planning [--latency-ms N]

The store is simulated: a file system of fsspec that sleeps before it answers, and makes up captures of blocks of 4 MiB.
Planned are one capture of 1 TB, without and with an index; 1,000 captures of 1 GB in a folder; and the first batch of a
stream over these, with indexes. Of the pieces some are read, and must have the records of their blocks.

Exit status 1 if a plan takes longer than `GOAL_S`, or a piece lacks records.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Final

import fsspec
from fsspec.spec import AbstractFileSystem

from segstore.pipeline.blocks import write_index
from segstore.pipeline.storage import Storage
from segstore.pipeline.trace.files import FileRange, RecordChunk, find_files, piece_bytes_of, plan, sizes_of
from segstore.pipeline.trace.growth import next_offset
from segstore.pipeline.trace.reading import read_piece
from segstore.wire.trace import MARK_BYTES
from tests.wire.trace.traces import capture, record

GOAL_S: Final = 30.0
TERABYTE: Final = 10**12
FILES: Final = 1000
_WHOLE: Final = capture([record(bytes(4 << 20))])
_FIRST: Final = _WHOLE[: _WHOLE.index(_WHOLE[:MARK_BYTES], 1)]
_BLOCK: Final = _WHOLE[len(_FIRST) :]


class SimulatedStore(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Captures of one metadata block and the same block of records again and again; indexes are stored in memory."""

    protocol = "simulated"
    cachable = False
    latency_s = 0.0
    requests: ClassVar[Counter[str]] = Counter()
    sizes: ClassVar[dict[str, int]] = {}
    stored: ClassVar[dict[str, bytes]] = {}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        self._wait("info")
        name = self._strip_protocol(path)
        if name in self.stored:
            return {"name": name, "size": len(self.stored[name]), "type": "file"}
        if name in self.sizes:
            return {"name": name, "size": self.sizes[name], "type": "file"}
        if any(each.startswith(f"{name}/") for each in self.sizes):
            return {"name": name, "size": 0, "type": "directory"}
        raise FileNotFoundError(name)

    def find(self, path: str, *_: Any, **__: Any) -> dict[str, Any]:
        self._wait("find")
        return {
            name: {"name": name, "size": size, "type": "file"}
            for name, size in self.sizes.items()
            if name.startswith(f"{path}/")
        }

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        self._wait("cat_file")
        name = self._strip_protocol(path)
        if name in self.stored:
            return self.stored[name][start:end]
        at, stop = start or 0, self.sizes[name] if end is None else min(end, self.sizes[name])
        found = _FIRST[at:stop]
        while (at := (start or 0) + len(found)) < stop:
            offset = (at - len(_FIRST)) % len(_BLOCK)
            found += _BLOCK[offset : offset + stop - at]
        return found

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self.stored[self._strip_protocol(path)] = value

    def _wait(self, request: str) -> None:
        self.requests[request] += 1
        time.sleep(self.latency_s)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.store_planning")
    parser.add_argument("--latency-ms", type=float, default=50, help="time of a request (%(default)g)")
    latency_s = parser.parse_args().latency_ms / 1000
    fsspec.register_implementation("simulated", SimulatedStore)
    SimulatedStore.sizes = {
        "one/a.wtrace": _whole_blocks(TERABYTE),
        **{f"many/{at:04}.wtrace": _whole_blocks(TERABYTE // FILES) for at in range(FILES)},
    }
    storage = Storage()
    worst_s = 0.0

    def timed(what: str, work: Callable[[], list[FileRange] | dict[str, int]]) -> None:
        nonlocal worst_s
        SimulatedStore.requests.clear()
        SimulatedStore.latency_s, started = latency_s, time.monotonic()
        found = work()
        took_s = time.monotonic() - started
        SimulatedStore.latency_s = 0.0
        worst_s = max(worst_s, took_s)
        print(f"{what}: {took_s:.2f} s, {SimulatedStore.requests.total()} requests, {len(found)} parts", flush=True)
        for piece in found if isinstance(found, list) else ():
            if piece.start // 10**9 % 250 == 0 and piece.path.endswith(("a.wtrace", "0500.wtrace")):
                _check(piece, storage)

    def planned(folder: str) -> list[FileRange]:
        files = find_files([f"simulated://{folder}"], storage=storage)
        return plan(files, piece_bytes_of(sum(sizes_of(files, storage).values())), storage)

    timed("1 TB in one capture", lambda: planned("one"))
    timed("1 TB in 1,000 captures", lambda: planned("many"))
    for name in SimulatedStore.sizes:
        write_index(f"simulated://{name}", storage)
    timed("1 TB in one capture with an index", lambda: planned("one"))
    timed("1 TB in 1,000 captures with indexes", lambda: planned("many"))
    timed(
        "a stream's first batch over 1 TB in 1,000 captures with indexes",
        lambda: next_offset(find_files(["simulated://many"], storage=storage), {}, None, None, storage),
    )
    print(f"the longest took {worst_s:.2f} s, goal {GOAL_S:g} s", flush=True)
    return int(worst_s > GOAL_S)


def _whole_blocks(size: int) -> int:
    return len(_FIRST) + (size - len(_FIRST)) // len(_BLOCK) * len(_BLOCK)


def _check(piece: FileRange, storage: Storage) -> None:
    """Compares the number of records of a piece with the number of blocks that start in it, each of one record."""
    first, stop = (-(-(max(at - len(_FIRST), 0)) // len(_BLOCK)) for at in (piece.start, piece.stop))
    found = list(read_piece(piece, storage=storage))
    records = sum(len(each) for each in found if isinstance(each, RecordChunk))
    if records != stop - first:
        raise SystemExit(f"{piece.path} from {piece.start} to {piece.stop} gave {records} records: {found[-1]}")


if __name__ == "__main__":
    sys.exit(main())
