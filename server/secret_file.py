"""Files that hold a secret: a key, a password, a token.

Invariant: no message contains any part of the file's contents.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_MOST_BYTES: Final = 4096
_OTHERS_READ: Final = 0o044


def read_secret(path: Path) -> str:
    """Returns the file's contents without the final newline. Logs a warning if other users can read the file.

    Raises OSError, or ValueError with a readable text if the file is empty, too long or not UTF-8.
    """
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + len("\r\n") + 1).rstrip(b"\r\n")
        if os.fstat(file.fileno()).st_mode & _OTHERS_READ:
            log.warning("other users can read %s: chmod 600 %s", path, path)
    if not data:
        raise ValueError(f"{path} is empty")
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{path} has more than {_MOST_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 at byte {error.start}") from None
