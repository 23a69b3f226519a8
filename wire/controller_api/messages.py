"""Message classes of the controller's API, created on first use: importing this module does not load protobuf.

Type checkers read ``messages.pyi``, which is built with ``controller.binpb``.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    from segstore.wire.controller_api.compiled import MESSAGES

    if name not in MESSAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, MESSAGES[name])
