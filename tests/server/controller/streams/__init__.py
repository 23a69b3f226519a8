"""Tests of `server/controller/streams`. Modules whose tests have another name:

scaling, scopes: test_streams
"""
