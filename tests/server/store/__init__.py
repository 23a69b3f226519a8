"""Tests of `server/store`. Modules whose tests have another name:

state: test_store, test_container
"""
