"""Tests of `server/shared_folder`. Modules whose tests have another name:

identity, owners, storage, verify: server/cluster/test_process
leader: server/cluster/test_process
"""
