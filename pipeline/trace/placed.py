"""Reads records with their places, as the judge of `segstore.wire.history` takes them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate, repeat
from typing import Final

from segstore.pipeline.storage import Storage
from segstore.pipeline.trace.files import LOCAL, FileRange, Skipped
from segstore.pipeline.trace.reading import read_piece
from segstore.wire.history import Place, timed
from segstore.wire.trace import Record

Placed = tuple[Place, Record]

_make_place: Final = partial(tuple.__new__, Place)


def placed_records(
    piece: FileRange,
    skipped: Callable[[Skipped], object],
    damaged: set[str],
    *,
    ports: tuple[int, ...] = (),
    storage: Storage = LOCAL,
) -> Iterator[Placed]:
    """Yields the records of a whole file, or of a share of its connections, in order; their times never decrease.

    skipped: called for each part that cannot be read. damaged: gets the path of a file with records behind such a part.
    ports: as in `read_piece`.
    """
    records = _located(piece, skipped, damaged, ports, storage)
    if piece.form == "capture":
        return records
    if piece.form == "packets":
        records = iter(sorted(records, key=lambda placed: (placed[0].block, placed[0].record)))
    return timed(records)


def _located(
    piece: FileRange, skipped: Callable[[Skipped], object], damaged: set[str], ports: tuple[int, ...], storage: Storage
) -> Iterator[Placed]:
    share, shares = piece.share, piece.shares
    first_skip, last, latest = sys.maxsize, -1, -sys.maxsize
    with closing(read_piece(piece, ports=ports, storage=storage)) as chunks:  # type: ignore[type-var]  # a generator
        for chunk in chunks:
            if isinstance(chunk, Skipped):
                skipped(chunk)
                first_skip = min(first_skip, chunk.offset)
                continue
            last = max(last, chunk.block_of(len(chunk) - 1))
            columns = chunk.columns
            if columns is None:
                for block, number, record in chunk.located:
                    yield Place(piece.path, block, number, record[1], record[0]), record
                continue
            blocks = repeat(chunk.block) if chunk.packets is None else chunk.packets
            connections: Sequence[int] = columns.connection.tolist()
            times: Sequence[int] = columns.ts_ns.tolist()
            if piece.form == "capture":
                if times[0] < latest or times != sorted(times):
                    times = list(accumulate(times, max, initial=latest))[1:]
                latest = times[-1]
            records: Iterable[Record] = columns
            numbers: Sequence[int] = range(len(columns))
            if shares > 1:
                numbers = [number for number, connection in enumerate(connections) if connection % shares == share]
                connections = [connections[number] for number in numbers]
                times = [times[number] for number in numbers]
                records = map(columns.__getitem__, numbers)
            values = zip(repeat(piece.path), blocks, numbers, connections, times)
            yield from zip(map(_make_place, values), records, strict=True)
    if first_skip < last:
        damaged.add(piece.path)
