"""Tests of `server`. Modules whose tests have another name:

clock: server/node/test_runner
config: server/node/test_runner, test_serving
"""
