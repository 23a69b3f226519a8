"""Records of a shared state: the reference's layout, and what is refused."""

from __future__ import annotations

import pytest

from segstore.wire.state_records import decode_record, encode_initial, encode_updates
from tests.looped import looped


def test_records_are_laid_out_as_the_reference_does() -> None:
    assert encode_initial(b"x") == bytes.fromhex("0000000178")
    assert encode_updates([b"a", b"", b"bc"]) == bytes.fromhex("00000002 00000001 61 00000000 00000002 6263")
    assert decode_record(encode_initial(b"x")) == (b"x", [])
    assert decode_record(encode_updates([b"a", b"", b"bc"])) == (None, [b"a", b"", b"bc"])


@looped(
    ("record", "text"),
    [
        ("000000", "has no kind"),
        ("00000003", "kind 3"),
        ("00000002 0000", "no length at 4"),
        ("00000002 00000002 61", "2 bytes at 8 of a record of 9"),
        ("00000002 ffffffff", "-1 bytes"),
    ],
)
def test_a_record_that_is_none_is_refused_with_the_place(record: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decode_record(bytes.fromhex(record))
