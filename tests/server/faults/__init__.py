"""Tests of `server/faults`. Modules whose tests have another name:

rules: test_file, test_faults
waits: test_lane, test_faults
"""
