"""Tests of `server/shared_folder`. Modules whose tests have another name:

presence: server/cluster/test_between_processes
"""
