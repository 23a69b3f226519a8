"""Positions in a stream as text: a stream cut, written as `segment id:offset` per segment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from segstore.server.control_api.problems import ApiProblem

_POSITION: Final = re.compile(r"\d{1,19}:\d{1,19}(?:,\d{1,19}:\d{1,19})*", re.ASCII)
_MOST: Final = 1 << 63


def position_text(cut: Mapping[int, int]) -> str:
    return ",".join(f"{identifier}:{offset}" for identifier, offset in sorted(cut.items()))


def parse_position(text: str, where: str) -> dict[int, int]:
    """Returns the stream cut. Raises ApiProblem, which names `where`."""
    pairs = [each.split(":") for each in text.split(",")] if _POSITION.fullmatch(text) else []
    cut = {int(identifier): int(offset) for identifier, offset in pairs}
    if not cut or len(cut) < len(pairs) or any(each >= _MOST for pair in cut.items() for each in pair):
        raise ApiProblem(422, f"{where}: a position is `next` of a page of events, such as 0:0,1:24", where)
    return cut
