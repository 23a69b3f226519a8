"""Tests of `server/toxics`. Modules whose tests have another name:

relay: test_toxics
"""
