"""Where two payloads differ: paths of JSON documents, texts and bytes around the first difference."""

import json

from segstore.wire.inspect import differing, differing_places, excerpts
from tests.looped import looped

SHOWN = differing._SHOWN
LONG = "401 characters"


@looped(
    ("left", "right", "places"),
    [
        (b"tea", b"coffee", [("data", "'tea'", "'coffee'")]),
        (b"\xff\0", b"tea", [("data", "'ff00'", "'746561'")]),
        (b"a\nb", b"a\tb", [("data", r"'a\nb'", r"'a\tb'")]),
        (b"[1, 2]", b"tea\r\n", [("data", "'[1, 2]'", r"'tea\r\n'")]),
        (b"a\0b", b"ab", [("data", "'610062'", "'6162'")]),
        (b"[1, 2]", b"[1, 2.0]\n", [("data[1]", "2", "2.0")]),
        (b'{"a": 1}', b'{"a":1}', [("data", "'{\"a\": 1}'", "'{\"a\":1}'")]),
        (b'{"a": "\xe2\x80\xae"}', b'{"a": "x"}', [("data.a", '"\\u202e"', '"x"')]),
        (b'{"a": [1], "b": 2}', b'{"b": {}}', [("data.a", "an array of 1", None), ("data.b", "2", "an object of 0")]),
        (b"[" * 5_000 + b"]" * 5_000, b"[]", [("data", f"'{'[' * SHOWN}…' (10000 characters)", "'[]'")]),
        (b"x" * 400 + b"1", b"x" * 400 + b"2", [("data", f"'…{'x' * 24}1' ({LONG})", f"'…{'x' * 24}2' ({LONG})")]),
        (b"x" * 40 + b"1", b"x" * 40 + b"2", [("data", f"'{'x' * 40}1'", f"'{'x' * 40}2'")]),
        (b"\xff" * 400, b"", [("data", f"'{'ff' * (SHOWN // 2)}…' (400 bytes)", "''")]),
        (b"tea\n", None, [("data", r"'tea\n'", None)]),
        (None, b"\0", [("data", None, "'00'")]),
    ],
)  # fmt: skip
def test_payloads_are_shown_as_documents_text_or_hex_around_the_difference(
    left: bytes | None, right: bytes | None, places: list[tuple[str, str | None, str | None]]
) -> None:
    assert list(differing_places("data", left, right)) == places


def test_a_long_text_within_a_document_is_shown_around_the_difference() -> None:
    left, right = (json.dumps({"text": "x" * 200 + each + "x" * 200}).encode() for each in "12")
    x = "x" * 24
    ((path, *texts),) = differing_places("data", left, right)
    assert path == "data.text"
    assert texts == [f"'…{x}{each}{'x' * (SHOWN - 25)}…' ({LONG})" for each in "12"]


def test_events_in_their_framing_are_compared_one_by_one() -> None:
    def events(*contents: bytes) -> bytes:
        return b"".join(bytes(4) + len(content).to_bytes(4, "big") + content for content in contents)

    left, right = events(b"tea", b'{"n": 1}', b"cake"), events(b"tea", b'{"n": 2}')
    assert list(differing_places("data", left, right)) == [("data[1].n", "1", "2"), ("data[2]", "'cake'", None)]
    assert list(differing_places("data", left, b"tea")) == [
        ("data", f"'{left[: SHOWN // 2].hex()}…' ({len(left)} bytes)", "'746561'")
    ]


def test_values_that_are_no_payloads_are_compared_as_texts_or_shown_as_json() -> None:
    assert list(differing_places("segment", "a/b", "a/c")) == [("segment", "'a/b'", "'a/c'")]
    assert list(differing_places("sealed", True, None)) == [("sealed", "true", None)]
    assert list(differing_places("sources", ("a", "b"), 7)) == [("sources", "an array of 2", "7")]


def test_a_document_has_a_bounded_number_of_places() -> None:
    left, right = (json.dumps([add] * 5_000).encode() for add in (0, 1))
    assert len(list(differing_places("data", left, right))) == differing.MOST_PLACES


def test_a_text_is_shortened_at_its_end() -> None:
    assert excerpts("y" * 100) == [f"'{'y' * SHOWN}…' (100 characters)"]


def test_events_within_events_are_one_payload_however_deep() -> None:
    left, right = b"tea", b"soup"
    for _ in range(2_000):
        left, right = (bytes(4) + len(each).to_bytes(4, "big") + each for each in (left, right))
    (place,) = differing_places("data", left, right)
    assert place.path == "data[0]"
    assert place.left != place.right
