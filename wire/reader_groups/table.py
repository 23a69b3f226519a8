"""The state of a reader group in the form of Pravega's clients in Rust and Python: entries of a table. Pure.

The state equals the state of the other form, so that readers decide alike, but it is stored as maps in one table: of
online readers with their segments and offsets, unassigned segments, and future segments with the predecessors that must
be read first. A table holds no checkpoints, ends nor generations.

A key is the CBOR text "NNouter/inner", where NN is the two-digit length of `outer`; without "/inner" it holds the
version of the whole map `outer`. A value is a CBOR map of a type name and an array of bytes, which are CBOR again.
Values are encoded as serde_cbor does: definite lengths, shortest heads.

Invariants: no length is trusted beyond the remaining bytes; nesting is bounded; unknown maps are ignored; removed
entries become tombstones, because the clients in Rust remember versions and could not write a key again that was really
deleted. Refused (`ValueError`, with the position): floats, tags, indefinite lengths, trailing bytes, malformed keys.
Follows `ReaderGroupState`, `InternalKey`, `Value`, `ReaderGroupConfigVersioned` and `Offset` of pravega-client-rust.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar

from segstore.wire.names import SegmentName, segment_name, split_segment_id
from segstore.wire.reader_groups.state import GroupState
from segstore.wire.reader_groups.updates import GroupConfig

TOMBSTONE: Final = "tombstone"
_DEEPEST: Final = 16
_UINT, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_CONSTANTS: Final[dict[int, bool | None]] = {20: False, 21: True, 22: None}


# --- CBOR -----------------------------------------------------------------------------------------------------------


def _head(kind: int, number: int) -> bytes:
    if number < 24:
        return bytes([kind << 5 | number])
    for size, code in ((1, 24), (2, 25), (4, 26), (8, 27)):
        if number < 1 << 8 * size:
            return bytes([kind << 5 | code]) + number.to_bytes(size)
    raise ValueError(f"{number} is too large for CBOR")


class Pairs(tuple[tuple[Any, Any], ...]):
    """A map, as its pairs in order: keys may be maps themselves."""

    __slots__ = ()

    def named(self, *names: str) -> list[Any]:
        """Returns the values of text keys. Raises ValueError if a key is missing."""
        values = {key: value for key, value in self if isinstance(key, str)}
        missing = [name for name in names if name not in values]
        if missing:
            raise ValueError(f"no {' and no '.join(missing)} in a map of {len(self)}")
        return [values[name] for name in names]


def cbor_encode(value: Any) -> bytes:
    """Encodes integers, text, bytes, None, booleans, lists, dicts and `Pairs`. Raises ValueError for other types."""
    match value:
        case bool() | None:
            return bytes([_SIMPLE << 5 | {False: 20, True: 21, None: 22}[value]])
        case int():
            return _head(_UINT, value) if value >= 0 else _head(_NEGATIVE, -1 - value)
        case str():
            data = value.encode()
            return _head(_TEXT, len(data)) + data
        case bytes():
            return _head(_BYTES, len(value)) + value
        case Pairs() | dict():
            pairs = value.items() if isinstance(value, dict) else value
            return _head(_MAP, len(value)) + b"".join(cbor_encode(key) + cbor_encode(inner) for key, inner in pairs)
        case list() | tuple():
            return _head(_ARRAY, len(value)) + b"".join(map(cbor_encode, value))
    raise ValueError(f"{type(value).__name__} cannot be encoded as CBOR here")


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def _take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError(f"{size} bytes expected at {self.at}, only {len(self.data) - self.at} left")
        self.at += size
        return self.data[self.at - size : self.at]

    def value(self, depth: int = 0) -> Any:
        start = self.at
        if depth > _DEEPEST:
            raise ValueError(f"nested deeper than {_DEEPEST} at {start}")
        first = self._take(1)[0]
        kind, number = first >> 5, first & 31
        if kind == _SIMPLE and number in _CONSTANTS:
            return _CONSTANTS[number]
        if number > 27 or kind in (_TAG, _SIMPLE):
            raise ValueError(f"byte {first:#04x} at {start} starts no supported type")
        if number >= 24:
            number = int.from_bytes(self._take(1 << number - 24))
        if kind == _UINT:
            return number
        if kind == _NEGATIVE:
            return -1 - number
        if kind == _BYTES:
            return self._take(number)
        if kind == _TEXT:
            try:
                return self._take(number).decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"text at {start} is not UTF-8: {error.reason}") from error
        items = number if kind == _ARRAY else 2 * number
        if items > len(self.data) - self.at:
            raise ValueError(f"{items} items expected at {start}, only {len(self.data) - self.at} bytes left")
        got = [self.value(depth + 1) for _ in range(items)]
        return got if kind == _ARRAY else Pairs(zip(got[::2], got[1::2], strict=True))


def cbor_decode(data: bytes) -> Any:
    """Decodes one value; maps become `Pairs`. Raises ValueError."""
    decoder = _Decoder(data)
    value = decoder.value()
    if decoder.at != len(data):
        raise ValueError(f"{len(data) - decoder.at} trailing bytes after a value of {decoder.at}")
    return value


# --- keys and values ------------------------------------------------------------------------------------------------


def encode_key(outer: str, inner: str | None) -> bytes:
    text = f"{len(outer.encode()):02}{outer}"
    return cbor_encode(text if inner is None else f"{text}/{inner}")


def decode_key(data: bytes) -> tuple[str, str | None]:
    """Returns the names of the map and of its entry, None for the map's version. Raises ValueError."""
    text = cbor_decode(data)
    if not isinstance(text, str) or not text[:2].isascii() or not text[:2].isdigit():
        raise ValueError(f"{text!r:.80} is not a reader group key")
    rest = text[2:].encode()
    size = int(text[:2])
    if len(rest) < size or rest[size : size + 1] not in (b"", b"/"):
        raise ValueError(f"{text!r:.80} is not a reader group key: a name of {size} bytes is expected")
    return rest[:size].decode(), rest[size + 1 :].decode() if rest[size:] else None


