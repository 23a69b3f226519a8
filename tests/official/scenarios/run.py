"""Runs one scenario with the official client in a process of its own: `run.py URI module.function '{"argument": …}'`.

Its blocking calls hold the interpreter lock, several of its errors are a BaseException, and destructors may wait, so
who starts this must be able to kill it. It needs nothing but the standard library and the package `pravega`, so another
interpreter than that of the tests can run it.

Standard output has one JSON object a line: `{"said": …}` along the way, and last `{"result": …}` or `{"failed": …}`.
A line on standard input lets a scenario that waits go on.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
from pathlib import Path


def main(uri: str, name: str, arguments: str) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    module, _, function = name.rpartition(".")
    try:
        scenario = getattr(importlib.import_module(module), function)
        result = scenario(uri, **json.loads(arguments))
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        line = json.dumps({"result": result})
    except BaseException as error:  # noqa: BLE001 — PanicException is one, and whoever waits must hear of it
        line = json.dumps({"failed": f"{type(error).__name__}: {error}"})
    print(line, flush=True)
    # The client's destructors wait for servers and for the interpreter lock; nothing here needs them.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
