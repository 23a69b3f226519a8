"""Hashes of names: values that Java and Guava give, and what holds for any."""

import mmh3
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.hashing import consistent_hash, java_hash_code, murmur3_128_low
from tests.looped import looped


@looped(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1772899),
        ("\ud800", 0xD800),
    ],
)
def test_a_hash_code_is_javas(text: str, code: int) -> None:
    assert java_hash_code(text) == code


@given(st.binary(max_size=70), st.integers(0, 2**31 - 1))
def test_the_hash_is_that_of_another_implementation(data: bytes, seed: int) -> None:
    assert murmur3_128_low(data, seed) == mmh3.mmh3_x64_128_utupledigest(data, seed)[0]


@given(st.binary(max_size=40))
def test_a_negative_seed_is_sign_extended(data: bytes) -> None:
    assert murmur3_128_low(data, -1) == murmur3_128_low(data, 2**64 - 1)


@given(st.integers(0, 2**64 - 1), st.integers(1, 300))
def test_a_bucket_more_moves_an_input_only_to_the_new_one(state: int, count: int) -> None:
    before, after = consistent_hash(state, count), consistent_hash(state, count + 1)
    assert 0 <= before < count
    assert after in (before, count)
