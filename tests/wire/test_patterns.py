"""Patterns: what they match, what is refused, and that no pattern or text makes a match slow."""

import contextlib
import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.patterns import PatternError, glob, regular_expression
from tests.looped import looped

LONG = 60_000
"""Length of a name on which a backtracking engine never finishes the patterns below."""


@looped(
    ("pattern", "text"),
    [
        ("^(a+)+$", "a" * LONG + "!"),
        ("(.*)*(.*)*(.*)*(.*)*.dQ", "a" * LONG),
        ("(a|a)*b", "a" * LONG),
        ("^(a|ab|abc)*$", "abc" * (LONG // 3) + "!"),
        ("(?:a?){100}a{400}b", "a" * LONG),
        (r"(\w+\s?)*x$", "word " * (LONG // 5)),
    ],
)
def test_a_pattern_on_which_an_engine_backtracks_is_matched(pattern: str, text: str) -> None:
    assert not regular_expression(pattern)(text)


@looped("pattern", ["*a" * 400 + "x", "*" + "?" * 900 + "x", "*" + "a?" * 400 + "x", "[!b]" * 249])
def test_a_glob_on_which_an_engine_backtracks_is_matched(pattern: str) -> None:
    assert not glob(pattern)("a" * LONG)


@looped(
    ("pattern", "why"),
    [
        ("(?=a)", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "backreferences"),
        ("a(", "unclosed group"),
        ("[", "unclosed character class"),
        (r"\pL", r"\\p"),
        ("(?ix) a", "flag x"),
        ("(?x: a)", "flag x"),
        ("a" * 1001, "1001 characters"),
        ("[" * 60_000, "60000 characters"),
        ("[[ab]c)]{2}", "nested class"),
        ("[^]a[:alpha:]]", "nested class"),
        ("((a{99}){99}){99}", "exceeds size limit"),
        ("(" * 300 + ")" * 300, "nested"),
    ],
)
def test_what_no_linear_engine_has_and_what_is_too_long_is_refused_in_a_line(pattern: str, why: str) -> None:
    with pytest.raises(PatternError, match=why) as caught:
        regular_expression(pattern)
    assert str(caught.value).isprintable()


def test_a_glob_is_bounded_too() -> None:
    assert glob("?" * 1_000)("x" * 1_000)
    with pytest.raises(PatternError, match="1001 characters"):
        glob("?" * 1_001)


@looped(
    ("pattern", "text", "found"),
    [
        (r"epoch\.[12]$", "scope/stream/0.#epoch.1", True),
        (r"^[\w-]+/[^\W_]+$", "a-b_c/d1", True),
        (r"^\w$", "é", False),
        (r"\\w", "w", False),
        (r"^\S+\s\D\d\Z", "ab\tc1", True),
        ("^.b$", "\ud800b", True),
        ("^.b$", "\U0001f600b", True),
        ("\ud800", "\udfff", True),
        ("", "\udfff", True),
    ],
)
def test_what_a_regular_expression_finds(pattern: str, text: str, found: bool) -> None:
    assert regular_expression(pattern)(text) is found


@given(st.text(alphabet="ab01/.", max_size=12), st.text(alphabet="ab0/.[]()*+?|^{},12\\d", max_size=10), st.booleans())
def test_an_expression_means_what_it_means_to_python(text: str, pattern: str, ignore_case: bool) -> None:
    try:
        mine = regular_expression(pattern, ignore_case=ignore_case)
        its = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (PatternError, re.error, OverflowError, FutureWarning):
        return
    if re.search(r"[*+?}][+*?{]|\[[^]]*\[|\{,", pattern):
        return  # possessive repetitions and nested classes exist in only one of the engines
    assert mine(text) is (its.search(text) is not None)


@given(st.text(), st.text(alphabet=st.characters() | st.sampled_from("()[]{}*+?|\\^$.,019"), max_size=30))
def test_any_text_and_any_pattern_give_an_answer_or_a_refusal(text: str, pattern: str) -> None:
    for make in (glob, regular_expression):
        with contextlib.suppress(PatternError):
            assert make(pattern)(text) in (True, False)


@given(st.text(alphabet="ab/*?[]!-", max_size=12), st.text(alphabet="ab/*?[]!-", max_size=8))
def test_a_glob_is_one_of_the_whole_text(text: str, pattern: str) -> None:
    assert glob(pattern)(text) is fnmatch.fnmatchcase(text, pattern)
