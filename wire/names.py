"""Segment names and their parts, and the container that a segment belongs to.

A stream segment is named `scope/stream/NUMBER.#epoch.EPOCH` (old segments have no epoch suffix). Segments derived from
it add a suffix: `#transaction.` + 32 hex digits, `#transient.` + two dotted groups of 32 hex digits, or `#index`. Names
come from peers, so any text is a legal argument with a defined result; text of no known form has no scope, number or
parent. Only the functions that *build* names raise `ValueError`.

Invariant: `container_of` is a pure function of (name, count) and equals the reference's for every name, so that all
clients and servers find the same owner. It therefore strips suffixes by the reference's loose rule (the last delimiter
followed by enough characters), while `is_transient` requires the full pattern.

Follows `NameUtils`, `SegmentToContainerMapper` (Pravega) and Guava's murmur3_128 and consistentHash. Deliberate
differences: a transient name must match `PARENT#transient.HEX32.HEX32` to its end and never counts as a transaction,
even if its parent does; segment numbers and epochs are decimal numbers without sign or leading zeros, so that names and
their parts map uniquely.
"""

import re
from functools import lru_cache
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

from msgspec import Struct

from segstore.wire.hashing import consistent_hash, java_hash_code, murmur3_128_low
from segstore.wire.schema import utf16

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1

_EPOCH: Final = ".#epoch."
_TRANSACTION: Final = "#transaction."
_TRANSIENT: Final = "#transient."
_READER_GROUP_TABLE: Final = "_kvtable/0.#epoch.0"
_INDEX: Final = "#index"
_TABLES: Final = "_tables"
_WRITERS: Final = uuid5(NAMESPACE_URL, "segstore:writers")

_ID_CHARACTERS: Final = 32
"""The reference accepts any 32 characters after a delimiter as an id."""
_TRANSIENT_TAIL: Final = len(_TRANSIENT) + _ID_CHARACTERS + 1 + _ID_CHARACTERS

_HEX32 = re.compile(r"[0-9a-fA-F]{32}")
_TRANSIENT_PATTERN = re.compile(r"#transient\.([0-9a-fA-F]{32})\.([0-9a-fA-F]{32})")
_NUMBER = r"(0|[1-9][0-9]{0,9})"
_SEGMENT_PATTERN = re.compile(rf"(?:([^/]+)/)?([^/]+)/{_NUMBER}(?:\.#epoch\.{_NUMBER})?")
_USER_NAME = re.compile(r"[0-9A-Za-z.-]+")
_STREAM_NAME = re.compile(r"_?[0-9A-Za-z.-]+")
_MAX_USER_NAME: Final = 250
_MAX_NAME: Final = 255


# Segment ids -------------------------------------------------------------------------------------------------------


def segment_id(epoch: int, number: int) -> int:
    """The 64-bit id `epoch << 32 | number`. Raises `ValueError` if a part is not a non-negative int32."""
    if not 0 <= epoch <= MAX_INT32:
        raise ValueError(f"epoch must be between 0 and {MAX_INT32}, not {epoch}")
    if not 0 <= number <= MAX_INT32:
        raise ValueError(f"segment number must be between 0 and {MAX_INT32}, not {number}")
    return epoch << 32 | number


def split_segment_id(identifier: int) -> tuple[int, int]:
    """Returns (epoch, number) of a segment id, as signed int32s. Raises `ValueError` unless it fits 64 bits."""
    if not -(2**63) <= identifier < 2**63:
        raise ValueError(f"segment id must fit 64 bits, not {identifier}")
    number = identifier & 0xFFFFFFFF
    return identifier >> 32, number - 2**32 if number > MAX_INT32 else number


# Building names ----------------------------------------------------------------------------------------------------


def segment_name(scope: str, stream: str, number: int, epoch: int) -> str:
    """Builds `scope/stream/number.#epoch.epoch`; an empty scope is omitted. Number and epoch as in `segment_id`."""
    segment_id(epoch, number)
    stem = f"{scope}/{stream}" if scope else stream
    return f"{stem}/{number}{_EPOCH}{epoch}"


