"""Acknowledgements in rows, as a decoder with the extension returns them. They exist here without it, too."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from segstore.wire.codec.generate import FrameRows

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["rows_of"]


def rows_of(frames: Iterable[bytes], kind: Any = memoryview) -> FrameRows:
    """Rows of frames of DataAppended. kind: makes their buffer."""
    return FrameRows(kind(b"".join(frames)), struct.Struct(">8x16sqqqq").iter_unpack)
