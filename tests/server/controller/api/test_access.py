"""Access-control entries grant what Pravega's authorizer grants, or are refused."""

import json
from pathlib import Path
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from segstore.server.auth import Permission
from segstore.server.controller.api.access import permission_of, read_entries
from segstore.server.controller.errors import UnusableEntry
from tests.looped import looped

_HEAD, *_ROWS = map(
    json.loads,
    (Path(__file__).parents[4] / "fixtures" / "controller" / "access.ndjson").read_text(encoding="utf-8").splitlines(),
)
RESOURCES: Final[list[str]] = _HEAD["resources"]
GIVES: Final[dict[str, str]] = {row[0]: row[1] for row in _ROWS if len(row) == 2}
NOT_SUPPORTED: Final[list[str]] = [row[0] for row in _ROWS if len(row) == 3]
LETTERS: Final = {Permission.NONE: "-", Permission.READ: "r", Permission.READ_UPDATE: "u"}
ALPHABET: Final = (*"ab.*+?()|[]^$-&~{}\\,; :/", "{2}", "(?:", "(?i)", "\\Q", "\\E", "\\d", "[^a]", "prn::", ",READ")


def given_for(text: str, resource: str) -> str:
    """The permission that entries grant for a resource, as a letter of the table."""
    entries, _ = read_entries(text)
    try:
        return LETTERS[permission_of(entries, resource)]
    except UnusableEntry:
        return "!"


def test_the_table_has_enough_pairs() -> None:
    assert len(GIVES) * len(RESOURCES) >= 175
    assert {letter for row in GIVES.values() for letter in row} == set("-ru!")


@looped("text", GIVES)
def test_entries_give_what_the_reference_gives(text: str) -> None:
    found = "".join(given_for(text, resource) for resource in RESOURCES)
    assert found == GIVES[text]


@looped("text", NOT_SUPPORTED)
def test_a_pattern_that_cannot_be_translated_is_refused_and_named(text: str) -> None:
    entries, problems = read_entries(text)
    assert [entry.matches for entry in entries] == [None]
    assert len(problems) == 1
    assert {given_for(text, resource) for resource in RESOURCES} == {"!"}


@looped(
    ("text", "says"),
    [
        ("prn::", "not resource,permission"),
        ("prn::*,WRITE;prn::*,READ", "not resource,permission"),
        ("*,READ_UPDATE", "does not begin with prn"),
        ("prn::(,READ", "not a supported regular expression"),
    ],
)
def test_an_entry_that_does_not_give_what_it_seems_to_is_a_problem_without_its_text(text: str, says: str) -> None:
    _, problems = read_entries(text)
    assert len(problems) == 1
    assert says in problems[0]
    assert text not in problems[0]


@looped("text", ["prn::(a+)+b,READ", "prn::(?:a|a)+b,READ", "prn::*a*a*a*a*a*a*b,READ"])
def test_a_name_does_not_decide_how_long_a_pattern_takes(text: str) -> None:
    assert given_for(text, "prn::" + "a" * 5_000) == "-", "by backtracking this would take years"


@given(
    st.lists(st.sampled_from(ALPHABET), max_size=12).map("".join),
    st.lists(st.sampled_from("ab.-:[]\\^\n")).map("".join),
)
def test_any_text_is_read_and_any_resource_is_answered(text: str, resource: str) -> None:
    assert given_for(text, f"prn::{resource}") in "-ru!"


@given(st.text(max_size=20), st.text(max_size=20))
@settings(max_examples=30)
def test_quoted_text_matches_itself_alone(quoted: str, other: str) -> None:
    text = "".join(each for each in quoted if each not in ",;*" and not each.isspace()).replace("\\E", "")
    entries, problems = read_entries(f"prn::\\Q{text}\\E!,READ")
    assert problems == []
    assert permission_of(entries, f"prn::{text}!") is Permission.READ
    assert (permission_of(entries, f"prn::{other}!") is Permission.READ) == (other == text)