def transaction_name(segment: str, transaction_id: UUID) -> str:
    """Builds the name of a transaction's segment on `segment`."""
    return f"{segment}{_TRANSACTION}{transaction_id.hex}"


def transient_name(parent: str, writer_id: UUID, random_hex32: str) -> str:
    """Builds the name of a transient segment of `parent`. Raises `ValueError` unless given 32 random hex digits."""
    if _HEX32.fullmatch(random_hex32) is None:
        raise ValueError(f"the random part of a transient name must be 32 hex digits, not {random_hex32[:40]!r}")
    return f"{parent}{_TRANSIENT}{writer_id.hex}.{random_hex32}"


def writer_id(writer: str, segment: str) -> UUID:
    """Derives the id of a named writer in a segment (PIP-79.8): uuid5 of the two.

    A writer can thus be found in any segment by its name.
    """
    return uuid5(uuid5(_WRITERS, writer), segment)


def index_name(segment: str) -> str:
    """Builds the name of the index segment of `segment`. Raises `ValueError` if that is an index itself."""
    if segment.endswith(_INDEX):
        raise ValueError(f"{segment[-80:]!r} is already an index segment")
    return segment + _INDEX


# Classifying names -------------------------------------------------------------------------------------------------


def is_index(segment: str) -> bool:
    """Whether the name ends in `#index`."""
    return segment.endswith(_INDEX)


def is_reader_group_table(segment: str) -> bool:
    """Whether the name belongs to a reader group's table of the Rust client: `SCOPE/GROUP_kvtable/0…`."""
    return segment.endswith(_READER_GROUP_TABLE)


def is_transient(segment: str) -> bool:
    """Whether the name matches `PARENT#transient.HEX32.HEX32` to its end."""
    # The slice decides nearly all names without a regular expression.
    return segment[-_TRANSIENT_TAIL : -_TRANSIENT_TAIL + len(_TRANSIENT)] == _TRANSIENT and (
        _TRANSIENT_PATTERN.fullmatch(segment, len(segment) - _TRANSIENT_TAIL) is not None
    )


def is_transaction(segment: str) -> bool:
    """Whether the name is a transaction's: at least 32 characters follow the last `#transaction.`, as in the reference,
    and the name is not a transient segment's.
    """
    return _tail_position(segment, _TRANSACTION) >= 0 and not is_transient(segment)


def parent_of(segment: str) -> str | None:
    """Returns the segment that a transaction or transient segment merges into; None for other names."""
    if is_transient(segment):
        return segment[:-_TRANSIENT_TAIL]
    position = _tail_position(segment, _TRANSACTION)
    return segment[:position] if position >= 0 else None


def is_user_stream_name(name: str) -> bool:
    """Whether a user may choose this name for a stream: 1 to 250 ASCII letters, digits, dots and hyphens."""
    return len(name) <= _MAX_USER_NAME and _USER_NAME.fullmatch(name) is not None


def is_stream_name(name: str) -> bool:
    """Whether a stream or scope may have this name: as for users, but up to 255 and optionally with a leading `_`."""
    return len(name) <= _MAX_NAME and _STREAM_NAME.fullmatch(name) is not None


def is_user_stream_segment(segment: str) -> bool:
    """Whether the segment belongs to a user's stream, and so has an index: it has at least three parts between slashes,
    the second a user's stream name, and no transaction, transient or index suffix. Other parts may be anything.
    """
    if is_index(segment) or is_transient(segment) or _tail_position(segment, _TRANSACTION) >= 0:
        return False
    # As Java's split: trailing slashes make no parts.
    parts = segment.rstrip("/").split("/", 2)
    return len(parts) == 3 and is_user_stream_name(parts[1])


def stream_of(segment: str) -> str | None:
    """Returns `scope/stream` (or `stream` without a scope) of a stream segment, its transactions, transient segments
    and index; None for other names.
    """
    parsed = SegmentName.parse(segment)
    if parsed.stream is None:
        return None
    return parsed.stream if parsed.scope is None else f"{parsed.scope}/{parsed.stream}"


