"""Builds the optional extensions: `segstore._speed`, in C, and modules of the client, which Cython compiles as they
are. Makes the links of README.md absolute for package indexes. All else is in pyproject.toml.

If an extension cannot be built, setuptools says so in a sentence, and segstore is installed without it. PURE_PYTHON=1
leaves all extensions out, for a wheel that any machine can install.
"""

import os
import re
from pathlib import Path

from setuptools import Extension, setup

SOURCES = "wire/codec/speed"  # relative, as setuptools wants it; segstore/wire is a symbolic link to it

COMPILED = (
    *("client/connection/in_flight", "client/connection/outbox", "client/connection/transport"),
    "client/segment/machine",
)
"""Modules that Cython compiles as they are; the types of their variables are in the `.pxd` beside each."""

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


def compiled() -> list[Extension]:
    """Returns the extensions of `COMPILED`, none without Cython."""
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError
    except ImportError:
        return []
    modules = [
        Extension(
            f"segstore.{name.replace('/', '.')}",
            [f"segstore/{name}.py"],
            extra_compile_args=["-O1", "-g0"],  # half the time of a build, and as fast
        )
        for name in COMPILED
    ]
    directives = {"language_level": 3, "annotation_typing": False, "nonecheck": True, "overflowcheck": True}
    try:
        extensions = list(cythonize(modules, build_dir="build/cython", compiler_directives=directives, quiet=True))
    except CompileError as error:
        print(f"modules of the client are not compiled: this Cython cannot: {error}")
        return []
    for each in extensions:
        each.optional = True  # `cythonize` would drop it
    return extensions


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[] if os.environ.get("PURE_PYTHON") else [extension, *compiled()],
    options={"build_ext": {"parallel": True}},
)
