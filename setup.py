"""Builds the optional extension `segstore._speed`; all else is in pyproject.toml.

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

setup(ext_modules=[] if os.environ.get("PURE_PYTHON") else [extension])
