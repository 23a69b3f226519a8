"""Imports modules of the client as Cython compiled them, or from source if SEGSTORE_CODEC is `python` or `construct`.

Must be imported before the modules. Their source is what debuggers, coverage and mutation testing see.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path


class SourceFinder:
    """Finds modules of the client by their source."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if path is None or not name.startswith("segstore.client."):
            return None
        source = Path(path[0], f"{name.rpartition('.')[2]}.py")
        return spec_from_file_location(name, source) if source.is_file() else None


if os.environ.get("SEGSTORE_CODEC") in ("python", "construct"):
    sys.meta_path.insert(0, SourceFinder)