class SegmentName(Struct, frozen=True):
    """The parts of a name; missing parts are None. `parse` accepts any text.

    `base` is the name without transaction, transient and index suffixes; scope, stream, number and epoch are read from
    it. An old name without an epoch has `epoch` None and counts as epoch 0 in `segment_id`. `transaction_id` is also
    None if the id is not hexadecimal although `is_transaction` accepts the name.
    """

    name: str
    base: str
    scope: str | None = None
    stream: str | None = None
    number: int | None = None
    epoch: int | None = None
    transaction_id: UUID | None = None
    transient_writer_id: UUID | None = None
    transient_id: str | None = None
    parent: str | None = None
    is_index: bool = False

    @classmethod
    def parse(cls, name: str) -> "SegmentName":
        """Parses a name; never raises. Of nested suffixes only the last is reported; the base has no suffix."""
        base = name.removesuffix(_INDEX)
        parent = parent_of(base)
        transaction_id: UUID | None = None
        transient_writer_id: UUID | None = None
        transient_id: str | None = None
        if parent is not None:
            tail = base[len(parent) :]
            transient = _TRANSIENT_PATTERN.fullmatch(tail)
            if transient is not None:
                transient_writer_id, transient_id = UUID(hex=transient[1]), transient[2]
            elif _HEX32.fullmatch(tail, len(_TRANSACTION)):
                transaction_id = UUID(hex=tail[len(_TRANSACTION) :])
            base = _without_derived_tails(parent)
        ids = transaction_id, transient_writer_id, transient_id
        return cls(name, base, *_stream_parts(base), *ids, parent, is_index(name))

    @property
    def segment_id(self) -> int | None:
        """`epoch << 32 | number`, or None if the name has no number."""
        return None if self.number is None else segment_id(self.epoch or 0, self.number)

    @property
    def is_table(self) -> bool:
        """Whether the name belongs to a table of the controller, `scope/_tables/…`."""
        parts = self.name.split("/", 2)
        return len(parts) == 3 and parts[1] == _TABLES


def _stream_parts(base: str) -> tuple[str | None, str | None, int | None, int | None]:
    match = _SEGMENT_PATTERN.fullmatch(base)
    if match is None:
        return None, None, None, None
    number = int(match[3])
    epoch = None if match[4] is None else int(match[4])
    if number > MAX_INT32 or (epoch is not None and epoch > MAX_INT32):
        return None, None, None, None
    return match[1], match[2], number, epoch


def _tail_position(segment: str, delimiter: str) -> int:
    """Returns the position of the last delimiter; -1 if missing or followed by fewer characters than an id has."""
    position = segment.rfind(delimiter)
    return position if position + len(delimiter) + _ID_CHARACTERS <= len(segment) else -1


def _without_derived_tails(name: str) -> str:
    """Strips all transaction and transient suffixes by the reference's loose rule."""
    while True:
        position = _tail_position(name, _TRANSACTION)
        if position < 0:
            position = _tail_position(name, _TRANSIENT)
        if position < 0:
            return name
        name = name[:position]


# Containers --------------------------------------------------------------------------------------------------------


def primary_name(segment: str) -> str:
    """Returns the part hashed for the container: no transaction or transient suffixes, and no last `.#epoch.…`."""
    stripped = _without_derived_tails(segment)
    position = stripped.rfind(_EPOCH)
    return stripped if position < 0 else stripped[:position]


def container_of(segment: str, count: int) -> int:
    """Returns the container, 0 to `count` - 1, that owns a segment.

    Results for recent names are cached, except for very long names. Raises `ValueError` unless `count` is a positive
    int32.
    """
    if not 1 <= count <= MAX_INT32:
        raise ValueError(f"container count must be between 1 and {MAX_INT32}, not {count}")
    if len(segment) > _MEMO_MAX_CHARS:
        return _container_of(segment, count)
    return _remembered_container_of(segment, count)


def _container_of(segment: str, count: int) -> int:
    data = utf16(primary_name(segment))
    return consistent_hash(murmur3_128_low(data, _MAPPER_SEED), count)


_MEMO_MAX_CHARS: Final = 512
_remembered_container_of = lru_cache(maxsize=8192)(_container_of)

_MAPPER_SEED: Final = java_hash_code("SegmentToContainerMapper")
