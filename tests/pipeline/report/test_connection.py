"""Connections followed one by one, from batches cut anywhere, give what the reference finds by the same code.

Planted faults and recorded traces check the statuses.
"""

from __future__ import annotations

from collections import Counter
from itertools import starmap
from typing import TYPE_CHECKING, Any

import pytest

from segstore.pipeline.report.analysis_rules import APPENDS, EXCHANGE_COLUMNS
from segstore.pipeline.report.connection import Found, Life
from segstore.pipeline.report.exchange import FRAME_COLUMNS, Row
from segstore.pipeline.report.reference import reference
from segstore.pipeline.trace.rows import trace_rows
from tests.pipeline.planted import planted, soup
from tests.pipeline.support import write_capture

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = pytest.mark.needs("Java 17 or newer")  # where it is, so is what the pipeline needs


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("followed")
    write_capture(folder / "planted.wtrace", planted(1)[0], a_block=50)
    write_capture(folder / "soup.wtrace", soup(2, 1000, 15), a_block=30)
    return str(folder)


def in_order(trace: str) -> list[tuple[Any, ...]]:
    """The rows as a task gets them: connection by connection."""
    at = [FRAME_COLUMNS.index(name) for name in ("connection", "file", "block", "record")]
    return sorted(trace_rows(trace, FRAME_COLUMNS), key=lambda row: tuple(row[each] for each in at))


@pytest.mark.parametrize("cut", [1, 7, 10_000])
def test_batches_cut_anywhere_give_what_the_reference_finds(trace: str, cut: int) -> None:
    import pyarrow as pa

    from segstore.pipeline.report import analysis_steps as steps
    from segstore.pipeline.trace.batches import arrow_schema
    from segstore.pipeline.trace.batches import unpacked as rows_of
    from segstore.pipeline.trace.columns import select

    table = pa.table(list(zip(*in_order(trace), strict=True)), schema=arrow_schema(select(FRAME_COLUMNS)))
    found = pa.Table.from_batches(steps.follow(table.to_batches(cut)))
    plain = reference(trace)

    def unpacked(name: str) -> pa.Table:
        packed = pa.table([found[name].drop_null()], names=[name])
        return pa.Table.from_batches(rows_of(getattr(steps, name.upper()), packed.to_batches()))

    def rows(name: str) -> list[tuple[Any, ...]]:
        return [tuple(each.values()) for each in found[name].to_pylist() if each is not None]

    def but_status(some: list[tuple[Any, ...]]) -> Counter[str]:
        at = EXCHANGE_COLUMNS.index("status")
        return Counter(repr((*row[:at], *row[at + 1 :])) for row in some)

    exchanges = [tuple(each.values()) for each in unpacked("exchanges").to_pylist()]
    assert but_status(exchanges + rows("uncovered")) == but_status(plain.exchanges)
    assert Counter(map(repr, exchanges)) <= Counter(map(repr, plain.exchanges))
    frames = unpacked("frames")
    assert frames.drop_columns("life").equals(table)
    assert {(row[1], row[2]) for row in exchanges} <= {
        (row["connection"], row["life"]) for row in frames.select(["connection", "life"]).to_pylist()
    }


def test_an_exchange_is_added_as_soon_as_nothing_can_change_it(trace: str) -> None:
    """So memory is bounded: of a connection whose requests are all answered, nothing is left for the end."""
    found, commands = Found(), EXCHANGE_COLUMNS.index("command")
    asked = 0
    life = Life(1, found)
    for row in starmap(Row, in_order(trace)):
        if row.connection == 1 and row.file.endswith("planted.wtrace"):
            asked += row.direction == "request" and (row.command in APPENDS or row.command in ("HELLO", "READ_SEGMENT"))
            life.see(row)
    before = [row for row in found.exchanges if row[commands] not in ("SETUP_APPEND", "KEEP_ALIVE")]
    assert len(before) == asked > 3
    count = len(found.exchanges)
    assert list(life.end())
    assert (len(found.exchanges), found.uncovered) == (count, [])
