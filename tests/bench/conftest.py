"""`bench` is run from the checkout and not installed. It is loaded by its path: the root stays out of `sys.path`."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import uvloop

FOLDER = Path(__file__).parents[2] / "bench"

if "bench" not in sys.modules:
    spec = spec_from_file_location("bench", FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["bench"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["bench"])

# libuv keeps one pipe for its whole process, made with the first loop: not in a test, where it would be left behind.
uvloop.new_event_loop().close()
