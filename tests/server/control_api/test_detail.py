"""Payloads as they are shown."""

from segstore.server.control_api.detail import readable_form
from tests.looped import looped


@looped("text", ['{"a":1e999}', '{"a":NaN}', '[{"a":1,"a":2}]', "[-Infinity]"])
def test_what_would_not_be_the_same_json_is_shown_as_text(text: str) -> None:
    assert readable_form(text.encode()) == ("text", text)


def test_json_is_shown_indented() -> None:
    assert readable_form(b'{"a":[1]}') == ("json", '{\n  "a": [\n    1\n  ]\n}')
