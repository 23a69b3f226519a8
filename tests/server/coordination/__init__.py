"""Tests of `server/coordination`. Modules whose tests have another name:

reports, types: test_ownership
"""
