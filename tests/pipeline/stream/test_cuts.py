"""Places in a stream as text: Pravega's own, JSON, head and tail; and what is told that is none."""

from __future__ import annotations

import base64
import gzip

import pytest

from segstore.client import CutError
from segstore.pipeline.stream.cuts import parse_place, short_name
from segstore.wire.names import segment_id
from tests.looped import looped


def test_head_tail_json_and_the_text_of_a_cut_are_places() -> None:
    text = base64.b64encode(gzip.compress(b"0:s/t:0,1:0,0:-1,7", mtime=0)).decode()
    assert parse_place(text, "s", "t") == {0: 0, 1: 7}
    assert parse_place("Head", "s", "t") == "head"
    assert parse_place(" tail ", "s", "t") == "tail"
    assert parse_place('{"3.#epoch.1": 12}', "s", "t") == {segment_id(1, 3): 12}
    assert short_name(segment_id(1, 3)) == "3.#epoch.1"


@looped(
    ("text", "says"),
    [
        ("nowhere", "is not a position in a stream"),
        ("", "is not a position in a stream"),
        ("{}", "at least one segment"),
        ('{"a": 1}', "is not a stream segment"),
        ('{"0.#epoch.0": -1}', "is not an offset"),
        ('{"0.#epoch.0": true}', "is not an offset"),
        ("{", "is not JSON"),
        ('{"0": 1, "0": 2}', "the key '0' appears twice"),
        (base64.b64encode(gzip.compress(b"0:s/other:0:0:0", mtime=0)).decode(), "a cut of s/other, not of s/t"),
        (base64.b64encode(gzip.compress(b"1:s/t:0:0:0", mtime=0)).decode(), "is not a stream cut"),
        (base64.b64encode(gzip.compress(b"0:s/t:0,1:0:0", mtime=0)).decode(), "is not a stream cut"),
        (base64.b64encode(gzip.compress(b"0:s/t:0:0:0", mtime=0)[:-9]).decode(), "is not a position in a stream"),
    ],
)
def test_what_is_no_place_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(CutError, match=says):
        parse_place(text, "s", "t")
