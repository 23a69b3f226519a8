"""Tests of `server/coordination`. Modules whose tests have another name:

reports: test_ownership
"""
