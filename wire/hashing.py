"""Hashes of names, as Guava and Java compute them, so that all clients and servers agree on placement.

Pure functions of any text, lone surrogates included: Java hashes UTF-16 characters without validation. Source: Guava's
`murmur3_128` (`hashUnencodedChars`) and `consistentHash`, Java's `String.hashCode`; `HashHelper` (Pravega's client).
"""

from functools import lru_cache
from typing import Final

from segstore.wire.codec import or_in_c
from segstore.wire.schema import utf16

_M64: Final = 2**64 - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


def java_hash_code(text: str) -> int:
    """Java's `String.hashCode`, as a signed int32."""
    value = 0
    data = utf16(text)
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] | data[at + 1] << 8)) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def _final_mix(h: int) -> int:
    h ^= h >> 33
    h = h * 0xFF51AFD7ED558CCD & _M64
    h ^= h >> 33
    h = h * 0xC4CEB9FE1A85EC53 & _M64
    return h ^ h >> 33


@or_in_c
def murmur3_128_low(data: bytes, seed: int) -> int:
    """The first eight bytes, little-endian, of murmur3_128 (x64); a negative seed is sign-extended, as in Guava."""
    h1 = h2 = seed & _M64
    size = len(data)
    whole = size - size % 16
    for at in range(0, whole, 16):
        k1 = int.from_bytes(data[at : at + 8], "little") * _C1 & _M64
        k1 = (k1 << 31 | k1 >> 33) * _C2 & _M64
        h1 ^= k1
        h1 = (h1 << 27 | h1 >> 37) + h2 & _M64
        h1 = h1 * 5 + 0x52DCE729 & _M64
        k2 = int.from_bytes(data[at + 8 : at + 16], "little") * _C2 & _M64
        k2 = (k2 << 33 | k2 >> 31) * _C1 & _M64
        h2 ^= k2
        h2 = (h2 << 31 | h2 >> 33) + h1 & _M64
        h2 = h2 * 5 + 0x38495AB5 & _M64
    # An empty tail mixes in zeros, which changes nothing.
    k2 = int.from_bytes(data[whole + 8 :], "little") * _C2 & _M64
    h2 ^= (k2 << 33 | k2 >> 31) * _C1 & _M64
    k1 = int.from_bytes(data[whole : whole + 8], "little") * _C1 & _M64
    h1 ^= (k1 << 31 | k1 >> 33) * _C2 & _M64
    h1 = ((h1 ^ size) + (h2 ^ size)) & _M64
    h2 = (h1 + (h2 ^ size)) & _M64
    return (_final_mix(h1) + _final_mix(h2)) & _M64


def consistent_hash(state: int, count: int) -> int:
    """Guava's `consistentHash`: few inputs change their bucket when the count grows."""
    candidate = 0
    while True:
        state = 2862933555777941757 * state + 1 & _M64
        following = int((candidate + 1) / (((state >> 33) + 1) / 2147483648.0))
        if following >= count:
            return candidate
        candidate = following


_EVENT_SEED: Final = java_hash_code("EventRouter")
_TABLE_SEED: Final = java_hash_code("KeyValueTableRouter")


def _position(data: bytes, seed: int) -> float:
    return (murmur3_128_low(data, seed) >> 12) / 2**52


@lru_cache(maxsize=65_536)
def position_of(routing_key: str) -> float:
    """Returns the position of a routing key in [0, 1). Raises TypeError if it is not a str."""
    try:
        data = utf16(routing_key)
    except AttributeError as error:
        raise TypeError(f"a routing key is a str, not {type(routing_key).__name__}") from error
    return _position(data, _EVENT_SEED)


def position_of_key(primary: bytes) -> float:
    """Returns the position of a key-value table's primary key in [0, 1)."""
    return _position(primary, _TABLE_SEED)
