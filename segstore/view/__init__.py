"""The page of a trace: packs records into columns, and writes one HTML file that shows them in a browser.

The page loads nothing: style, script and data are inside. `pack.py` says what of a trace is in it, `state.py` what the
replies say about segments, writers and transactions. The script explains bytes and evaluates filters itself, from the
schema and the language that Python declares (`schema.py`).
"""

from segstore.view.files import UnreadableTrace, Written, write_page

__all__ = ["UnreadableTrace", "Written", "write_page"]
