"""Tests of `server/durable`. Modules whose tests have another name:

verify: test_damage, test_special_files
"""
