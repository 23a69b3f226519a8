"""Validates table requests as far as that is possible without the table's state: key versions, key lengths, sizes of
entries. Also the attributes of a new table.

Each check returns None or raises: `Unmapped` where the reference closes the connection, `IllegalArgument`, with the
reference's text, where it replies. Source: `TableKey`, `FixedKeyLengthTableSegmentLayout`, `EntrySerializer`,
`SegmentAttributeBTreeIndex`, `TableAttributes`. Deliberate difference: where the reference prints the address of a
buffer, only the buffer's size is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from segstore.server.store.attributes import ATTRIBUTE_ID_LENGTH, ROLLOVER_SIZE, core_id
from segstore.server.store.errors import IllegalArgument, Unmapped
from segstore.server.store.tables.log import HEADER_BYTES, MAX_ENTRY_BYTES, MAX_KEY_BYTES, NO_VERSION

KEY_MUST_NOT_EXIST = -1
"""As a key's version in a request: the key must not exist. In a reply: the key does not exist."""

MAX_FIXED_KEY_BYTES = 256
"""Largest key of a table whose keys have a fixed length."""

MIN_UTILIZATION_PERCENT = 75

_TABLE_ATTRIBUTES = 1 << 20
_DEFAULT_ROLLOVER_BYTES = 16 * 1024 * 1024


def check_key_versions(versions: Iterable[int]) -> None:
    """Refuses impossible versions (`Unmapped`).

    The reference does so before it looks up the segment: check a request's versions before its segment's name.
    """
    for version in versions:
        if version < KEY_MUST_NOT_EXIST and version != NO_VERSION:
            raise Unmapped(f"a key's version is {version}")


def check_lengths_to_write(segment: str, key_length: int, keys: Sequence[tuple[bytes, int]], what: str) -> None:
    """Refuses keys (key, version) that a fixed-key table cannot hold; `what`: the first words of the error's text."""
    for key, version in keys:
        if len(key) != key_length:
            # The reference prints a Netty buffer here; the text keeps its recognisable parts.
            size = len(key)
            shown = "*" if version == NO_VERSION else str(version)
            raise IllegalArgument(
                f"{what} for key `{{{shown}}} ReadOnlyAbstractByteBuf(ridx: 0, widx: {size}, cap: {size}/{size})` "
                f"incompatible with segment '{segment}' which requires key lengths of {key_length}.",
                segment=segment,
            )


def check_lengths_to_read(segment: str, key_length: int, keys: Sequence[bytes]) -> None:
    """Refuses keys that no fixed-key table can hold, then keys of another length than this table's."""
    for key in keys:
        if not 0 < len(key) <= MAX_FIXED_KEY_BYTES:
            raise IllegalArgument(
                f"Segment KeyLength for segment `{segment}' must be a positive integer smaller than or equal to "
                f"{MAX_FIXED_KEY_BYTES}; actual {len(key)}.",
                segment=segment,
            )
    for key in keys:
        check_attribute_length(segment, key_length, key)


def check_attribute_length(segment: str, key_length: int, key: bytes) -> None:
    """Refuses a key whose length is not the table's."""
    if len(key) != key_length:
        raise IllegalArgument(f"Expected Attribute Id length {key_length}, given {len(key)}.", segment=segment)


def check_sizes(segment: str, keys: Sequence[bytes], value_sizes: Sequence[int] | None) -> None:
    """Refuses keys and entries that are too large to be written; `value_sizes` is None for removals."""
    for index, key in enumerate(keys):
        if len(key) > MAX_KEY_BYTES:
            raise IllegalArgument("Key too large.", segment=segment)
        if value_sizes is not None and HEADER_BYTES + len(key) + value_sizes[index] > MAX_ENTRY_BYTES:
            raise IllegalArgument("Key+Value serialization too large.", segment=segment)


def table_attributes(key_length: int, rollover_bytes: int = 0) -> dict[UUID, int]:
    """Returns the attributes of a new table, without its kind (from the reference's source, not from recordings)."""
    values = {
        ROLLOVER_SIZE: rollover_bytes if rollover_bytes > 0 else _DEFAULT_ROLLOVER_BYTES,
        **{core_id(_TABLE_ATTRIBUTES + number): 0 for number in range(7)},
        core_id(_TABLE_ATTRIBUTES + 5): MIN_UTILIZATION_PERCENT,
    }
    if key_length > 0:
        values[ATTRIBUTE_ID_LENGTH] = key_length
    return values
