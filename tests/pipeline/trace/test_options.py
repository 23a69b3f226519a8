"""Options are checked once, by name."""

from __future__ import annotations

import pytest

from segstore.pipeline.trace.columns import DEFAULT_COLUMNS
from segstore.pipeline.trace.filter import Chosen
from segstore.pipeline.trace.options import BatchLimit, OptionError, read_options
from tests.looped import looped


def test_without_options_there_are_the_default_columns_and_nothing_fails() -> None:
    options = read_options({"path": "a.wtrace"})
    assert options.paths == ("a.wtrace",)
    assert tuple(column.name for column in options.columns) == DEFAULT_COLUMNS
    assert (options.fail_fast, options.tokens, options.limit) == (False, False, None)


def test_options_are_taken_in_any_case_of_letters() -> None:
    options = read_options(
        {"PATHS": '["a", "b"]', "columns": "TS_ns, code", "Frame": "TRUE", "MODE": "FailFast", "maxrowspertrigger": "5",
         "splitbytes": "7", "ports": "12345, 6000"}
    )  # fmt: skip
    assert options.paths == ("a", "b")
    assert [column.name for column in options.columns] == ["ts_ns", "code", "frame"]
    assert (options.fail_fast, options.limit, options.split_bytes) == (True, BatchLimit("rows", 5), 7)
    assert options.ports == (12345, 6000)


@looped(
    ("given", "said"),
    [
        ({}, "a path is needed"),
        ({"path": "a", "pathz": "b"}, "no option 'pathz'"),
        ({"paths": "a"}, "JSON list"),
        ({"paths": "[1]"}, "JSON list"),
        ({"path": "a", "fields": "yes"}, "fields is true or false"),
        ({"path": "a", "mode": "dropmalformed"}, "permissive or failfast"),
        ({"path": "a", "packed": "true", "columns": "connection,file,block"}, "connection, file, block, record"),
        ({"path": "a", "facts": "true", "commands": "HELLO"}, "facts take the options mode, .*, not commands"),
        ({"path": "a", "splitBytes": "0"}, "whole numbers from 1 to"),
        ({"path": "a", "maxRowsPerTrigger": "1", "maxFilesPerTrigger": "1"}, "only one of"),
        ({"path": "a", "ports": "99999"}, "from 1 to 65535, not '99999'"),
        ({"path": "a", "commands": "HELLO, NOPE"}, "no command is called 'NOPE'"),
        ({"path": "a", "connections": "1,x"}, "whole numbers .* not 'x'"),
        ({"path": "a", "fromNs": str(1 << 63)}, "whole numbers from"),
    ],
)
def test_an_option_that_does_not_do_is_refused_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        read_options(given)


def test_options_choose_records() -> None:
    options = read_options(
        {"path": "a", "commands": "hello, UNKNOWN", "connections": "3,-1", "fromNs": "5", "untilNs": "9"}
    )
    assert options.chosen == Chosen(frozenset(("HELLO", "UNKNOWN")), frozenset((3, -1)), 5, 9)


def test_storage_options_are_a_json_object_that_no_message_shows() -> None:
    given = read_options({"path": "s3://a/b", "storageoptions": '{"key": "hunter2", "anon": false}'})
    assert given.storage.options == {"key": "hunter2", "anon": False}
    assert "hunter2" not in repr(given)
    for value in ('{"key": "hunter2"', '["hunter2"]', "hunter2"):
        with pytest.raises(OptionError, match="storageOptions is a JSON object") as caught:
            read_options({"path": "s3://a/b", "storageOptions": value})
        assert "hunter2" not in f"{caught.value} {caught.value.actual} {caught.value.__cause__!r}"
