"""Tests of the page of a trace. What its script does is tested in a browser, against Python's results."""
