"""Tests of `server/replay`. Modules whose tests have another name:

matching, problem, script: test_server
"""
