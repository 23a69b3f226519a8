"""Tests of `client/segment`. Modules whose tests have another name:

conditional: client/stream/test_revisioned
"""
