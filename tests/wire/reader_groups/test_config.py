"""Configurations of reader groups: bytes that a Java client wrote, and round trips."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.reader_groups import GroupConfig
from segstore.wire.reader_groups.config import decode_config, encode_config
from segstore.wire.reader_groups.versioned import Output, encode_object
from tests.looped import looped
from tests.wire.reader_groups.java import java_configs

PLAIN = GroupConfig({"scope/stream": {}}, {"scope/stream": {}})
FULL = GroupConfig(
    {"scope/stream": {0: 5, 1: 100_000, (1 << 32) + 7: -1, (3 << 32) + 1_000_000: 1 << 40}, "other/t": {}},
    {"scope/stream": {0: 40, 1: 4_000_000_000, (1 << 32) + 7: -1, (3 << 32) + 1_000_000: 1 << 41}, "other/t": {}},
    refresh_ms=1234,
    checkpoint_ms=-1,
    most_checkpoints=7,
    retention="manual",
    generation=42,
    id=UUID("01234567-89ab-cdef-8123-456789abcdef"),
)


@looped(("name", "config"), [("plain", PLAIN), ("full", FULL)])
def test_a_configuration_has_the_bytes_of_a_java_client(name: str, config: GroupConfig) -> None:
    assert decode_config(java_configs()[name]) == config
    assert encode_config(config) == java_configs()[name]


cuts = st.dictionaries(
    st.sampled_from(["a/s", "b/t"]), st.dictionaries(st.integers(0, (1 << 62) - 1), st.integers(-1, (1 << 61) - 1))
)


@given(cuts, cuts, st.integers(0, 2), st.uuids())
def test_configurations_survive(starts: dict, ends: dict, retention: int, identifier: UUID) -> None:  # type: ignore[type-arg]
    kind = ("none", "manual", "automatic")[retention]
    config = GroupConfig(starts, ends, 1, 2, 3, kind, 4, identifier)
    assert decode_config(encode_config(config)) == config


def test_earlier_revisions_and_cuts_are_read() -> None:
    cut = Output().text("a/s").count(1).compact_long(3).compact_long(77)
    first = Output().long(5).long(6).count(1).text("a/s").array(encode_object([cut])).count(0)
    assert decode_config(encode_object([first])) == GroupConfig({"a/s": {3: 77}}, {}, 6, 5)


def test_an_unknown_type_of_retention_is_refused() -> None:
    plain = java_configs()["plain"]
    with pytest.raises(ValueError, match="3 is no type of retention"):
        decode_config(plain[:-25] + b"\3" + plain[-24:])
