"""Describes errors in settings and other input from outside.

`unique`, an `object_pairs_hook` of `json.loads`, refuses a key that an object has twice: `json` keeps the last value
without an error. `json_object` and `refuse_others` read lines of JSON. The other functions word errors of pydantic
without the terms of that library, which its callers have imported.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from segstore.wire.errors import BadField

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


class DuplicateKey(ValueError):
    """A key appears twice in an object. Attributes: key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} appears twice")
        self.key = key


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON. Raises DuplicateKey."""
    values = dict(pairs)
    if len(values) < len(pairs):
        for key, _ in pairs:
            if values.pop(key, pairs) is pairs:
                raise DuplicateKey(key)
    return values


def json_object(text: str) -> dict[str, Any]:
    """Reads an object of JSON. Raises BadField."""
    try:
        values = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as cause:
        raise BadField(f"not JSON at column {cause.colno}: {cause.msg}") from cause
    except DuplicateKey as cause:
        raise BadField("the key appears twice", field=cause.key) from cause
    except (ValueError, RecursionError) as cause:
        raise BadField(f"not JSON: {cause}") from cause
    if not isinstance(values, dict):
        raise BadField(f"an object is needed, not {type(values).__name__}", actual=values)
    return values


def refuse_others(values: dict[str, Any], keys: Sequence[str]) -> None:
    """Raises BadField if an object has other keys."""
    for key in values:
        if key not in keys:
            raise BadField(f"there is no such key here; there are {', '.join(keys)}", field=key)


_SENTENCES: Final = (
    (r"missing", "it is required"),
    (r"extra_forbidden", "there is no such key"),
    (r"int_parsing_size", "the number is too large"),
    (r"int_(type|parsing|from_float)", "a whole number is needed"),
    (r"float_(type|parsing)", "a number is needed"),
    (r"finite_number", "a finite number is needed"),
    (r"bool_(type|parsing)", "true or false is needed"),
    (r"string_type", "text is needed"),
    (r"string_unicode", "text in valid unicode is needed"),
    (r"uuid_(type|parsing)", "a UUID is needed"),
    (r"(list|tuple)_type", "a list is needed"),
    (r"(dict|model|model_attributes)_type", "an object is needed"),
    (r"literal_error", "it must be {expected}"),
    (r"greater_than", "it must be greater than {gt}"),
    (r"greater_than_equal", "it must be greater than or equal to {ge}"),
    (r"less_than", "it must be less than {lt}"),
    (r"less_than_equal", "it must be less than or equal to {le}"),
    (r"too_short", "the list must not be empty"),
    (r"too_long", "the list has at most {max_length} items"),
    (r"string_too_short", "it must not be empty"),
    (r"string_too_long", "it must have at most {max_length} characters"),
)
"""A regular expression for types of pydantic's errors → the problem, with facts of the error."""


def message_of(error: ErrorDetails) -> str:
    """Returns the problem without the library's own terms."""
    problem = error["type"]
    if problem in ("too_short", "too_long") and isinstance(error["input"], str):
        problem = f"string_{problem}"  # the library says it of a list, too
    for kind, sentence in _SENTENCES:
        if re.fullmatch(kind, problem):
            return sentence.format_map({name: _fact(fact) for name, fact in error.get("ctx", {}).items()})
    return error["msg"].removeprefix("Value error, ")


def place_and_problem(error: ValidationError) -> tuple[str, str]:
    """Returns the dotted path of the first error, empty for the whole input, and the problem there."""
    first = first_error(error)
    return ".".join(map(str, first["loc"])), message_of(first)


def _fact(fact: Any) -> Any:
    if fact in ("True", "False"):
        return fact.lower()  # as in JSON and YAML
    return f"{fact:.16g}" if type(fact) is float else fact


def first_error(error: ValidationError) -> ErrorDetails:
    """The first error of a validation. An unknown field comes first: it may be the misspelt name of a missing field."""
    return foremost(error.errors(include_url=False))


def foremost(errors: Sequence[ErrorDetails]) -> ErrorDetails:
    """Returns an unknown key among errors of pydantic, or else the first error."""
    return next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
