"""Tests of `server/coordination`. Modules whose tests have another name:

types: test_ownership
"""
