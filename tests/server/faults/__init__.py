"""Tests of `server/faults`. Modules whose tests have another name:

outgoing: test_lane, test_faults
rules: test_file, test_faults
"""
