"""The public face of segstore: Pravega's segment-store wire protocol, a mock segment store, a client and a pipeline.

Invariant: importing this package imports nothing else of it, so `import segstore.wire` costs the codec alone.
Nothing below `segstore/` may import from here, but for the version.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 — a checkout on the path of an older Python
    raise ImportError(
        f"segstore needs Python 3.11 or newer; this is Python {sys.version.split()[0]} at {sys.executable}"
    )

__all__ = ["__version__"]

__version__ = "0.1.0"
