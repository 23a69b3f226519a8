"""What is refused of a table request before its table is looked at, in the reference's words."""

from collections.abc import Callable
from uuid import UUID

import pytest

from segstore.server.store.attributes import ATTRIBUTE_ID_LENGTH, ROLLOVER_SIZE
from segstore.server.store.errors import IllegalArgument, Unmapped
from segstore.server.store.tables import checks
from segstore.server.store.tables.log import HEADER_BYTES, MAX_ENTRY_BYTES, MAX_KEY_BYTES, NO_VERSION
from tests.looped import looped

T = "scope/table"


def test_a_version_is_a_position_absence_or_none() -> None:
    checks.check_key_versions([0, 7, checks.KEY_MUST_NOT_EXIST, NO_VERSION])
    for version in (-2, NO_VERSION + 1, NO_VERSION - 1):
        with pytest.raises(Unmapped, match=f"version is {version}"):
            checks.check_key_versions([0, version])


@looped(
    ("check", "said"),
    [
        (
            lambda: checks.check_lengths_to_write(T, 2, [(b"ab", 1), (b"abc", NO_VERSION)], "Entry"),
            (
                "Entry for key `{*} ReadOnlyAbstractByteBuf(ridx: 0, widx: 3, cap: 3/3)` incompatible with segment "
                f"'{T}' which requires key lengths of 2."
            ),
        ),
        (
            lambda: checks.check_lengths_to_read(T, 2, [b"ab", b"abc", b""]),
            f"Segment KeyLength for segment `{T}' must be a positive integer smaller than or equal to 256; actual 0.",
        ),
        (
            lambda: checks.check_lengths_to_read(T, 256, [bytes(257)]),
            f"Segment KeyLength for segment `{T}' must be a positive integer smaller than or equal to 256; actual 257.",
        ),
        (lambda: checks.check_lengths_to_read(T, 2, [b"ab", b"abc"]), "Expected Attribute Id length 2, given 3."),
        (lambda: checks.check_attribute_length(T, 2, b"a"), "Expected Attribute Id length 2, given 1."),
        (lambda: checks.check_sizes(T, [b"", bytes(MAX_KEY_BYTES + 1)], None), "Key too large."),
        (
            lambda: checks.check_sizes(T, [b"", b"abc"], [0, MAX_ENTRY_BYTES - HEADER_BYTES - 2]),
            "Key+Value serialization too large.",
        ),
    ],
)
def test_a_refusal_has_the_references_words_and_names_the_table(check: Callable[[], None], said: str) -> None:
    with pytest.raises(IllegalArgument) as refused:
        check()
    assert (refused.value.message, refused.value.segment) == (said, T)


def test_what_is_just_large_enough_is_taken() -> None:
    checks.check_lengths_to_write(T, 2, [(b"ab", 1)], "Entry")
    checks.check_lengths_to_read(T, 256, [bytes(256)])
    checks.check_lengths_to_read(T, 1, [b"a"])
    checks.check_sizes(T, [bytes(MAX_KEY_BYTES)], None)
    checks.check_sizes(T, [b"abc"], [MAX_ENTRY_BYTES - HEADER_BYTES - 3])


def test_a_new_table_has_its_rollover_size_and_a_fixed_key_table_its_length() -> None:
    made = checks.table_attributes(0)
    assert made[ROLLOVER_SIZE] == 16 * 1024 * 1024
    assert ATTRIBUTE_ID_LENGTH not in made
    assert sorted(made.values()) == [0] * 6 + [75, 16 * 1024 * 1024]
    fixed = checks.table_attributes(1, 5)
    assert (fixed[ATTRIBUTE_ID_LENGTH], fixed[ROLLOVER_SIZE]) == (1, 5)
    assert all(isinstance(each, UUID) for each in fixed)
