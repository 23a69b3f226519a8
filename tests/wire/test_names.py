"""Names of segments and the containers they belong to."""

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import names
from segstore.wire.names import SegmentName
from tests.looped import looped

ROOT = Path(__file__).parents[2]
TXN = "#transaction." + "0123456789abcdef" * 2
TRANSIENT = "#transient." + "0123456789abcdef" * 2 + "." + "fedcba9876543210" * 2

# Pieces that matter to the parser, so that random names meet its corners.
PIECES = st.sampled_from(
    [
        TXN,
        TRANSIENT,
        "#transaction.",
        "#transient.",
        ".#epoch.",
        "#index",
        "/",
        "a",
        "0",
        "7",
        "x" * 33,
        "_",
        "\ud83d",
        "😀",
    ]
)
HOSTILE = st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=12).map("".join)
UUIDS = st.integers(0, 2**128 - 1).map(lambda n: UUID(int=n))


def test_what_is_derived_from_a_segment_shares_its_container() -> None:
    segment = "s/t/3.#epoch.4"
    for derived in (
        segment + TXN,
        segment + TRANSIENT,
        segment + TXN + TRANSIENT,
        "s/t/3",
        "s/t/3.#epoch.9",
        segment + "#index",
    ):
        assert names.container_of(derived, 1000) == names.container_of(segment, 1000), derived


@looped("count", [0, -1, 2**31, 2**40])
def test_a_container_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="container count"):
        names.container_of("a/b/0", count)


def reference_primary(name: str) -> str:
    """The loose rule as the reference states it: recursive, one search a level."""
    for delimiter in ("#transaction.", "#transient."):
        position = name.rfind(delimiter)
        if position >= 0 and position + len(delimiter) + 32 <= len(name):
            return reference_primary(name[:position])
    return name.rpartition(".#epoch.")[0] if ".#epoch." in name else name


@given(HOSTILE)
def test_tails_are_stripped_by_the_loose_rule(name: str) -> None:
    assert names.primary_name(name) == reference_primary(name)


def test_a_surrogate_pair_and_its_character_are_the_same_name() -> None:
    assert names.container_of("\ud83d\ude00/s/1.#epoch.2", 1000) == names.container_of("😀/s/1.#epoch.2", 1000)


def test_a_name_of_thousands_of_tails_is_stripped_to_its_root() -> None:
    assert names.primary_name("s/t/0.#epoch.0" + TXN * 1400) == "s/t/0"
    assert names.primary_name("s/t/0" + ("#transient." + "a" * 32) * 1500) == "s/t/0"


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_64_bits_split_into_two_signed_halves(identifier: int) -> None:
    epoch, number = names.split_segment_id(identifier)
    assert (epoch << 32) + (number & 0xFFFFFFFF) == identifier
    assert -(2**31) <= epoch < 2**31
    assert -(2**31) <= number < 2**31


@looped(("epoch", "number"), [(-1, 0), (0, -1), (2**31, 0), (0, 2**31)])
def test_a_segment_id_out_of_range_is_refused(epoch: int, number: int) -> None:
    with pytest.raises(ValueError, match="must be between 0 and 2147483647"):
        names.segment_id(epoch, number)


