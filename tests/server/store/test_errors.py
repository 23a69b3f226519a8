"""What the store's errors say, and the facts that replies are made of."""

from uuid import UUID

from segstore.server.store.errors import (
    AttributeLimit,
    BadAttribute,
    BadOffset,
    DataDamaged,
    IllegalArgument,
    IndexTruncated,
    KeyBadVersion,
    KeyMissing,
    NoSuchSegment,
    NotOwner,
    SegmentExists,
    SegmentSealed,
    SegmentTruncated,
    StoreError,
    StoreFull,
    TableNotEmpty,
    Unmapped,
    Unsupported,
)
from tests.looped import looped

S = "scope/stream/0.#epoch.0"
ID = UUID(int=7)


@looped(
    ("error", "said", "facts"),
    [
        (SegmentExists(S), "exists already", {}),
        (NoSuchSegment(S), "does not exist", {}),
        (SegmentSealed(S), "is sealed", {}),
        (
            SegmentTruncated(S, start_offset=5, offset=3),
            "starts at 5 and has no offset 3",
            {"start_offset": 5, "offset": 3},
        ),
        (IndexTruncated(S), "is truncated inside an entry", {}),
        (BadOffset(S, expected=1, actual=2), "is 2 bytes long, not 1", {"expected": 1, "actual": 2}),
        (BadAttribute(S, attribute_id=ID, previous=4), f"attribute {ID} of", {"attribute_id": ID, "previous": 4}),
        (NotOwner(S, container=3), "container 3 of", {"container": 3}),
        (IllegalArgument("the text", segment=S), "the text", {}),
        (Unsupported("the text", segment=S, operation="seal"), "the text", {"operation": "seal"}),
        (TableNotEmpty(S), "is not empty", {}),
        (KeyMissing(S), "is not in table", {}),
        (KeyBadVersion(S), "has another version", {}),
        (AttributeLimit(S, limit=9), "more than 9 attributes", {"limit": 9}),
    ],
)
def test_an_error_names_its_segment_and_carries_its_facts(
    error: StoreError, said: str, facts: dict[str, object]
) -> None:
    assert error.segment == S
    assert str(error) == error.message
    assert said in error.message
    assert {name: getattr(error, name) for name in facts} == facts


def test_an_error_about_no_segment_names_none() -> None:
    full = StoreFull(used=90, limit=100)
    assert (full.segment, full.used, full.limit) == ("", 90, 100)
    assert "90 of 100 bytes" in full.message
    assert Unsupported("the text").operation == Unsupported("the text").segment == ""


@looped(("offset", "where"), [(-1, "f is damaged: cut"), (0, "f is damaged at byte 0: cut")])
def test_damage_is_named_with_its_file_and_place(offset: int, where: str) -> None:
    error = DataDamaged("f", "cut", offset=offset)
    assert isinstance(error, Unmapped)
    assert (error.path, error.offset, error.segment) == ("f", offset, "")
    assert error.message.startswith(f"{where}; ")
