"""Requirements of the package's optional parts, for errors that describe how to install them.

The errors name each package: unlike `pip install segstore[extra]`, that works for a checkout, a wheel and an
installation from an index alike.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires
from shlex import quote


def pip_command(extra: str) -> str:
    """Returns the command that installs the packages of an extra."""
    try:
        listed = requires("segstore") or []
    except PackageNotFoundError:  # sources on the path, which no installer knows
        listed = []
    parts = (requirement.partition(";") for requirement in listed)
    packages = " ".join(quote(need.strip()) for need, _, marker in parts if f"'{extra}'" in _quoted(marker))
    return f"pip install {packages}" if packages else f"see the extra {extra} in pyproject.toml"


def _quoted(marker: str) -> str:
    """Returns the `extra == '…'` part of an environment marker, with quotes normalised."""
    return marker.replace('"', "'").partition("extra ==")[2]