@looped("identifier", [2**63, -(2**63) - 1])
def test_a_segment_id_beyond_64_bits_is_refused(identifier: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        names.split_segment_id(identifier)


@given(UUIDS, UUIDS)
def test_built_names_are_recognised_and_lead_back_to_their_parent(writer: UUID, other: UUID) -> None:
    segment = names.segment_name("scope", "stream", 7, 3)
    assert segment == "scope/stream/7.#epoch.3"
    transaction = names.transaction_name(segment, other)
    transient = names.transient_name(segment, writer, other.hex)
    assert transaction == f"{segment}#transaction.{other.hex}"
    assert transient == f"{segment}#transient.{writer.hex}.{other.hex}"
    assert names.is_transaction(transaction)
    assert not names.is_transient(transaction)
    assert names.is_transient(transient)
    assert not names.is_transaction(transient)
    assert names.parent_of(transaction) == names.parent_of(transient) == segment
    assert SegmentName.parse(transaction).transaction_id == other
    assert SegmentName.parse(transient).transient_writer_id == writer
    assert SegmentName.parse(transient).transient_id == other.hex


@looped("random", ["", "0" * 31, "0" * 33, "g" * 32, "0" * 31 + "\n", "\u0660" * 32])
def test_a_transient_name_needs_32_hex_digits(random: str) -> None:
    with pytest.raises(ValueError, match="32 hex digits"):
        names.transient_name("a/b/0", UUID(int=1), random)


@looped(
    "name",
    [
        "a/b/0#transient." + "0" * 65,
        "a/b/0#transient." + "0" * 32,
        "a/b/0#transient." + "0" * 32 + "." + "0" * 31,
        "a/b/0#transient." + "0" * 32 + "." + "0" * 33,
        "a/b/0#transient." + "g" * 32 + "." + "0" * 32,
        "a/b/0" + TRANSIENT + "\n",
        "a/b/0" + TRANSIENT + "x",
        "",
        "#transient.",
    ],
)
def test_a_transient_name_is_matched_by_its_full_pattern(name: str) -> None:
    assert not names.is_transient(name)
    assert names.parent_of(name) is None


def test_a_transient_segment_of_a_transaction_is_never_a_transaction() -> None:
    name = "a/b/0" + TXN + TRANSIENT
    assert names.is_transient(name)
    assert not names.is_transaction(name)
    assert names.parent_of(name) == "a/b/0" + TXN
    assert SegmentName.parse(name).base == "a/b/0"


def test_the_last_transaction_delimiter_decides() -> None:
    assert names.parent_of("a/b/0" + TXN + TXN) == "a/b/0" + TXN
    assert names.is_transaction("a/b/0#transaction." + "z" * 32)
    assert not names.is_transaction("a/b/0#transaction." + "0" * 31)
    assert not names.is_transaction("a/b/0" + TXN + "#transaction.")
    assert SegmentName.parse("a/b/0#transaction." + "z" * 32).transaction_id is None


def test_an_index_name_is_made_once() -> None:
    assert names.index_name("a/b/0.#epoch.0") == "a/b/0.#epoch.0#index"
    assert names.is_index("a/b/0.#epoch.0#index")
    assert not names.is_index("a/b/0.#epoch.0#index.")
    with pytest.raises(ValueError, match="already"):
        names.index_name("a/b/0.#epoch.0#index")


@looped(
    ("segment", "expected"),
    [
        ("scope/stream/0.#epoch.0", True),
        ("scope/stream/0", True),
        ("scope/stream/anything at all", True),
        ("scope/a.b-9/0/more/parts", True),
        ("/stream/0", True),
        ("_system/stream/0", True),
        ("scope/" + "s" * 250 + "/0", True),
        ("scope/" + "s" * 251 + "/0", False),
        ("scope/_stream/0.#epoch.0", False),
        ("scope/_tables/x", False),
        ("scope/kv_kvtable/0.#epoch.0", False),
        ("scope/stream", False),
        ("scope/stream/", False),
        ("scope/stream///", False),
        ("scope//0", False),
        ("a", False),
        ("", False),
        ("///", False),
        ("scope/stré/0", False),
        ("scope/stream\n/0", False),
        ("scope/stream/0.#epoch.0#index", False),
        ("scope/stream/0.#epoch.0" + TXN, False),
        ("scope/stream/0.#epoch.0" + TRANSIENT, False),
    ],
)
def test_only_user_stream_segments_have_an_index(segment: str, expected: bool) -> None:
    assert names.is_user_stream_segment(segment) is expected


def test_internal_streams_may_start_with_one_underscore() -> None:
    assert names.is_stream_name("_MARKstream")
    assert not names.is_user_stream_name("_MARKstream")
    assert not names.is_stream_name("__x")
    assert not names.is_stream_name("_")
    assert not names.is_stream_name("")
    assert names.is_stream_name("_" + "s" * 254)
    assert not names.is_stream_name("_" + "s" * 255)


def test_a_name_is_taken_apart() -> None:
    parsed = SegmentName.parse("scope/stream/5.#epoch.2")
    assert (parsed.scope, parsed.stream, parsed.number, parsed.epoch) == ("scope", "stream", 5, 2)
    assert parsed.segment_id == (2 << 32) + 5
    assert parsed.parent is None
    assert not parsed.is_index
    index = SegmentName.parse("scope/stream/5.#epoch.2" + "#index")
    assert index.is_index
    assert (index.base, index.number) == ("scope/stream/5.#epoch.2", 5)
    old = SegmentName.parse("scope/stream/5")
    assert (old.epoch, old.segment_id) == (None, 5)


@looped(
    "name",
    [
        "",
        "a",
        "/",
        "//",
        "a/b/c",
        "a/b/-1",
        "a/b/+1",
        "a/b/007",
        "a/b/2147483648",
        "a/b/0.#epoch.2147483648",
        "a/b/0.#epoch.",
        "a/b/0.#epoch.0.#epoch.1",
        "a/b/c/0",
        "a/b/\u0663",
        "/b/0",
        "a/b/0\n",
        "a/b/" + "9" * 5000,
        "\ud800",
    ],
)
def test_a_name_without_the_form_has_no_parts(name: str) -> None:
    parsed = SegmentName.parse(name)
    assert parsed.name == name
    assert (parsed.scope, parsed.stream, parsed.number, parsed.epoch, parsed.segment_id) == (None,) * 5
    assert names.stream_of(name) is None


def test_the_stream_of_a_derived_segment_is_its_stream() -> None:
    segment = "scope/stream/5.#epoch.2"
    for name in (
        segment,
        segment + "#index",
        segment + TXN,
        segment + TRANSIENT,
        segment + TXN + TRANSIENT,
        "scope/stream/5",
    ):
        assert names.stream_of(name) == "scope/stream", name
    assert names.stream_of("stream/0") == "stream"


def test_the_tables_of_the_controller_are_recognised_by_their_second_part() -> None:
    assert SegmentName.parse("scope/_tables/x").is_table
    assert not SegmentName.parse("scope/_tables").is_table
    assert not SegmentName.parse("scope/stream/0").is_table


@given(HOSTILE)
def test_no_name_raises_anything(name: str) -> None:
    parsed = SegmentName.parse(name)
    assert parsed.name == name
    assert name.startswith(parsed.base)
    assert not (names.is_transaction(name) and names.is_transient(name))
    assert (names.parent_of(name) is None) == (not names.is_transaction(name) and not names.is_transient(name))
    if names.is_user_stream_segment(name):
        assert names.parent_of(name) is None
        assert not names.is_index(name)
    if parsed.number is not None and parsed.epoch is not None:
        assert names.segment_name(parsed.scope or "", parsed.stream or "", parsed.number, parsed.epoch) == parsed.base
    names.stream_of(name)
