"""Every command of the wire, one module a family; importing this package completes the registry `COMMANDS`."""

from segstore.wire.commands import admin, append, attribute, errors, segment, session, table
from segstore.wire.commands.admin import *  # noqa: F403 — the families' own __all__ are the list
from segstore.wire.commands.append import *  # noqa: F403
from segstore.wire.commands.attribute import *  # noqa: F403
from segstore.wire.commands.errors import *  # noqa: F403
from segstore.wire.commands.segment import *  # noqa: F403
from segstore.wire.commands.session import *  # noqa: F403
from segstore.wire.commands.table import *  # noqa: F403

__all__: list[str] = []
__all__ += session.__all__
__all__ += append.__all__
__all__ += segment.__all__
__all__ += attribute.__all__
__all__ += table.__all__
__all__ += errors.__all__
__all__ += admin.__all__
