"""Tests of `server/replay`. Modules whose tests have another name:

problem, script: test_server
"""
