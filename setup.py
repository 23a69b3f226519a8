"""Builds the optional extension `segstore._speed`, and makes the links of README.md absolute for package indexes; all
else is in pyproject.toml.

Where it cannot be built, setuptools says so in a sentence and segstore is installed without it. PURE_PYTHON=1 leaves it
out, for a wheel that any machine can install.
"""

import os
import re
from pathlib import Path

from setuptools import Extension, setup

SOURCES = "wire/codec/speed"  # relative, as setuptools wants it; segstore/wire is a symbolic link to it

version = re.search('^__version__ = "(.+)"$', Path("segstore/__init__.py").read_text("utf-8"), re.MULTILINE)

extension = Extension(
    "segstore._speed",
    sources=sorted(map(str, Path(SOURCES).glob("*.c"))),
    depends=[f"{SOURCES}/speed.h", "segstore/__init__.py"],
    define_macros=[("SEGSTORE_VERSION", f'"{version[1] if version else ""}"')],
    optional=True,
)

# Without tomllib, so that an older Python gets as far as the version that the package requires.
repository = re.findall('^Repository = "(.+)"$', Path("pyproject.toml").read_text("utf-8"), re.MULTILINE)[0]
_RELATIVE = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#|mailto:)([^)\s]+)\)")


def readme() -> str:
    """Returns README.md with links and pictures that start at the repository."""
    text = Path("README.md").read_text("utf-8")
    return _RELATIVE.sub(lambda it: f"{it[1]}{it[2]}({repository}/{'raw' if it[1] else 'blob'}/main/{it[3]})", text)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[] if os.environ.get("PURE_PYTHON") else [extension],
)
