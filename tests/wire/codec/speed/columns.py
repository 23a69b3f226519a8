"""Records as the columns that C takes, and the columns that it fills as values."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segstore.wire.trace import Record

__all__ = ["columns_of", "values_in"]


def columns_of(records: Sequence[Record]) -> tuple[bytes, ...]:
    """The first six arguments of `fill`."""
    numbers = struct.Struct(f"={len(records)}q")
    ends = [sum(len(each.data) for each in records[: at + 1]) for at in range(len(records))]
    return (
        numbers.pack(*(each.ts_ns for each in records)),
        numbers.pack(*(each.connection for each in records)),
        numbers.pack(*ends),
        bytes(each.direction for each in records),
        bytes(record.kind for record in records),
        b"".join(each.data for each in records),
    )


def values_in(buffers: tuple[Any, ...], count: int, type_: str) -> list[Any]:
    """The values of a column. type_: in Spark's terms, other than a timestamp."""
    valid, items, *data = buffers
    there = [bool(valid[at >> 3] >> (at & 7) & 1) for at in range(count)]
    match type_:
        case "boolean":
            found: list[Any] = [bool(items[at >> 3] >> (at & 7) & 1) for at in range(count)]
        case "string" | "binary":
            bytes_ = [bytes(data[0][start:end]) for start, end in pairwise(struct.unpack_from(f"={count + 1}i", items))]
            found = [each.decode() for each in bytes_] if type_ == "string" else bytes_
        case _:
            code = {"tinyint": "b", "int": "i", "bigint": "q"}[type_]
            found = list(struct.unpack_from(f"={count}{code}", items))
    return [value if each else None for value, each in zip(found, there, strict=True)]
