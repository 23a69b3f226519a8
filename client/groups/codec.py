"""Codec for the entries of a reader group's table, in the official client's format.

A key is the CBOR text "NNouter/inner", NN the length of `outer` in two digits; without "/inner" it stands for the
version of the whole map `outer`. A value is a CBOR map of a type's name and an array of bytes, which are CBOR again.
The bytes written are those that serde_cbor makes: definite lengths, shortest heads.

Invariants: nothing is allocated by a length that the remaining bytes cannot hold; nesting is bounded. Refused
(`ValueError`, with the place): floats, tags, indefinite lengths, what is left behind a value, keys that are none.
Follows `InternalKey`, `Value`, `ReaderGroupConfigVersioned` and `Offset` of pravega-client-rust.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from segstore.wire.names import SegmentName, segment_name, split_segment_id

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
    raise ValueError(f"{number} is above what CBOR can hold")


class Pairs(tuple[tuple[Any, Any], ...]):
    """A map, as its pairs in order: keys may be maps themselves."""

    __slots__ = ()

    def named(self, *names: str) -> list[Any]:
        """The values of text keys. Raises ValueError if one is not there."""
        found = {key: value for key, value in self if isinstance(key, str)}
        missing = [name for name in names if name not in found]
        if missing:
            raise ValueError(f"no {' and no '.join(missing)} in a map of {len(self)}")
        return [found[name] for name in names]


def cbor_encode(value: Any) -> bytes:
    """Integers, text, bytes, None, booleans, lists, dicts and `Pairs`."""
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
            return _head(_MAP, len(value)) + b"".join(cbor_encode(key) + cbor_encode(each) for key, each in pairs)
        case list() | tuple():
            return _head(_ARRAY, len(value)) + b"".join(map(cbor_encode, value))
    raise ValueError(f"{type(value).__name__} has no form in CBOR here")


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def _take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError(f"{size} bytes are due at {self.at}, {len(self.data) - self.at} are there")
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
            raise ValueError(f"byte {first:#04x} at {start} begins nothing that is known here")
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
                raise ValueError(f"text at {start} is no UTF-8: {error.reason}") from error
        items = number if kind == _ARRAY else 2 * number
        if items > len(self.data) - self.at:
            raise ValueError(f"{items} items are due at {start}, {len(self.data) - self.at} bytes are there")
        got = self._items(items, depth + 1)
        return got if kind == _ARRAY else Pairs(zip(got[::2], got[1::2], strict=True))

    def _items(self, count: int, depth: int) -> list[Any]:
        """Bytes of values come as arrays of small numbers: these are read here, which is most of the work."""
        got: list[Any] = []
        data, last = self.data, len(self.data) - 1
        while len(got) < count:
            at = self.at
            if at < last and data[at] == 24:
                got.append(data[at + 1])
                self.at = at + 2
            elif at <= last and data[at] < 24:
                got.append(data[at])
                self.at = at + 1
            else:
                got.append(self.value(depth))
        return got


def cbor_decode(data: bytes) -> Any:
    """What was encoded; maps come as `Pairs`. Raises ValueError."""
    decoder = _Decoder(data)
    value = decoder.value()
    if decoder.at != len(data):
        raise ValueError(f"{len(data) - decoder.at} bytes are left behind a value of {decoder.at}")
    return value


# --- keys and values ------------------------------------------------------------------------------------------------


def encode_key(outer: str, inner: str | None) -> bytes:
    text = f"{len(outer.encode()):02}{outer}"
    return cbor_encode(text if inner is None else f"{text}/{inner}")


def decode_key(data: bytes) -> tuple[str, str | None]:
    """The names of the map and of the entry in it, None for the map's version. Raises ValueError."""
    text = cbor_decode(data)
    if not isinstance(text, str) or not text[:2].isascii() or not text[:2].isdigit():
        raise ValueError(f"{text!r:.80} is no key of a reader group")
    rest = text[2:].encode()
    size = int(text[:2])
    if len(rest) < size or rest[size : size + 1] not in (b"", b"/"):
        raise ValueError(f"{text!r:.80} is no key of a reader group: {size} bytes of a name are due")
    return rest[:size].decode(), rest[size + 1 :].decode() if rest[size:] else None


_OCTETS: Final = [cbor_encode(each) for each in range(256)]


def encode_value(kind: str, data: bytes) -> bytes:
    """The same as `cbor_encode({"type_id": kind, "data": list(data)})`."""
    head = _head(_MAP, 2) + cbor_encode("type_id") + cbor_encode(kind) + cbor_encode("data")
    return head + _head(_ARRAY, len(data)) + b"".join([_OCTETS[each] for each in data])


VERSION_VALUE: Final = encode_value("blob", b"\0")
"""What stands at the key of a whole map: only its version counts."""


def decode_value(value: bytes) -> tuple[str, bytes]:
    """A type's name and the bytes. Raises ValueError."""
    kind, numbers = _pairs(cbor_decode(value)).named("type_id", "data")
    try:
        data = bytes(numbers) if isinstance(numbers, list) else numbers
    except (TypeError, ValueError) as error:
        raise ValueError(f"{kind!r:.80} and {numbers!r:.80} are no type and bytes") from error
    if not isinstance(kind, str) or not isinstance(data, bytes):
        raise ValueError(f"{kind!r:.80} and {numbers!r:.80} are no type and bytes")
    return kind, data


