"""Printable text: on one line, without control characters, and still valid JSON if it was JSON."""

import json

from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.printable import first_of, printable
from tests.looped import looped


@looped(
    ("text", "shown"),
    [
        ("scope/stream/0.#epoch.0", "scope/stream/0.#epoch.0"),
        ("ü – 日本", "ü – 日本"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[31m\x07\x9b2J\x7f", r"\u001b[31m\u0007\u009b2J\u007f"),
        ("\u202egnp.exe\u2069\u200b\ufeff\u2028", r"\u202egnp.exe\u2069\u200b\ufeff\u2028"),
        ("\ud800\U000e0041", r"\ud800\udb40\udc41"),
    ],
)
def test_what_does_not_print_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_of_many_texts_the_first_are_shown_and_the_others_counted() -> None:
    assert list(first_of(iter("abc"), 3, 3, "letters")) == ["a", "b", "c"]
    assert list(first_of(map(str, range(2_000)), 2_000, 2, "rules")) == ["0", "1", "and 1,998 more rules"]


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_prints_and_can_be_encoded(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown.encode().decode() == shown
    assert printable(shown) == shown


@given(st.recursive(st.text(st.characters(exclude_categories=())), lambda inner: st.dictionaries(st.text(), inner)))
def test_a_line_of_json_means_the_same(value: object) -> None:
    for ascii_only in (True, False):
        assert json.loads(printable(json.dumps(value, ensure_ascii=ascii_only))) == json.loads(json.dumps(value))


def test_a_long_text_loses_its_middle_and_says_how_long_it_was() -> None:
    text = "a" * 65_000 + "\x1b" + "z" * 10
    assert printable(text, 30) == "a" * 20 + "… " + "z" * 10 + " (65011 characters)"
    assert printable(text[-12:], 12) == r"a\u001b" + "z" * 10
