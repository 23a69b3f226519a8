"""Contents of events and table entries in JSON: text, a JSON value, or bytes in Base64.

Stored bytes without the requested form are shown in another form, so every content can be shown: JSON that does not
parse as text, text that is not UTF-8 as Base64. The form `readable` is for people: the start of a content, as indented
JSON, text or hex.
"""

from __future__ import annotations

import base64
import binascii
import json
from contextlib import suppress
from typing import Any, Final, Literal, Self

import msgspec
from pydantic import Field, model_validator

from segstore.server.control_api.detail import readable_form
from segstore.server.control_api.models import RequestBody
from segstore.server.control_api.problems import ApiProblem

Form = Literal["text", "json", "base64", "readable"]
_JSON: Final = msgspec.json.Decoder()
ENCODER: Final = msgspec.json.Encoder()


class Content(RequestBody):
    """Bytes, in exactly one form of three."""

    text: str | None = Field(default=None, description="Text, stored in UTF-8.")
    value: Any = Field(default=None, alias="json", description="A JSON value, stored as compact JSON in UTF-8.")
    base64: str | None = Field(default=None, description="Bytes in Base64.")

    @model_validator(mode="after")
    def _check_one_form(self) -> Self:
        given = self.model_fields_set & {"text", "value", "base64"}
        if len(given) != 1 or (given != {"value"} and getattr(self, next(iter(given))) is None):
            raise ValueError("exactly one of text, json and base64 is needed")
        return self

    def data(self, where: str) -> bytes:
        """Returns the bytes. Raises ApiProblem, which names `where`."""
        try:
            if self.base64 is not None:
                return base64.b64decode(self.base64, validate=True)
            if self.text is not None:
                return self.text.encode()
            return json.dumps(self.value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
        except binascii.Error as error:
            raise ApiProblem(422, f"{where}.base64: this is not Base64", f"{where}.base64") from error
        except UnicodeEncodeError as error:
            raise ApiProblem(422, f"{where}: a lone surrogate cannot be stored in UTF-8", where) from error
        except (ValueError, RecursionError) as error:
            what = "it is nested too deeply" if isinstance(error, RecursionError) else "NaN and infinity are not JSON"
            raise ApiProblem(422, f"{where}.json: {what}", f"{where}.json") from error


def shown_as(data: bytes, form: Form) -> dict[str, Any]:
    """Returns a content for `ENCODER`, in `form` or, if impossible, in another form."""
    if form == "readable":
        kind, text = readable_form(data)
        return {"hex" if kind == "hex" else "text": text}
    if form == "json":
        try:
            _JSON.decode(data)
            return {"json": msgspec.Raw(data)}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            form = "text"
    if form == "text":
        with suppress(UnicodeDecodeError):  # other bytes are shown as Base64
            return {"text": data.decode()}
    return {"base64": base64.b64encode(data).decode()}
