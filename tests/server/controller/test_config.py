"""The file with the controller's settings: valid content, errors, and its page in the docs."""

import re
from pathlib import Path
from typing import Any

import pytest

from segstore.server.controller import ControllerConfig, read_config
from tests.looped import looped

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "controller-settings.md"


def fields() -> dict[str, Any]:
    """All settings with their defaults; those of scaling with the prefix of their table."""
    plain = ControllerConfig().model_dump()
    scaling = plain.pop("scaling")
    return plain | {f"scaling.{name}": value for name, value in scaling.items()}


def other(value: Any) -> Any:
    """A value that differs from the default."""
    return not value if isinstance(value, bool) else 7 if value is None else value + 1


def toml(value: Any) -> str:
    return str(value).lower()


def test_every_setting_can_be_in_a_file(tmp_path: Path) -> None:
    wanted = {name: other(value) for name, value in fields().items()}
    path = tmp_path / "controller.toml"
    path.write_text("".join(f"{name} = {toml(value)}\n" for name, value in wanted.items()))
    read = read_config(path).model_dump()
    assert read | {f"scaling.{name}": value for name, value in read.pop("scaling").items()} == wanted


@looped(
    ("content", "said"),
    [
        ("watermarks_every_ms = 5", "watermarks_every_ms: there is no such option (watermark_every_ms?)"),
        ("[scaling]\ncooldown = 5", "scaling.cooldown: there is no such option (cooldown_minutes?)"),
        ("page_size = 0", "page_size: it must be greater than or equal to 1"),
        ("page_size = '5'", "page_size: a whole number is needed"),
        ("system_scope = 1", "system_scope: true or false is needed"),
        ("scaling = 5", "scaling: "),
        ("max_segments = 1000000", "max_segments: it must be less than or equal to 65536"),
        ("[scaling]\nmute_minutes = inf", "scaling.mute_minutes: a finite number is needed"),
        ("page_size", "this is not TOML: "),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence_that_names_it_and_the_field(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "controller.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {said}")) as refused:
        read_config(path)
    assert "\n" not in str(refused.value)


def shown(value: Any) -> str:
    """A default as written on the page."""
    if value is None:
        return "none"
    return f"{value:,}" if type(value) is int else str(value).lower()


def test_the_page_about_the_settings_has_each_with_its_default() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (\S+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [(name, shown(value)) for name, value in fields().items()]


def test_the_example_of_the_page_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "controller.toml"
    path.write_text(PAGE.read_text().partition("```toml\n")[2].partition("```")[0])
    assert read_config(path).scaling.minute_ms == 6_000
