from __future__ import annotations

import pickle

from segstore.wire.history import Broken, Fact, Key, Open, Place
from segstore.wire.history.facts import Sent, segment_key


def test_segments_that_are_merged_into_another_have_its_key() -> None:
    name = "s/t/0.#epoch.0"
    transaction = f"{name}#transaction.{'0' * 32}"
    transient = f"{name}#transient.{'0' * 32}.{'0' * 32}"
    assert {segment_key(segment) for segment in (name, transaction, transient)} == {Key("segment", name)}


def test_what_folds_yield_can_be_sent_to_other_processes() -> None:
    key, place = Key("segment", "s"), Place("f", 1, 2, 3, 4)
    for finding in (
        Fact(key, place, Sent("s", "w", 1, 1, b"a")),
        Broken("gap", key, (place,), ""),
        Open("gap", key, ""),
    ):
        assert pickle.loads(pickle.dumps(finding)) == finding
