"""The stream of a body; the field types themselves are held by the tests of the codec."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.schema import BodyStream
from segstore.wire.schema.types import dotted
from tests.looped import looped


@given(st.binary(max_size=30), st.lists(st.integers(0, 12), max_size=8))
def test_a_body_remembers_its_last_read(body: bytes, sizes: list[int]) -> None:
    stream, at = BodyStream(body), 0
    for size in sizes:
        assert stream.read(size) == body[at : at + size]
        assert (stream.last_start, stream.last_wanted) == (at, size)
        at = min(len(body), at + size)
        assert (stream.tell(), stream.left) == (at, len(body) - at)


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
