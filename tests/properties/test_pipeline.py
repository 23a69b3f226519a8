"""What holds of decoding and splitting whatever the bytes, the filters, the segments and the sizes are.

Beside the examples of `tests/pipeline`, which are to be quick.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segstore.client import StreamCut
from segstore.pipeline.replay_plan import plan as plan_of_parts
from segstore.pipeline.stream.cuts import cut_of, offsets_of, parse_place
from segstore.pipeline.stream.options import StreamAmount
from segstore.pipeline.stream.timeline import share_out
from segstore.pipeline.trace.columns import ALL_COLUMNS
from segstore.pipeline.trace.files import plan as plan_of_files
from segstore.pipeline.trace.filter import Chosen
from segstore.pipeline.trace.reading import read_piece
from segstore.wire import encode
from segstore.wire.names import MAX_INT32, segment_id
from segstore.wire.trace import Block, Damage, Record, TraceError, read_blocks
from tests.pipeline.stream.test_timeline import Query, Writing
from tests.pipeline.support import both, plain, vectorised, write_capture
from tests.pipeline.test_replay_plan import linked
from tests.pipeline.trace.test_files import RECORDS
from tests.pipeline.trace.test_files import read as read_files
from tests.pipeline.trace.test_filter import COLUMNS
from tests.pipeline.trace.test_filter import RECORDS as OF_ALL_SORTS
from tests.strategies import FRAMED, command_of, mutated, with_body
from tests.wire.trace.traces import capture, record, records

FEW = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
SEVERAL = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])

ids = st.builds(segment_id, st.integers(0, MAX_INT32), st.integers(0, MAX_INT32))
cuts = st.dictionaries(ids, st.integers(0, 2**63 - 1), min_size=1, max_size=20)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Frames of all commands: good, damaged, or cut as older peers cut them."""
    good = encode(draw(command_of(draw(st.sampled_from(list(FRAMED.values()))))))
    match draw(st.sampled_from(("good", "good", "cut", "damaged"))):
        case "cut":
            return with_body(good, good[8 : draw(st.integers(8, len(good)))])
        case "damaged":
            return draw(mutated(good))
    return good


selections = st.builds(
    Chosen,
    st.none() | st.frozensets(st.sampled_from(["HELLO", "UNKNOWN", "NO_SUCH_SEGMENT", "no"])),
    st.none() | st.frozensets(st.sampled_from([1, 2, 1 << 62])),
    st.sampled_from([-(1 << 63), -3_000, 2_000, 7_000]),
    st.sampled_from([-(1 << 63), -2_999, 2_000, 7_001, 1 << 63]),
)


@FEW
@given(st.lists(st.one_of(records(), frames().map(record)), max_size=12), st.booleans())
def test_rows_by_column_are_those_of_the_codec(tmp_path: Path, drawn: list[Record], tokens: bool) -> None:
    path = write_capture(tmp_path / "a.wtrace", drawn, a_block=7)
    assert len(both(path, ALL_COLUMNS, tokens=tokens)) == len(drawn)


@SEVERAL
@given(st.data(), st.integers(1, 2000))
def test_any_pieces_of_any_bytes_give_what_the_reader_of_captures_gives(
    tmp_path: Path, data: st.DataObject, piece_bytes: int
) -> None:
    whole = capture(RECORDS, a_block=3)
    bytes_ = data.draw(st.one_of(st.just(whole), mutated(whole), st.integers(0, len(whole)).map(lambda n: whole[:n])))
    path = tmp_path / "a.wtrace"
    path.write_bytes(bytes_)
    records, skipped = read_files(path, piece_bytes)
    try:
        expected = list(read_blocks(bytes_))
    except TraceError:
        assert records == []
        assert sum(each.size for each in skipped) == len(bytes_)
        return
    assert records == [
        (block.offset, column) for block in expected if isinstance(block, Block) for column in block.columns
    ]
    damages = [(each.offset, each.size) for each in expected if isinstance(each, Damage)]
    if records:
        assert [(each.offset, each.size) for each in skipped] == damages
    else:
        assert sum(each.size for each in skipped) == sum(size for _, size in damages)


