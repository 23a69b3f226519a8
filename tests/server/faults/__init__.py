"""Tests of `server/faults`. Modules whose tests have another name:

faults, rules: test_file, test_connection
frames, waits: test_connection
"""
