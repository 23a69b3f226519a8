"""The generated pages are what the schema says."""

from __future__ import annotations

import runpy
from pathlib import Path

from segstore.wire import COMMANDS

ROOT = Path(__file__).parent.parent.parent
make_docs = runpy.run_path(str(ROOT / "tools" / "make_docs.py"))


def test_the_committed_pages_are_up_to_date() -> None:
    for name, make in make_docs["PAGES"].items():
        assert (ROOT / "docs" / name).read_text("utf-8") == make(), f"docs/{name}: run `make docs`"


def test_every_command_and_every_field_of_it_has_its_place() -> None:
    sections = {}
    for part in make_docs["protocol"]().split("\n### ")[1:]:
        name, _, text = part.partition("\n")
        sections[name] = text
    assert sections.keys() == {cls.type_name for cls in COMMANDS.values()}
    for cls in COMMANDS.values():
        section = sections[cls.type_name]
        assert f"Code {cls.code}, `{cls.__name__}`" in section
        for field in cls.__struct_fields__:
            assert f"| `{field}" in section, f"{cls.type_name}.{field}"


def test_an_option_that_is_not_there_ends_with_status_2() -> None:
    assert make_docs["main"](["--no-such"]) == 2


def test_a_check_writes_nothing() -> None:
    before = (ROOT / "docs" / "reference" / "protocol.md").stat().st_mtime_ns
    assert make_docs["main"](["--check"]) == 0
    assert (ROOT / "docs" / "reference" / "protocol.md").stat().st_mtime_ns == before
