"""Tests of `server/page`: of the document with all panels, and of some panels in a browser."""
