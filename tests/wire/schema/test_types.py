"""Paths and values in errors; the field types themselves are held by the tests of the codec."""

import pytest

from segstore.wire import BadField, Command, ErrorMessage, Padding, SegmentCreated, Unknown, WireError, encode
from segstore.wire.codec import CODECS
from segstore.wire.schema.types import dotted
from tests.looped import looped


@looped(
    ("path", "name"),
    [
        ("", ""),
        ("(parsing)", ""),
        ("(parsing) -> segment", "segment"),
        ("(building) -> table_entries -> entries[3] -> key -> data+key_version", "table_entries.entries[3].key.data"),
        ("(building) -> keys[3] -> data+key_version -> #1", "keys[3].key_version"),
        ("(parsing) -> sources+offsets", "sources"),
        ("(parsing) -> sources+offsets[7] -> #0", "sources[7]"),
        ("(parsing) -> sources+offsets[7] -> #1", "offsets[7]"),
    ],
)
def test_paths_name_single_attributes(path: str, name: str) -> None:
    assert dotted(path) == name


HUGE = 10**5000


@looped(
    "command",
    [
        SegmentCreated(HUGE, "segment"),
        Padding(HUGE),
        Padding(-HUGE),
        Unknown(HUGE, b""),
        ErrorMessage(1, "segment", "message", HUGE),  # type: ignore[arg-type]
    ],
)
def test_a_number_that_python_does_not_write_is_refused_as_any_other(command: Command) -> None:
    for codec in CODECS:
        with pytest.raises(WireError, match=f"a number of {HUGE.bit_length()} bits"):
            encode(command, codec)


def test_a_number_that_python_does_not_write_is_no_field_of_json_either() -> None:
    with pytest.raises(BadField, match=f"a number of {HUGE.bit_length()} bits is outside"):
        SegmentCreated.from_dict({"request_id": HUGE, "segment": "segment"})
    with pytest.raises(BadField, match=f"an object is needed, not a number of {HUGE.bit_length()} bits"):
        SegmentCreated.from_dict(HUGE)  # type: ignore[arg-type]
    with pytest.raises(BadField, match=f"a number of {HUGE.bit_length()} bits is not one of"):
        ErrorMessage.from_dict({"request_id": 1, "segment": "", "message": "", "error_code": HUGE})
