"""The message classes are created on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from segstore.wire.controller_api import METHODS, messages

_IMPORTS = """
import sys
from segstore.wire.controller_api import messages
assert "google.protobuf" not in sys.modules
messages.ScopeInfo
assert "google.protobuf" in sys.modules
"""


@pytest.mark.slow
def test_importing_the_module_does_not_load_protobuf() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTS], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_class_is_that_of_the_methods_each_time() -> None:
    assert messages.ScopeInfo is messages.ScopeInfo is METHODS["createScope"].request


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="NoSuchMessage"):
        messages.NoSuchMessage  # type: ignore[attr-defined]  # noqa: B018
