"""The generated files are current: the types of the synchronous client and the generated pages."""

import runpy
from pathlib import Path

import pytest

from bench.__main__ import PAGE, page

ROOT = Path(__file__).parent.parent


@pytest.mark.long
def test_the_types_of_the_synchronous_client_are_what_make_sync_writes() -> None:
    assert runpy.run_path(str(ROOT / "tools" / "make_sync.py"))["main"](["--check"]) == 0


def test_the_pages_are_what_make_docs_writes() -> None:
    assert runpy.run_path(str(ROOT / "tools" / "make_docs.py"))["main"](["--check"]) == 0


def test_the_page_of_figures_is_what_bench_writes() -> None:
    assert PAGE.read_text("utf-8") == page()
