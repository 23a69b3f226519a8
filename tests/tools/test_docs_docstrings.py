"""Docstrings become Markdown for the Python API pages."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

EXTENSION = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "docs_docstrings.py"))
markdown: Any = EXTENSION["markdown"]


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("A sentence: with a colon.\nMore of it.", "A sentence: with a colon.\nMore of it."),
        ("limit: bytes\n    at most\nhost, port: where", "- `limit`: bytes at most\n- `host`, `port`: where"),
        ("Attributes:\n    name: whose", "Attributes:\n\n- `name`: whose"),
        ("The defaults, besides\n    name: whose", "The defaults, besides\n\n- `name`: whose"),
        (">>> 1 + 1\n2", "```pycon\n>>> 1 + 1\n2\n```"),
        ("async with Mock() as mock:\n    ...", "```python\nasync with Mock() as mock:\n    ...\n```"),
        ("One.\n\nname: two", "One.\n\n- `name`: two"),
    ],
)
def test_a_paragraph_becomes_a_list_code_or_stays(docstring: str, expected: str) -> None:
    assert markdown(docstring) == expected
