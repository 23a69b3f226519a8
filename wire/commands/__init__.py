"""Every command of the wire, one module a family; importing this package completes the registry `COMMANDS`."""

from segstore.wire.commands import admin, append, attribute, errors, segment, session, table

__all__ = ["admin", "append", "attribute", "errors", "segment", "session", "table"]
