"""Imports modules of the client as Cython compiled them, or from source if SEGSTORE_CODEC is `python` or `construct`.

Must be imported before the modules. Their source is what debuggers, coverage and mutation testing see. Modules that
were compiled in part, or before their source was changed, are not used, with a warning.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Final

_COMPILED: Final = ("connection/in_flight", "connection/outbox", "connection/transport", "segment/machine")


class SourceFinder:
    """Finds modules of the client by their source."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if path is None or not name.startswith("segstore.client."):
            return None
        source = Path(path[0], f"{name.rpartition('.')[2]}.py")
        return spec_from_file_location(name, source) if source.is_file() else None


def _state(source: Path) -> str:
    """Whether a module is compiled, and in a checkout, where its types are beside it, after the last change."""
    built = [path for suffix in EXTENSION_SUFFIXES if (path := source.with_suffix(suffix)).is_file()]
    typed = source.with_suffix(".pxd")
    changed_s = max(source.stat().st_mtime, typed.stat().st_mtime) if typed.is_file() else 0.0
    return "absent" if not built else "current" if built[0].stat().st_mtime >= changed_s else "old"


_states = {_state(Path(__file__).parent.parent / f"{name}.py") for name in _COMPILED}
if os.environ.get("SEGSTORE_CODEC") in ("python", "construct"):
    sys.meta_path.insert(0, SourceFinder)
elif _states not in ({"absent"}, {"current"}):
    sys.meta_path.insert(0, SourceFinder)
    text = "compiled modules of the client are older than their source, or some are missing: they are not used"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
