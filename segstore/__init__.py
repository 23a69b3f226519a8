"""The public face of segstore: Pravega's segment-store wire protocol, a mock segment store, a client and a pipeline.

Invariant: importing this package imports nothing else of it, so `import segstore.wire` costs the codec alone.
Nothing below `segstore/` may import from here, but for the version.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
