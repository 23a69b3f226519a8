"""Objects of JSON have each key once, also where `json` would keep the last value."""

from __future__ import annotations

import json

import pytest

from segstore.wire.unique_keys import DuplicateKey, unique


@pytest.mark.parametrize(("text", "key"), [('{"a": 1, "b": 2, "a": 1}', "a"), ('[{"a": {"": null, "": null}}]', "")])
def test_the_key_that_an_object_has_twice_is_named(text: str, key: str) -> None:
    with pytest.raises(DuplicateKey, match=f"^the key {key!r} appears twice$") as caught:
        json.loads(text, object_pairs_hook=unique)
    assert caught.value.key == key


def test_other_objects_stay_as_they_are() -> None:
    text = '{"a": {"a": [1, {"a": {}}]}, "b": null}'
    assert json.loads(text, object_pairs_hook=unique) == json.loads(text)
