"""Tests of `wire/trace`. Modules whose tests have another name:

framing: test_reader, test_writer
"""
