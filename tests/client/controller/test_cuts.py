"""Stream cuts as text: Pravega's own, in both directions; what is none is refused; a cut belongs to one stream."""

import base64
import gzip

import pytest

from segstore.client import CutError, StreamCut
from segstore.client.controller.cuts import checked_cut
from segstore.wire.names import segment_id
from tests.looped import looped

FROM_JAVA = "H4sIAAAAAAAA/zOwKs7IL9DPL0pJLSq2MtYx1DGwMtIx0DG3MrQwMTEzNzHRMTGwNNPRNQQAzgufFSoAAAA="
"""Made by `StreamCutImpl.asText` of Pravega's client (0.15.0-SNAPSHOT)."""


def text_of(plain: str) -> str:
    return base64.b64encode(gzip.compress(plain.encode(), mtime=0)).decode()


def test_the_text_is_gzip_and_base64_of_what_pravega_says() -> None:
    text = StreamCut("scope", "stream", {segment_id(0, 1): 5, segment_id(2, 3): 70}).to_text()
    assert gzip.decompress(base64.b64decode(text)) == b"0:scope/stream:1,3:0,2:5,70"


def test_a_text_is_the_cut_that_it_was_made_from() -> None:
    cut = StreamCut("a", "s", {segment_id(4, 2): 2**62, segment_id(0, 1): 0})
    again = StreamCut.from_text(f" {cut.to_text()}\n")
    assert again == cut == dict(cut)
    assert (again.scope, again.stream) == ("a", "s")
    assert repr(again) == "StreamCut('a', 's', {1: 0, 17179869186: 4611686018427387904})"


def test_the_text_that_java_makes_is_read() -> None:
    cut = StreamCut.from_text(FROM_JAVA)
    assert cut == {segment_id(2, 3): 18446744, segment_id(0, 1): 4096, segment_id(7, 0): 0}
    assert (cut.scope, cut.stream) == ("shop", "orders")


def test_a_segment_that_a_reader_has_not_started_is_read_from_its_start() -> None:
    assert StreamCut.from_text(text_of("0:s/t:0,1:0,0:-1,7")) == {0: 0, 1: 7}


@looped(
    ("text", "says"),
    [
        ("nowhere", "is not the text of a stream cut"),
        ("", "is not the text of a stream cut"),
        ("UNBOUNDED", 'use "head" or "tail"'),
        (text_of("1:s/t:0:0:0"), "is not a stream cut"),
        (text_of("0:s/t:0,1:0:0"), "is not a stream cut"),
        (text_of("0:s/t:0:0"), "is not a stream cut"),
        (text_of("0:s/t:::"), "is not a stream cut"),
        (text_of("0:s/t:0:0:-2"), "-2 is not an offset"),
        (text_of("0:s/t:0,0:0,0:1,2"), "names a segment twice"),
        (text_of("0:stream:0:0:0"), "is not SCOPE/STREAM"),
        (text_of("0:a/s/t:0:0:0"), "'a/s/t' in a stream cut is not SCOPE/STREAM"),
        (text_of("0:s/t:-1:0:0"), "segment number must be between 0 and 2147483647"),
        (base64.b64encode(gzip.compress(b"0:s/t:0:0:0", mtime=0)[:-9]).decode(), "it does not end"),
        (base64.b64encode(gzip.compress(bytes(20 << 20), mtime=0)).decode(), "it does not end"),
    ],
)
def test_what_is_no_cut_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(CutError, match=says) as found:
        StreamCut.from_text(text)
    assert len(found.value.actual) <= 200


def test_a_cut_without_segments_has_no_text() -> None:
    with pytest.raises(ValueError, match="a cut of a/s without segments has no text"):
        StreamCut("a", "s", {}).to_text()


def test_a_cut_belongs_to_one_stream_and_plain_offsets_to_any() -> None:
    assert checked_cut("a", "s", StreamCut("a", "s", {0: 1})) == checked_cut("a", "s", {0: 1}) == {0: 1}
    with pytest.raises(CutError, match="this is a cut of a/s, not of a/t"):
        checked_cut("a", "t", StreamCut("a", "s", {0: 1}))
