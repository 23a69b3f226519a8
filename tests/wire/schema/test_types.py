"""The stream of a body; the field types themselves are held by the tests of the codec."""

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
