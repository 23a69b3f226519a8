"""Tests of `server/durable`. Modules whose tests have another name:

chunk_files, snapshot: test_hostile_directory, test_durable
committer, committers: test_acknowledging, test_failures
fence, fenced_directory: server/cluster/test_process
files, journal: test_failures, test_damage
verify: test_damage, test_special_files
"""
