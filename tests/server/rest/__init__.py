"""Tests of `server/rest`. Modules whose tests have another name:

asking: test_operations
"""
