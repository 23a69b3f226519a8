"""The page of a trace: packs records into columns, and writes one HTML file that shows them in a browser.

The page is self-contained: style, script and data are inside. `pack.py` chooses its contents, `state.py` derives the
state of segments, writers and transactions from replies. The script explains bytes and evaluates filters itself, from
the schema and the language that Python declares (`schema.py`).
"""

from segstore.view.files import WrittenPage, write_page

__all__ = ["WrittenPage", "write_page"]
