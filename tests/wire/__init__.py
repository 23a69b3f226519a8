"""Tests of `wire`. Modules whose tests have another name:

endpoint: server/test_net
"""
