"""MkDocs hook: puts CONTRIBUTING.md and CHANGELOG.md on the site, as pages of docs/project, and imports all commands.

The plugin for the page of the command line documents those that are imported.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from segstore.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Imports the commands."""
    main.load_all()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages. Their links into docs/ become relative to docs/project."""
    for name in PAGES:
        text = (ROOT / name).read_text("utf-8").replace("](docs/project/", "](").replace("](docs/", "](../")
        files.append(File.generated(config, f"project/{name.lower()}", content=text))
    return files
