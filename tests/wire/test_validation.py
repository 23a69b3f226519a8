"""Objects of JSON have each key once; errors of pydantic become a place and a sentence without the library's terms."""

from __future__ import annotations

import json
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from segstore.wire.validation import DuplicateKey, first_error, message_of, place_and_problem, unique
from tests.looped import looped


class _Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    ratio: float = Field(default=0.5, gt=0, lt=1, allow_inf_nan=False)
    names: list[str] = Field(default=[], max_length=2)


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: int = Field(ge=1, le=9)
    kind: Literal["a", "b"] = "a"
    name: str = Field(default="x", min_length=1, max_length=3)
    switch: bool = False
    key: UUID | None = None
    inner: _Inner = _Inner()

    @field_validator("name")
    @classmethod
    def _check_name(cls, given: str) -> str:
        if given == "no":
            raise ValueError("this name is reserved")
        return given


@looped(
    ("given", "place", "problem"),
    [
        ({}, "count", "it is required"),
        ({"count": "x"}, "count", "a whole number is needed"),
        ({"count": 1.5}, "count", "a whole number is needed"),
        ({"count": "9" * 5_000}, "count", "the number is too large"),
        ({"count": 0}, "count", "it must be greater than or equal to 1"),
        ({"count": 10}, "count", "it must be less than or equal to 9"),
        ({"count": 1, "kind": "c"}, "kind", "it must be 'a' or 'b'"),
        ({"count": 1, "name": 5}, "name", "text is needed"),
        ({"count": 1, "name": ""}, "name", "it must not be empty"),
        ({"count": 1, "name": "long"}, "name", "it must have at most 3 characters"),
        ({"count": 1, "name": "no"}, "name", "this name is reserved"),
        ({"count": 1, "switch": "maybe"}, "switch", "true or false is needed"),
        ({"count": 1, "key": "?"}, "key", "a UUID is needed"),
        ({"count": 1, "inner": []}, "inner", "an object is needed"),
        ({"count": 1, "inner": {"ratio": "nan"}}, "inner.ratio", "a finite number is needed"),
        ({"count": 1, "inner": {"ratio": 0}}, "inner.ratio", "it must be greater than 0"),
        ({"count": 1, "inner": {"ratio": 1}}, "inner.ratio", "it must be less than 1"),
        ({"count": 1, "inner": {"names": {}}}, "inner.names", "a list is needed"),
        ({"count": 1, "inner": {"names": ["a", "b", "c"]}}, "inner.names", "the list has at most 2 items"),
        ({"count": 1, "inner": {"colour": 1}}, "inner.colour", "there is no such key"),
        ([], "", "an object is needed"),
    ],
)
def test_the_place_and_the_problem_are_named(given: Any, place: str, problem: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Settings.model_validate(given)
    assert place_and_problem(caught.value) == (place, problem)


def test_an_unknown_key_comes_before_other_errors() -> None:
    with pytest.raises(ValidationError) as caught:
        _Settings.model_validate({"coutn": 1})
    assert first_error(caught.value)["loc"] == ("coutn",)
    assert message_of(caught.value.errors()[0]) == "it is required"


@looped(("text", "key"), [('{"a": 1, "b": 2, "a": 1}', "a"), ('[{"a": {"": null, "": null}}]', "")])
def test_the_key_that_an_object_has_twice_is_named(text: str, key: str) -> None:
    with pytest.raises(DuplicateKey, match=f"^the key {key!r} appears twice$") as caught:
        json.loads(text, object_pairs_hook=unique)
    assert caught.value.key == key


def test_other_objects_stay_as_they_are() -> None:
    text = '{"a": {"a": [1, {"a": {}}]}, "b": null}'
    assert json.loads(text, object_pairs_hook=unique) == json.loads(text)
