"""Files that hold a secret: a key, a password, a token.

Invariant: no message contains any part of the file's contents.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from segstore.server.config import read_text

log = logging.getLogger(__name__)

_OTHERS_READ: Final = 0o044


def read_secret(path: Path) -> str:
    """Returns the file's contents without the final newline. Logs a warning if other users can read the file.

    Raises OSError, or ValueError with a readable text if the file is empty, too long or not UTF-8.
    """
    if path.stat().st_mode & _OTHERS_READ:
        log.warning("other users can read %s: chmod 600 %s", path, path)
    text = read_text(path, ending=b"\r\n")
    if not text:
        raise ValueError(f"{path} is empty")
    return text
