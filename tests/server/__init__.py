"""Tests of `server`. Modules whose tests have another name:

config: server/node/test_runner, test_serving
"""
