"""The documentation site builds without a warning: links and anchors resolve, and every page is in the navigation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("the extra docs")

ROOT = Path(__file__).parent.parent
MKDOCS = "import gc; gc.disable(); from mkdocs.__main__ import cli; cli()"
"""What it leaves as garbage fits in memory."""


def test_the_site_builds_without_a_warning_and_has_every_page(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MKDOCS, "build", "--strict", "--quiet", "--site-dir", tmp_path]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "DOCS_SEARCH": "false", "DOCS_LINE_LENGTH": "10000"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    root_pages = {Path("project/contributing.html"), Path("project/changelog.html")}
    built = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.html")} - {Path("404.html")}
    assert built == pages | root_pages