@SEVERAL
@given(selections)
def test_columns_rows_and_blocks_agree(tmp_path: Path, chosen: Chosen) -> None:
    path = tmp_path / "a.wtrace"
    if not path.exists():
        write_capture(path, OF_ALL_SORTS, a_block=2)
        with path.open("ab") as file:
            file.write(b"torn")
    rows = plain([path], COLUMNS, chosen=chosen)
    assert vectorised([path], COLUMNS, chosen=chosen) == rows
    wanted = [
        row
        for row in plain([path], COLUMNS)
        for kind, command, connection, ts_ns, *_ in [row]
        if chosen == Chosen()
        or (
            kind != "skipped"
            and chosen.from_ns <= ts_ns < chosen.until_ns
            and (chosen.commands is None or command in chosen.commands)
            and (chosen.connections is None or connection in chosen.connections)
        )
    ]
    assert rows == wanted
    (piece,) = plan_of_files([str(path)])
    chunks = [chunk for chunk in read_piece(piece, takes_block=chosen.takes_block) if hasattr(chunk, "columns")]
    assert sum(map(len, chunks)) >= sum(row[0] != "skipped" for row in wanted)


@given(st.lists(st.tuples(st.integers(1, 12), st.none() | st.sampled_from("abcdefgh"))), st.integers(1, 6))
def test_every_connection_is_in_one_part_and_no_key_in_two(pairs: list[tuple[int, str | None]], parts: int) -> None:
    found = plan_of_parts(linked(*pairs), parts)
    part_of = found.part_of()
    assert set(part_of) == {("a", connection) for connection, _ in pairs}
    assert sum(len(part.connections) for part in found.parts) == len(part_of)
    assert len(found.parts) <= parts
    for key in {key for _, key in pairs if key is not None}:
        assert len({part_of["a", connection] for connection, named in pairs if named == key}) == 1
    assert sum(part.records for part in found.parts) == 10 * len(part_of)


@given(cuts)
def test_a_cut_that_was_written_is_read_as_the_same(cut: dict[int, int]) -> None:
    assert parse_place(StreamCut("s", "t", cut).to_text(), "s", "t") == cut
    assert cut_of(offsets_of(cut)) == cut


class Grown(NamedTuple):
    """A timeline that grows in the step after the moment 0."""

    had: int
    grown: int

    def amount_at(self, time_ms: int) -> int:
        return self.had + (self.grown if time_ms > 0 else 0)


def test_a_single_segment_gets_the_whole_limit() -> None:
    for grown in (*range(1, 60), 355, 997):
        for left in range(grown + 1):
            assert share_out({0: Grown(0, grown)}, 0, 1, left, {0: ()}) == {0: left}  # type: ignore[dict-item]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1000)), min_size=1, max_size=9), st.data())
def test_a_limit_is_shared_out_and_not_exceeded(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    lines = {each: Grown(*size) for each, size in enumerate(sizes)}
    waits_for = {
        each: sorted(data.draw(st.sets(st.integers(0, each - 1), max_size=2))) if each else [] for each in lines
    }
    left = data.draw(st.integers(0, sum(line.grown for line in lines.values())))
    amounts = share_out(lines, 0, 1, left, waits_for)  # type: ignore[arg-type]  # all that it asks for
    taken = {each: amount - lines[each].had for each, amount in amounts.items()}
    assert sum(taken.values()) <= left
    assert all(0 <= taken[each] <= lines[each].grown for each in taken)
    for each in lines:
        ended = [before in taken and taken[before] == lines[before].grown for before in waits_for[each]]
        assert (each in taken) is all(ended)
    if not any(waits_for.values()):
        assert sum(taken.values()) > left - len(lines)


pieces = st.tuples(st.integers(0, 100), st.sampled_from((0.001, 0.1, 1, 10, 1_000)), st.sampled_from((0.0, 0.9)))
"""Numbers of events, how many are written in a millisecond, and the fraction that has one key."""


@FEW
@given(
    st.integers(0, 1 << 32),
    st.builds(StreamAmount, st.integers(1, 1_000), st.booleans()),
    st.sampled_from((20, 100, 10_000)),
    st.lists(pieces, min_size=1, max_size=6),
)
def test_what_is_late_was_written_within_the_alignment(
    seed: int, limit: StreamAmount, alignment_ms: int, pieces: list[tuple[int, float, float]]
) -> None:
    """Events are a second of their own time apart, and written much faster or slower."""
    writing = Writing(seed, 1 + seed % 4)
    for piece in pieces:
        writing.write(*piece)
        writing.scale()
    query = asyncio.run(Query(writing.stream, limit, alignmentMs=str(alignment_ms)).run())
    query.check(writing.written)
    times = [each.time_ms for each in writing.written]
    latest = late = 0
    for batch in query.batches:
        late = max(late, latest - batch[0].number, *(latest - each.number for each in batch))
        latest = max(latest, *(each.number for each in batch))
    most = max((bisect_right(times, at + alignment_ms + 20) - number for number, at in enumerate(times)), default=0)
    assert late <= most
