from typing import Any

VERSION: str

Shape: Any
Codec: Any
Frames: Any
Acks: Any
Rows: Any
Shortcut: Any
