"""Tests of `server/store`. Modules whose tests have another name:

results, state: test_store, test_container
"""
