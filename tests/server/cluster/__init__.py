"""Tests of `server/cluster`. Modules whose tests have another name:

hosted, local, parts: test_members
leader: test_process
settings: test_between_processes
"""
