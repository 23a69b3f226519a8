"""Message classes are created on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from segstore.wire.controller_api import messages


def test_a_class_is_created_once() -> None:
    first = messages.ScopeInfo
    assert first is messages.ScopeInfo
    assert messages.ScopeInfo(scope="a").scope == "a"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(
        AttributeError, match=r"'segstore\.wire\.controller_api\.messages' has no attribute 'Scopeinfo'"
    ):
        messages.__getattr__("Scopeinfo")


@pytest.mark.slow
def test_the_import_does_not_load_protobuf() -> None:
    program = "import sys; from segstore.wire.controller_api import messages; print('google.protobuf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
