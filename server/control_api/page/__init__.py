"""The live page at `/`: one HTML file, made of `page.html`, `page.css` and the scripts, which run in one scope.

Each panel is one script, which calls `addPanel` of `panels.js`. `document.SCRIPTS` lists the scripts in the order in
which they run; panels stand on the page in the same order.
"""

from segstore.server.control_api.page.document import SCRIPTS, policy, router, text

__all__ = ["SCRIPTS", "policy", "router", "text"]
