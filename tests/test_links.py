"""Links between pages of the documentation lead to a file that is there and a heading in it; merges are resolved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """The names that headings of a page have in links."""
    headings = (line.lstrip("#").strip().lower() for line in page.read_text().splitlines() if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    found = []
    for link in LINK.finditer(page.read_text()):
        name, anchor = link.groups()
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link[0])
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_to_no_file_or_no_heading_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Here `it` is\n[a](#here-it-is) [b](#not-here) [c](none.md) [d](page.md#here-it-is) [e](https://x)\n"
    )
    assert broken(page) == ["](#not-here)", "](none.md)"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_unresolved_merge(page: Path) -> None:
    assert re.findall(r"(?m)^(?:<{7}|>{7}) .*", page.read_text()) == []
