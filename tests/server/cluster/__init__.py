"""Tests of `server/cluster`. Modules whose tests have another name:

local: test_members
leader, node: test_process
settings: test_between_processes
"""
