"""Columns follow from the codec's schemas: none is forgotten, none has two types, secrets are none."""

from __future__ import annotations

import pytest

from segstore.pipeline.trace.columns import (
    ALL_COLUMNS,
    DEFAULT_COLUMNS,
    FIELD_COLUMNS,
    OFTEN,
    SOURCES,
    ColumnError,
    field_nodes,
    select,
)
from segstore.wire.schema import COMMANDS, types


def test_every_plain_field_of_every_command_is_a_column_and_no_secret_is() -> None:
    names = {column.name for column in FIELD_COLUMNS}
    for cls in COMMANDS.values():
        for node in cls.parts:
            inner = node.inner if isinstance(node, types.Tail) else node
            plain = isinstance(inner, types.Fixed | types.Text | types.EnumCode | types.Zeros)
            assert (node.name in field_nodes(cls)) == (plain and node.name not in cls.secrets)
            assert node.name not in cls.secrets or node.name not in ALL_COLUMNS
        assert set(field_nodes(cls)) <= names


def test_the_default_columns_say_all_that_the_usual_commands_say() -> None:
    assert set(DEFAULT_COLUMNS) <= set(ALL_COLUMNS)
    gathered = {name: column for column, names in SOURCES.items() for name in names}
    for cls in OFTEN:
        for name in field_nodes(cls):
            assert gathered.get(name, name) in DEFAULT_COLUMNS
    for name in ("ts_ns", "connection", "direction", "command", "code", "flow", "sequence", "failure", "size", "error"):
        assert name in DEFAULT_COLUMNS


def test_a_column_that_traces_do_not_have_is_refused_by_name() -> None:
    with pytest.raises(ColumnError, match="no column 'segmnt'") as caught:
        select(["ts_ns", "segmnt"])
    assert caught.value.column == "segmnt"
    with pytest.raises(ColumnError, match="at least one"):
        select([])
