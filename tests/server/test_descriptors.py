"""How descriptors are divided: the shares of all ports and what files need are together what there is."""

from __future__ import annotations

import resource
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.server.descriptors import shares


def divided(soft: int, containers: int) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resource, "getrlimit", lambda _: (soft, soft))
        return shares(containers)


@given(st.integers(64, 1 << 40), st.integers(1, 200))
def test_no_shares_overlap_and_files_keep_their_reserve(soft: int, containers: int) -> None:
    share = divided(soft, containers)
    files = min(soft // 2, 64 + 8 * containers)
    assert min(share) >= 1
    assert share.stores + share.handshakes + share.controller + 2 * share.http + files <= soft


def test_without_a_limit_there_is_room_for_all() -> None:
    share = divided(resource.RLIM_INFINITY, 4)
    assert share.stores > 1 << 40
    assert share.controller == (1 << 31) - 2
    assert share.http == 128