def _pairs(value: Any) -> Pairs:
    if not isinstance(value, Pairs):
        raise ValueError(f"{value!r:.80} is no map")
    return value


def _number(value: Any, lowest: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value < 1 << 63:
        raise ValueError(f"{value!r:.80} is no offset or number")
    return value


# --- segments and offsets -------------------------------------------------------------------------------------------


def _name(value: Any) -> str:
    (name,) = _pairs(value).named("name")
    if not isinstance(name, str):
        raise ValueError(f"{name!r:.80} is no name")
    return name


def check_segment(name: str) -> None:
    """Raises ValueError for a name that no segment of a stream has."""
    _segment(name)


def _segment(name: str) -> Pairs:
    parsed = SegmentName.parse(name)
    if parsed.stream is None or parsed.segment_id is None:
        raise ValueError(f"{name!r:.200} is no segment of a stream")
    number = Pairs((("number", parsed.segment_id), ("tx_id", None)))
    return Pairs((*_stream(parsed.scope or "", parsed.stream), ("segment", number)))


def _stream(scope: str, stream: str) -> Pairs:
    return Pairs((("scope", Pairs((("name", scope),))), ("stream", Pairs((("name", stream),)))))


def _segment_of(value: Any) -> str:
    scope, stream, segment = _pairs(value).named("scope", "stream", "segment")
    (number,) = _pairs(segment).named("number")
    epoch, low = split_segment_id(_number(number))
    name = segment_name(_name(scope), _name(stream), low, epoch)
    check_segment(name)
    return name


def encode_offset(offset: int) -> bytes:
    return cbor_encode({"read": offset})


def _read(value: Any) -> int:
    (offset,) = _pairs(value).named("read")
    return _number(offset)


def decode_offset(data: bytes) -> int:
    """Where a segment goes on. Raises ValueError."""
    return _read(cbor_decode(data))


def encode_offsets(offsets: Mapping[str, int]) -> bytes:
    """offsets: qualified name of a segment → where it goes on."""
    return cbor_encode(Pairs((_segment(name), {"read": offset}) for name, offset in offsets.items()))


def decode_offsets(data: bytes) -> dict[str, int]:
    """Raises ValueError."""
    return {_segment_of(key): _read(value) for key, value in _pairs(cbor_decode(data))}


def encode_predecessors(segment_ids: Sequence[int]) -> bytes:
    return cbor_encode([{"number": each, "tx_id": None} for each in segment_ids])


def decode_predecessors(data: bytes) -> list[int]:
    """Ids of the segments that must end first. Raises ValueError."""
    found = cbor_decode(data)
    if not isinstance(found, list):
        raise ValueError(f"{found!r:.80} is no list of segments")
    return [_number(_pairs(each).named("number")[0]) for each in found]


# --- configuration --------------------------------------------------------------------------------------------------


class GroupConfig(NamedTuple):
    """What a group was made with.

    streams: (scope, stream) → where it began: "head", "tail", or segment id → offset.
    refresh_ms: how often readers record where they are, at the latest.
    """

    streams: Mapping[tuple[str, str], str | Mapping[int, int]]
    refresh_ms: int = 3000


_STARTS: Final = {"head": "Unbounded", "tail": "Tail"}
_NAMES: Final = {value: key for key, value in _STARTS.items()}


def encode_config(config: GroupConfig) -> bytes:
    starts = []
    for (scope, stream), start in config.streams.items():
        cut: Any
        if isinstance(start, str):
            cut = _STARTS[start]
        else:
            named = {segment_name(scope, stream, *reversed(split_segment_id(each))): at for each, at in start.items()}
            positions = Pairs((_segment(name), offset) for name, offset in named.items())
            cut = {"V1": {"stream": _stream(scope, stream), "positions": positions}}
        starts.append((_stream(scope, stream), cut))
    fields = {
        "group_refresh_time_millis": config.refresh_ms,
        "starting_stream_cuts": Pairs(starts),
        "ending_stream_cuts": {},
    }
    return cbor_encode({"V1": fields})


def decode_config(data: bytes) -> GroupConfig:
    """Raises ValueError. Ends of streams are not kept: no client writes them."""
    (fields,) = _pairs(cbor_decode(data)).named("V1")
    refresh_ms, starts = _pairs(fields).named("group_refresh_time_millis", "starting_stream_cuts")
    streams: dict[tuple[str, str], str | Mapping[int, int]] = {}
    for key, cut in _pairs(starts):
        scope, stream = _pairs(key).named("scope", "stream")
        if isinstance(cut, str):
            if cut not in _NAMES:
                raise ValueError(f"{cut!r:.80} is no start of a stream")
            streams[_name(scope), _name(stream)] = _NAMES[cut]
        else:
            (positions,) = _pairs(_pairs(cut).named("V1")[0]).named("positions")
            streams[_name(scope), _name(stream)] = {
                SegmentName.parse(_segment_of(segment)).segment_id or 0: _number(offset)
                for segment, offset in _pairs(positions)
            }
    return GroupConfig(streams, _number(refresh_ms))
