"""Links between pages of the documentation lead to a file that is there and a heading in it; merges are resolved."""

import re
from pathlib import Path

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


def test_links_lead_somewhere_and_no_page_has_an_unresolved_merge() -> None:
    for page in PAGES:
        assert broken(page) == [], page
        assert re.findall(r"(?m)^(?:<{7}|>{7}) .*", page.read_text()) == [], page
