"""The documentation site builds without a warning: links and anchors resolve, and every page is in the navigation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("the extra docs")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


def test_every_page_of_docs_is_on_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    root_pages = {Path("project/contributing.html"), Path("project/changelog.html")}
    built = {path.relative_to(site) for path in site.rglob("*.html")} - {Path("404.html")}
    assert built == pages | root_pages


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("reference/cli.html", "--controller-port"),
        ("reference/python/client.html", "event_writer"),
        ("reference/python/wire.html", "FrameDecoder"),
        ("project/changelog.html", "Unreleased"),
    ],
)
def test_generated_pages_have_their_content(site: Path, page: str, text: str) -> None:
    assert text in (site / page).read_text("utf-8")