def encode_value(kind: str, data: bytes) -> bytes:
    return cbor_encode({"type_id": kind, "data": list(data)})


VERSION_VALUE: Final = encode_value("blob", b"\0")
"""The value at the key of a whole map; only its version matters."""


def decode_value(value: bytes) -> tuple[str, bytes]:
    """Returns the type name and the bytes. Raises ValueError."""
    kind, numbers = _pairs(cbor_decode(value)).named("type_id", "data")
    try:
        data = bytes(numbers) if isinstance(numbers, list) else numbers
    except (TypeError, ValueError) as error:
        raise ValueError(f"{kind!r:.80} and {numbers!r:.80} are not a type and bytes") from error
    if not isinstance(kind, str) or not isinstance(data, bytes):
        raise ValueError(f"{kind!r:.80} and {numbers!r:.80} are not a type and bytes")
    return kind, data


def _pairs(value: Any) -> Pairs:
    if not isinstance(value, Pairs):
        raise ValueError(f"{value!r:.80} is not a map")
    return value


def _number(value: Any, lowest: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value < 1 << 63:
        raise ValueError(f"{value!r:.80} is not an offset or number")
    return value


# --- segments and offsets -------------------------------------------------------------------------------------------


def _name(value: Any) -> str:
    (name,) = _pairs(value).named("name")
    if not isinstance(name, str):
        raise ValueError(f"{name!r:.80} is not a name")
    return name


def _segment(name: str) -> Pairs:
    """Raises ValueError unless the name can be a stream segment's."""
    parsed = SegmentName.parse(name)
    if parsed.stream is None or parsed.segment_id is None:
        raise ValueError(f"{name!r:.200} is not a stream segment")
    number = Pairs((("number", parsed.segment_id), ("tx_id", None)))
    return Pairs((*_stream(parsed.scope or "", parsed.stream), ("segment", number)))


def _stream(scope: str, stream: str) -> Pairs:
    return Pairs((("scope", Pairs((("name", scope),))), ("stream", Pairs((("name", stream),)))))


def _segment_of(value: Any) -> str:
    scope, stream, segment = _pairs(value).named("scope", "stream", "segment")
    (number,) = _pairs(segment).named("number")
    epoch, low = split_segment_id(_number(number))
    name = segment_name(_name(scope), _name(stream), low, epoch)
    _segment(name)
    return name


def encode_offset(offset: int) -> bytes:
    return cbor_encode({"read": offset})


def _read(value: Any) -> int:
    (offset,) = _pairs(value).named("read")
    return _number(offset)


def decode_offset(data: bytes) -> int:
    """Returns the offset at which reading of a segment continues. Raises ValueError."""
    return _read(cbor_decode(data))


def encode_offsets(offsets: Mapping[str, int]) -> bytes:
    """offsets: qualified segment name → offset at which reading continues."""
    return cbor_encode(Pairs((_segment(name), {"read": offset}) for name, offset in offsets.items()))


def decode_offsets(data: bytes) -> dict[str, int]:
    """Raises ValueError."""
    return {_segment_of(key): _read(value) for key, value in _pairs(cbor_decode(data))}


def encode_predecessors(segment_ids: Sequence[int]) -> bytes:
    return cbor_encode([{"number": segment_id, "tx_id": None} for segment_id in segment_ids])


def decode_predecessors(data: bytes) -> list[int]:
    """Returns the ids of the segments that must be read to their ends first. Raises ValueError."""
    entries = cbor_decode(data)
    if not isinstance(entries, list):
        raise ValueError(f"{entries!r:.80} is not a list of segments")
    return [_number(_pairs(entry).named("number")[0]) for entry in entries]


# --- configuration --------------------------------------------------------------------------------------------------

_UNBOUNDED: Final = "Unbounded"
_TAIL: Final = "Tail"


def encode_config(config: GroupConfig) -> bytes:
    """Encodes the streams, with where they begin, and the refresh interval; a table holds no more."""
    fields = {
        "group_refresh_time_millis": config.refresh_ms,
        "starting_stream_cuts": Pairs(
            (_stream(*stream.split("/", 1)), _encode_cut(stream, cut)) for stream, cut in config.starts.items()
        ),
        "ending_stream_cuts": {},
    }
    return cbor_encode({"V1": fields})


def _encode_cut(stream: str, cut: Mapping[int, int]) -> Any:
    if not cut:
        return _UNBOUNDED
    scope, name = stream.split("/", 1)
    named = {segment_name(scope, name, *reversed(split_segment_id(key))): offset for key, offset in cut.items()}
    positions = Pairs((_segment(segment), offset) for segment, offset in named.items())
    return {"V1": {"stream": _stream(scope, name), "positions": positions}}


def decode_config(data: bytes) -> GroupConfig:
    """Returns a configuration without checkpoints. Raises ValueError.

    A start at the tail becomes a start at the head: it matters only when the group is created. End cuts are ignored: no
    client writes them.
    """
    (fields,) = _pairs(cbor_decode(data)).named("V1")
    refresh_ms, starts = _pairs(fields).named("group_refresh_time_millis", "starting_stream_cuts")
    cuts: dict[str, Mapping[int, int]] = {}
    for key, cut in _pairs(starts):
        scope, stream = _pairs(key).named("scope", "stream")
        cuts[f"{_name(scope)}/{_name(stream)}"] = _decode_cut(cut)
    return GroupConfig(cuts, refresh_ms=_number(refresh_ms), checkpoint_ms=-1)


def _decode_cut(cut: Any) -> dict[int, int]:
    if isinstance(cut, str):
        if cut not in (_UNBOUNDED, _TAIL):
            raise ValueError(f"{cut!r:.80} is not the start of a stream")
        return {}
    (positions,) = _pairs(_pairs(cut).named("V1")[0]).named("positions")
    return {
        SegmentName.parse(_segment_of(segment)).segment_id or 0: _number(offset)
        for segment, offset in _pairs(positions)
    }


# --- the state ------------------------------------------------------------------------------------------------------

CONFIG: Final = "config"
ASSIGNED: Final = "assigned_segments"
UNASSIGNED: Final = "unassigned_segments"
FUTURE: Final = "future_segments"
DISTANCE: Final = "distance_to_tail"
"""The clients in Rust and Python write this for each reader but do not use it."""

ONLY: Final = "default"
"""The only key of the map `CONFIG`."""

_GONE: Final = encode_value(TOMBSTONE, cbor_encode({}))
_UNKNOWN_DISTANCE: Final = encode_value("u64", cbor_encode((1 << 64) - 1))
_ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {
    CONFIG: lambda config: encode_value("ReaderGroupConfigVersioned", encode_config(config)),
    ASSIGNED: lambda offsets: encode_value("HashMap<ScopedSegment, Offset>", encode_offsets(offsets)),
    DISTANCE: lambda _: _UNKNOWN_DISTANCE,
    UNASSIGNED: lambda offset: encode_value("Offset", encode_offset(offset)),
    FUTURE: lambda before: encode_value("HashSet<i64>", encode_predecessors(sorted(before))),
}

V = TypeVar("V")


class StoredEntry(NamedTuple):
    """An entry: the name of its map, its key in the map, and its value as in the table."""

    outer: str
    inner: str
    value: bytes


class StoredGroup(GroupState):
    """The state of one group. `read` and `ranges` are empty, and `distances` has no more than the readers' names."""

    def take(self, outer: str, inner: str, value: bytes | None) -> None:
        """Applies an entry read from the table; value None if it was removed. Unknown maps are ignored.

        Raises ValueError for a malformed value or segment name.
        """
        kind, data = (TOMBSTONE, b"") if value is None else decode_value(value)
        gone = kind == TOMBSTONE
        if outer in (UNASSIGNED, FUTURE) and not gone:
            _segment(inner)
        if outer == CONFIG and inner == ONLY:
            self.config = None if gone else decode_config(data)
        elif outer == ASSIGNED:
            _put(self.readers, inner, None if gone else decode_offsets(data))
        elif outer == UNASSIGNED:
            _put(self.unassigned, inner, None if gone else decode_offset(data))
        elif outer == FUTURE and gone:
            self.future.pop(inner, None)
        elif outer == FUTURE:
            self._await(inner, set(decode_predecessors(data)))
        elif outer == DISTANCE:
            _put(self.distances, inner, None if gone else 0)

    def changes_to(self, newer: Self) -> list[StoredEntry]:
        """Returns the entries to write for a state that was made from this state, removed entries last."""
        maps = [
            (outer, old, new) for (outer, old), new in zip(self._maps().items(), newer._maps().values(), strict=True)
        ]
        changed = [
            StoredEntry(outer, inner, _ENCODERS[outer](value))
            for outer, old, new in maps
            for inner, value in new.items()
            if inner not in old or old[inner] != value
        ]
        gone = [StoredEntry(outer, inner, _GONE) for outer, old, new in maps for inner in old if inner not in new]
        return changed + gone

    def _maps(self) -> dict[str, Mapping[str, Any]]:
        return {
            CONFIG: {} if self.config is None else {ONLY: self.config},
            ASSIGNED: self.readers,
            DISTANCE: dict.fromkeys(self.distances),
            UNASSIGNED: self.unassigned,
            FUTURE: self.future,
        }

    def _waiting_for(self, segment: str) -> set[str]:
        """As in the Java form, but only of the segment's own stream."""
        stream = _stream_of(segment)
        following = self._followers[SegmentName.parse(segment).segment_id or 0]
        followers = {follower for follower in following if _stream_of(follower) == stream}
        following -= followers
        return followers


def _stream_of(segment: str) -> str:
    return segment.rpartition("/")[0]


def _put(entries: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value
