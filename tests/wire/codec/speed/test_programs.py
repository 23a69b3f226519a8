"""The tables: each node of the intermediate form has one, and the frame loop's are right."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    ConditionalAppend,
    ConditionalBlockEnd,
    DataAppended,
    Padding,
    SegmentCreated,
    SegmentsBatchMerged,
    SetupAppend,
)
from segstore.wire.blocks import WHOLE_APPENDS, BlockWriter
from segstore.wire.codec.codec import COMMANDS
from segstore.wire.codec.framing import _LIGHT
from segstore.wire.codec.speed import programs
from segstore.wire.schema import lowering as low
from tests.strategies import FRAMED

RECORDER = SimpleNamespace(Shape=lambda *given: given, Codec=lambda *given: given, Frames=lambda *given: given)
"""Stands for the extension: gives back what it was given."""


def test_every_command_has_its_shape() -> None:
    shapes, *_ = programs.make_codec(RECORDER, FRAMED.values())
    assert [shape[:2] for shape in shapes] == [(cls, code) for code, cls in FRAMED.items()]
    assert (SegmentCreated, 21, ("request_id", "segment"), (_node("int64", 0), _node("text", 1))) in shapes
    (merged,) = (nodes for cls, _, _, nodes in shapes if cls is SegmentsBatchMerged)
    *table, lazily, columns = merged[2]
    assert (table, columns) == (["table", -1, 10, 0], (_node("text", 2), _node("int64", 3)))
    assert [len(column) for column in lazily(memoryview(b""), 0, 0, 5, 0)] == [5, 5]


def _node(what: str, attribute: int) -> tuple[Any, ...]:
    return what, attribute, 0, 0, None, ()


def test_every_kind_of_node_occurs() -> None:
    found: set[str] = set()

    def walk(node: tuple[Any, ...]) -> None:
        found.add(node[0])
        inner = node[4][3] if node[0] == "structure" else node[5]
        for each in inner:
            walk(each)

    for shape in programs.make_codec(RECORDER, FRAMED.values())[0]:
        for node in shape[3]:
            walk(node)
    kinds = {"number", "member", "constant", "text", "data", "remainder", "zero_run", "sized", "tail", "structure"}
    assert found == kinds | {"int8", "int32", "int64", "flag", "uuid", "many", "table"}


def test_a_node_that_is_not_known_has_no_table() -> None:
    with pytest.raises(TypeError, match="no table for SchemaNode"):
        programs._table(RECORDER, low.SchemaNode("x"), ("x",))


def test_the_loop_knows_light_commands_and_where_two_frames_are_joined() -> None:
    made: Any = programs.make_frames(
        RECORDER, None, _LIGHT, joined=WHOLE_APPENDS, in_rows=DataAppended, most_elements=7
    )
    _, light, most, join, run = made
    assert {COMMANDS[code].type_name for code in light} == {"APPEND_BLOCK", "APPEND_BLOCK_END", "DATA_APPENDED"}
    assert most == 7
    columns = (("int64", 36), ("int32", 32), ("data", 28), ("int64", 44))
    assert join[:-1] == (BlockWriter, "last_event_number", 3, 4, 24, 52, 8, 8, 24, 28, 36, 32, columns)
    changes = Padding, SetupAppend, AppendBlock, AppendBlockEnd, ConditionalAppend, ConditionalBlockEnd
    assert sorted(join[-1]) == sorted(cls.code & 0xFF for cls in changes)
    assert run[1:3] == (bytes([0, 0, 0, 7, 0, 0, 0, 48]), 56)


def test_a_run_is_of_fields_of_a_fixed_width() -> None:
    with pytest.raises(TypeError, match=r"SEGMENT_CREATED\.segment has no fixed width"):
        programs.make_frames(RECORDER, None, (), joined=None, in_rows=SegmentCreated, most_elements=7)


def test_acknowledgements_have_a_key_and_numbers_only() -> None:
    with pytest.raises(TypeError, match=r"SEGMENT_CREATED\.segment has no fixed width"):
        programs.make_acks(RECORDER, programs.Acknowledged(SegmentCreated, "request_id", "n", "p", "t", ("n", "data")))
    with pytest.raises(TypeError, match="APPEND_BLOCK_END has other fields than 64-bit numbers and a key"):
        programs.make_acks(RECORDER, programs.Acknowledged(AppendBlockEnd, "writer_id", "n", "p", "t", ("n", "data")))
