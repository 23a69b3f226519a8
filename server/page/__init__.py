"""The page in a browser, with two sources of data: a server (`live`), or a trace packed into the page (`trace`).

Both share elements, tables, the drawer, the field for a filter and one style. Each panel of the live page is one
script, which calls `addPanel` of `live/panels.js`.
"""

from segstore.server.page.document import live_page, trace_page

__all__ = ["live_page", "trace_page"]
